//! How long a tick takes to decode. Not a test of the suite:
//! `cargo test --release --no-default-features --test wire decode_time -- --ignored --nocapture`.

use crate::common::{Batch, BatchRow, Revision};
use _codec::protocol::{Load, Protocol, Tick};
use std::hint::black_box;
use std::time::Instant;

#[test]
#[ignore = "measures, checks nothing"]
fn ticks() {
    for logprobs in [false, true] {
        for rows in [1, 64, 256, 1024] {
            measure(rows, logprobs);
        }
    }
}

fn measure(rows: u32, logprobs: bool) {
    let row = |index: u32| BatchRow {
        rid: format!("chatcmpl-{index:032x}"),
        tokens: vec![index * 7919 % 151_936],
        logprobs: if logprobs { vec![-f64::from(index) / 7.0] } else { vec![] },
        finished: String::new(),
        prompt_tokens: 1000 + index,
        completion_tokens: 100 + index,
        cached_tokens: 512,
    };
    let load = Load { engine_index: 0, running: rows.into(), waiting: 3, kv_active_pages: 1000, kv_total_pages: 4000 };
    let batch = Batch { rows: (0..rows).map(row).collect(), load };
    let frame = batch.encode(Revision::Tagged(14));
    let mut tick = Tick::default();
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let rounds = 1 + 200_000 / rows;
        let start = Instant::now();
        for _ in 0..rounds {
            Protocol::TokenSpeed.decode(&[black_box(&frame)], &mut tick).unwrap();
            black_box(&tick);
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(rounds));
    }
    println!(
        "{rows:5} rows, logprobs {logprobs:5}: {:8.3} µs, {:6.2} ns a row, {} bytes",
        best * 1e6,
        best * 1e9 / f64::from(rows),
        frame.len()
    );
}
