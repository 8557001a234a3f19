//! An engine's output message, decoded into a tick whose buffers are kept, as the dispatcher does. The first byte chooses
//! the protocol, the second how much of the rest is an auxiliary frame.
#![no_main]

use _codec::protocol::vllm::Layout;
use _codec::protocol::{Protocol, Tick};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static TICK: RefCell<Tick> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let [protocol, auxiliary, rest @ ..] = data else { return };
    let layout = Layout::all().get(usize::from(*protocol));
    let protocol = layout.map_or(Protocol::TokenSpeed, Protocol::Vllm);
    let (message, auxiliary) = rest.split_at(rest.len() - usize::from(*auxiliary).min(rest.len()));
    TICK.with_borrow_mut(|tick| {
        if protocol.decode(&[message, auxiliary], tick).is_err() {
            return;
        }
        let span = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
        for row in &tick.rows {
            assert!(std::str::from_utf8(&message[span(&row.id)]).is_ok());
            let tokens = &tick.token_ids[span(&row.tokens)];
            let logprobs = &tick.logprobs[span(&row.logprobs)];
            assert!(logprobs.is_empty() || logprobs.len() == tokens.len());
            let tops = tick.tops(row);
            assert_eq!(tops.ids.len(), tops.width * tokens.len());
            assert_eq!(tops.logprobs.len(), tops.ids.len());
            if let Some(prompt) = tick.prompt_logprobs(row) {
                assert_eq!(prompt.token_ids.len(), prompt.ranks.len() * prompt.width as usize);
                assert_eq!(prompt.token_ids.len(), prompt.logprobs.len());
            }
        }
    });
});
