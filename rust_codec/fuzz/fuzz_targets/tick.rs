//! An engine's output message, decoded into a tick whose buffers are kept, as the dispatcher does.
#![no_main]

use _codec::protocol::{Protocol, Tick};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static TICK: RefCell<Tick> = RefCell::default();
}

fuzz_target!(|message: &[u8]| {
    TICK.with_borrow_mut(|tick| {
        if Protocol::TokenSpeed.decode(&[message], tick).is_err() {
            return;
        }
        for row in &tick.rows {
            let id = &message[row.id.start as usize..row.id.end as usize];
            assert!(std::str::from_utf8(id).is_ok());
            let tokens = &tick.token_ids[row.tokens.start as usize..row.tokens.end as usize];
            let logprobs = &tick.logprobs[row.logprobs.start as usize..row.logprobs.end as usize];
            assert!(logprobs.is_empty() || logprobs.len() == tokens.len());
        }
    });
});
