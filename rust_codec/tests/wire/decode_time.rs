//! How long a tick takes to decode. Not a test of the suite:
//! `cargo test --release --no-default-features --test wire decode_time -- --ignored --nocapture`.

use crate::common::vllm::{Logprobs, Message, Output, PLAIN, Style, versions};
use crate::common::{Batch, BatchLoad, BatchRow, Revision};
use _codec::protocol::{Protocol, Tick};
use std::hint::black_box;
use std::time::Instant;

#[test]
#[ignore = "measures, checks nothing"]
fn ticks() {
    for candidates in [None, Some(0), Some(5), Some(20)] {
        for rows in [1, 64, 256, 1024] {
            let (name, structs, layout) = versions().remove(10);
            let frames = vllm(rows, candidates)
                .encode(&structs, Style { integers: "<i4", floats: "<f4", unused: true, ..PLAIN });
            measure(&format!("vLLM {name}, logprobs {candidates:?}"), Protocol::Vllm(layout), rows, &frames[0]);
        }
    }
    for logprobs in [false, true] {
        for rows in [1, 64, 256, 1024] {
            let frame = token_speed(rows, logprobs).encode(Revision::Tagged(14));
            measure(&format!("TokenSpeed, logprobs {logprobs}"), Protocol::TokenSpeed, rows, &frame);
        }
    }
}

fn vllm(rows: u32, candidates: Option<usize>) -> Message {
    let row = |index: u32| {
        let token = index * 7919 % 151_936;
        let logprobs = candidates.map(|candidates| {
            let ids: Vec<u32> = [token].into_iter().chain((0..candidates as u32).map(|rank| token + rank)).collect();
            let values = ids.iter().map(|id| -f64::from(*id) / 7.0).collect();
            Logprobs { width: 1 + candidates, ids, values, ranks: vec![1] }
        });
        Output { logprobs, ..Output::new(&format!("chatcmpl-{index:032x}"), &[token]) }
    };
    Message { load: Some((rows.into(), 3, 0.25)), ..Message::of((0..rows).map(row).collect()) }
}

fn token_speed(rows: u32, logprobs: bool) -> Batch {
    let row = |index: u32| BatchRow {
        rid: format!("chatcmpl-{index:032x}"),
        tokens: vec![index * 7919 % 151_936],
        logprobs: if logprobs { vec![-f64::from(index) / 7.0] } else { vec![] },
        finished: String::new(),
        prompt_tokens: 1000 + index,
        completion_tokens: 100 + index,
        cached_tokens: 512,
    };
    let load =
        BatchLoad { engine_index: 0, running: rows.into(), waiting: 3, kv_active_pages: 1000, kv_total_pages: 4000 };
    Batch { rows: (0..rows).map(row).collect(), load }
}

fn measure(name: &str, protocol: Protocol, rows: u32, frame: &[u8]) {
    let mut tick = Tick::default();
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let rounds = 1 + 50_000 / rows;
        let start = Instant::now();
        for _ in 0..rounds {
            protocol.decode(&[black_box(frame)], &mut tick).unwrap();
            black_box(&tick);
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(rounds));
    }
    println!(
        "{name}, {rows:5} rows: {:8.3} µs, {:6.2} ns a row, {} bytes",
        best * 1e6,
        best * 1e9 / f64::from(rows),
        frame.len()
    );
}
