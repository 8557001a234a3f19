//! What a call costs grows with what it is given, and no faster.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use _codec::dispatcher::{Dispatcher, Ending, Opening, Outbox, Target};
use _codec::generation::{Prompt, TextOptions, Tokenizer};
use _codec::protocol::{self, Load, Protocol, Utility, Wave};
use _codec::render::{Api, Format};
use common::vllm::{Logprobs, Message, Output, PLAIN, Style, versions};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A caller that wants to know only whether all went well.
#[derive(Default)]
struct Counts {
    bodies: usize,
}

impl Outbox<()> for Counts {
    fn events(&mut self, (): &mut (), _: &[u8]) {}

    fn ended(&mut self, (): (), ending: Ending) {
        match ending {
            Ending::Body(_) => self.bodies += 1,
            Ending::Failed(why) => panic!("{why}"),
            Ending::Events(_) | Ending::Outputs(_) => {}
        }
    }

    fn abort(&mut self, _: &[u8]) {}

    fn finished(&mut self, _: &[u8]) {}

    fn load(&mut self, _: Load) {}

    fn wave(&mut self, _: Wave) {}

    fn utility(&mut self, _: Utility) {}

    fn refused(&mut self, error: protocol::Error) {
        panic!("{error}");
    }

    fn engine_dead(&mut self) {}
}

/// A tokenizer of as many tokens, each of which has a text of its own.
fn tokenizer(size: usize) -> Arc<Tokenizer> {
    let vocabulary: serde_json::Map<_, _> = (0..size).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    Arc::new(Tokenizer::from_bytes(tokenizer.to_string().as_bytes()).unwrap())
}

fn rid(index: usize) -> Box<[u8]> {
    index.to_string().into_bytes().into()
}

fn open(
    tokenizer: &Arc<Tokenizer>,
    options: TextOptions,
    prompt: Prompt,
    choices: usize,
) -> (Dispatcher<()>, Duration) {
    let opening = Opening {
        sink: (),
        target: Target::Body(Format::body(Api::Completion, "i", "m", 0)),
        tokenizer: tokenizer.clone(),
        options: Arc::new(options),
        rids: (0..choices).map(rid).collect(),
        prompts: vec![Arc::new(prompt)],
    };
    let mut dispatcher = Dispatcher::default();
    let start = Instant::now();
    dispatcher.open(opening).unwrap();
    (dispatcher, start.elapsed())
}

/// How long a dispatcher takes to apply a message of these rows.
fn feed(dispatcher: &mut Dispatcher<()>, rows: Vec<Output>) -> (Counts, Duration) {
    let (_, structs, layout) = versions().pop().unwrap();
    let frames = Message::of(rows)
        .encode(&structs, Style { integers: "<i4", floats: "<f4", in_frames: true, unused: true, ..PLAIN });
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut counts = Counts::default();
    let start = Instant::now();
    dispatcher.feed(Protocol::Vllm(layout), [frames.as_slice()], &mut counts);
    (counts, start.elapsed())
}

/// The best of several runs, as others use the machine too.
fn best(run: impl Fn() -> Duration) -> Duration {
    (0..5).map(|_| run()).min().unwrap()
}

/// Eight times as much takes about eight times as long; quadratic, it would be 64 times.
fn is_linear(size: usize, run: impl Fn(usize) -> Duration) {
    let (small, large) = (best(|| run(size)), best(|| run(8 * size)));
    println!("{size}: {small:?}, {}: {large:?}", 8 * size);
    assert!(large < 24 * small, "{size}: {small:?}, {}: {large:?}", 8 * size);
}

fn logprobs(width: usize, ids: Vec<u32>) -> Option<Logprobs> {
    let (values, ranks) = (vec![-1.0; ids.len()], vec![1; ids.len() / width]);
    Some(Logprobs { width, ids, values, ranks })
}

#[test]
fn parts_of_prompt_logprobs() {
    let tokenizer = tokenizer(4);
    is_linear(4000, |rows| {
        let options = TextOptions { prompt_logprobs: Some(0), ..TextOptions::default() };
        let (mut dispatcher, _) = open(&tokenizer, options, Prompt::new(&[1, 2, 3], None), 1);
        let row = Output { prompt_logprobs: logprobs(1, vec![]), ..Output::new("0", &[]) };
        feed(&mut dispatcher, vec![row; rows]).1
    });
}

#[test]
fn many_top_logprobs() {
    const SIZE: usize = 2000;
    let tokenizer = tokenizer(8 * SIZE);
    is_linear(SIZE, |count| {
        let options = TextOptions { logprobs: Some(count), ..TextOptions::default() };
        let (mut dispatcher, _) = open(&tokenizer, options, Prompt::new(&[1], None), 1);
        let logprobs = logprobs(count, (0..count as u32).collect());
        let (counts, time) =
            feed(&mut dispatcher, vec![Output { logprobs, finish: Some(1), ..Output::new("0", &[0]) }]);
        assert_eq!(counts.bodies, 1);
        time
    });
}

#[test]
fn choices_with_one_echo() {
    let tokenizer = tokenizer(4);
    let time = |echo: usize| {
        best(|| open(&tokenizer, TextOptions::default(), Prompt::new(&[1], Some("x".repeat(echo))), 1000).1)
    };
    let (short, long) = (time(1), time(1 << 22));
    assert!(long < 8 * short, "{short:?}, {long:?}");
}
