//! Ten million random and mutated messages through every decoder: none may crash it, or make it allocate more than the
//! message justifies. `SMG_FAST_FUZZ_SEED` and `SMG_FAST_FUZZ_COUNT` choose other messages; `fuzz/` has the open-ended runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use _codec::protocol::handshake::{Handshake, ReadyResponse};
use _codec::protocol::request::decode_abort;
use _codec::protocol::tokenspeed::{Form, Request, Sampling, decode_request, encode_request};
use _codec::protocol::vllm::{self, Layout};
use _codec::protocol::{Protocol, StopReason, Tick};
use common::vllm::{Message, Output, PLAIN, outputs, recordings, requests, versions};
use common::{bytes, fixtures, output_payloads, request_payloads};
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Bytes this thread has allocated and not freed, and the most that ever were since the mark was last set. What came
    /// from another thread may be freed here.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The most bytes that `run` holds at a time beyond what was there before.
fn held_by<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let value = run();
    (value, (PEAK.get() - before) as usize)
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(LIVE.get()));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: std::alloc::Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a message of so many bytes may make a decoder hold. The dearest byte is a request id of no characters, which
/// becomes a row; a growing vector holds thrice what was put in.
fn bound(length: usize) -> usize {
    3 * size_of::<_codec::protocol::Row>() * length + 2048
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

/// Heads of every kind; those that declare a length most of all.
const MARKERS: [u8; 32] = [
    0x90, 0x91, 0x98, 0x99, 0x9a, 0x9e, 0x9f, 0xdc, 0xdd, 0xdc, 0xdd, 0x80, 0x8f, 0xde, 0xdf, 0xa0, 0xbf, 0xd9, 0xda,
    0xdb, 0xc4, 0xc5, 0xc6, 0xc7, 0xc9, 0xd4, 0xd8, 0xc0, 0xc1, 0xcb, 0xcf, 0xd3,
];

struct Corpus {
    small: Vec<Vec<u8>>,
    all: Vec<Vec<u8>>,
}

impl Corpus {
    fn new() -> Self {
        let fixtures = fixtures();
        let mut all: Vec<_> = output_payloads(&fixtures).into_iter().map(|(_, _, payload)| payload).collect();
        all.extend(request_payloads(&fixtures).into_iter().map(|(_, payload)| payload));
        for name in ["hello", "ready", "registration"] {
            all.push(bytes(&fixtures["handshake"][name]));
        }
        all.push(bytes(&fixtures["abort"]["frames"][1]));
        let tuple = Request {
            rid: "tuple".into(),
            input_ids: vec![1, 2, 70_000].into(),
            sampling: Sampling { seed: Some(3), stop_token_ids: Some(vec![2].into()), ..Sampling::default() },
            return_logprob: true,
            stream: true,
        };
        all.push(encode_request(&tuple, Form::Tuple).unwrap());
        for (_, recording) in recordings() {
            // The first outputs of a recording have every kind of field.
            all.extend(outputs(&recording).into_iter().take(4).flatten());
            all.extend(requests(&recording));
        }
        for (_, structs, _) in versions() {
            let stop = Some(common::vllm::Stop::Text("stop".into()));
            let output = Output { finish: Some(0), stop, cached: 3, ..Output::new("row", &[1, 70_000]) };
            let finished = vec!["row".into(), "other".into()];
            let message = Message { finished, wave_complete: Some(1), ..Message::of(vec![output]) };
            all.extend(message.encode(&structs, PLAIN));
        }
        let small = all.iter().filter(|payload| payload.len() < 1024).cloned().collect();
        Self { small, all }
    }

    fn pick(&self, random: &mut Random) -> &[u8] {
        // A wide tick costs as much as a hundred small ones.
        let from = if random.below(50) == 0 { &self.all } else { &self.small };
        &from[random.below(from.len())]
    }

    /// Fills `message` with the next one.
    fn draw(&self, random: &mut Random, message: &mut Vec<u8>) {
        message.clear();
        if random.below(8) == 0 {
            let length = random.below(64);
            message.extend((0..length).map(|_| random.byte()));
            if length > 0 && random.below(2) == 0 {
                message[0] = MARKERS[random.below(MARKERS.len())];
            }
            return;
        }
        message.extend_from_slice(self.pick(random));
        for _ in 0..=random.below(3) {
            self.mutate(random, message);
        }
    }

    fn mutate(&self, random: &mut Random, message: &mut Vec<u8>) {
        if message.is_empty() {
            return;
        }
        let place = random.below(message.len());
        match random.below(8) {
            0 => message[place] ^= 1 << random.below(8),
            1 => message[place] = random.byte(),
            2 => message.truncate(place),
            3 => {
                let other = self.pick(random);
                let start = random.below(other.len());
                let length = 1 + random.below((other.len() - start).min(64));
                let end = (place + random.below(length)).min(message.len());
                message.splice(place..end, other[start..start + length].iter().copied());
            }
            4 => {
                let end = (place + 1 + random.below(16)).min(message.len());
                message.drain(place..end);
            }
            5 => message[place] = MARKERS[random.below(MARKERS.len())],
            6 => {
                // Another length in the head of an array, map, string or binary, if one is near.
                let heads =
                    message[place..].iter().position(|byte| matches!(byte, 0x80..=0xbf | 0xc4..=0xc6 | 0xd9..=0xdf));
                if let Some(head) = heads.map(|offset| place + offset) {
                    match message[head] {
                        0x80..=0xbf => message[head] = message[head] & 0xf0 | random.byte() & 0x0f,
                        _ if head + 1 < message.len() => message[head + 1] = random.byte(),
                        _ => message.push(random.byte()),
                    }
                }
            }
            _ => {
                // A head of 32 bits that declares what no message holds.
                let marker = [0xdd, 0xdf, 0xdb, 0xc6, 0xc9][random.below(5)];
                let length = (random.next() as u32 >> random.below(32)).to_be_bytes();
                message.splice(place..=place, std::iter::once(marker).chain(length));
            }
        }
    }
}

/// Two frames beside the message, as long as the recorded ones are.
const AUXILIARY: [&[u8]; 2] = [&[0; 432], &[0; 432]];

/// Decodes as everything, in one of vLLM's layouts. Returns how many decoders took it.
fn decode(message: &[u8]) -> usize {
    let layouts = Layout::all();
    let layout = &layouts[message.len() % layouts.len()];
    let ticks = [Protocol::TokenSpeed, Protocol::Vllm(layout)].map(|protocol| {
        let mut tick = Tick::default();
        let is_tick = protocol.decode(&[message, AUXILIARY[0], AUXILIARY[1]], &mut tick).is_ok();
        if is_tick {
            check(message, &tick);
        }
        is_tick
    });
    [
        ticks[0],
        ticks[1],
        vllm::decode_request(message, layout).is_ok(),
        decode_request(message).is_ok(),
        decode_abort(message).is_ok(),
        Handshake::decode(message).is_ok(),
        ReadyResponse::decode(message).is_ok(),
    ]
    .into_iter()
    .filter(|taken| *taken)
    .count()
}

/// What a caller relies on for any tick, however strange the message.
fn check(message: &[u8], tick: &Tick) {
    let span = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
    let is_text = |range| std::str::from_utf8(&message[span(range)]).is_ok();
    for row in &tick.rows {
        assert!(is_text(&row.id));
        let tokens = &tick.token_ids[span(&row.tokens)];
        let logprobs = &tick.logprobs[span(&row.logprobs)];
        assert!(logprobs.is_empty() || logprobs.len() == tokens.len());
        let tops = tick.tops(row);
        assert_eq!((tops.ids.len(), tops.logprobs.len()), (tops.width * tokens.len(), tops.width * tokens.len()));
        if let Some(StopReason::Text(text)) = tick.stop_reason(row) {
            assert!(is_text(text));
        }
        if let Some(prompt) = tick.prompt_logprobs(row) {
            assert_eq!(prompt.token_ids.len(), prompt.ranks.len() * prompt.width as usize);
            assert_eq!(prompt.token_ids.len(), prompt.logprobs.len());
        }
    }
    assert!(tick.finished.iter().all(is_text));
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn no_message_crashes_a_decoder() {
    let seed = setting("SMG_FAST_FUZZ_SEED", 1);
    let count = setting("SMG_FAST_FUZZ_COUNT", 10_000_000);
    println!("SMG_FAST_FUZZ_SEED={seed} SMG_FAST_FUZZ_COUNT={count}");
    let corpus = Corpus::new();
    let mut random = Random(seed);
    let mut message = Vec::with_capacity(1 << 16);
    let mut taken = 0;
    for number in 0..count {
        corpus.draw(&mut random, &mut message);
        let (outcome, held) = held_by(|| catch_unwind(AssertUnwindSafe(|| decode(&message))));
        match outcome {
            Ok(decoders) => taken += u64::from(decoders > 0),
            Err(_) => panic!("message {number} crashed: {}", hex(&message)),
        }
        assert!(
            held <= bound(message.len() + AUXILIARY[0].len() + AUXILIARY[1].len()),
            "message {number} of {} bytes made a decoder hold {held}: {}",
            message.len(),
            hex(&message)
        );
    }
    println!("{taken} of {count} were taken");
    // Were all refused at the first byte, nothing would have been tested.
    assert!(taken > count / 100 && taken < count / 2, "{taken} of {count}");
}

#[test]
fn a_tick_that_has_grown_is_filled_without_allocating() {
    let payloads: Vec<_> = output_payloads(&fixtures()).into_iter().map(|(_, _, payload)| payload).collect();
    is_filled_without_allocating(Protocol::TokenSpeed, &payloads);
    // Prompt logprobs are the exception: they have vectors of their own.
    let (_, recordings): (Vec<_>, Vec<_>) = recordings().into_iter().unzip();
    let messages = recordings.iter().flat_map(outputs).filter(|frames| frames.len() == 1);
    let payloads: Vec<_> = messages.flatten().collect();
    is_filled_without_allocating(Protocol::Vllm(Layout::select("0.32.0").unwrap().layout), &payloads);
}

fn is_filled_without_allocating(protocol: Protocol, payloads: &[Vec<u8>]) {
    let mut tick = Tick::default();
    let mut decode_all = || {
        let (_, held) = held_by(|| {
            for payload in payloads {
                protocol.decode(&[payload], &mut tick).unwrap();
            }
        });
        held
    };
    assert_ne!(decode_all(), 0);
    assert_eq!(decode_all(), 0);
}

fn hex(message: &[u8]) -> String {
    message.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
