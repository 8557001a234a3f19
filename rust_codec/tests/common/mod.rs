//! What the wire tests share: the recorded bytes, and an encoder of ticks, which only engines need.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by several test binaries, each of which uses a part"
)]

pub mod node;
pub mod vllm;

use _codec::msgpack::Writer;
use _codec::protocol::{FinishReason, Load, Tick};
use serde_json::Value;

/// `wire-0.1.1.json`: bytes that TokenSpeed's own wire classes encoded, and what they mean.
pub fn fixtures() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/tokenspeed/wire-0.1.1.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Bytes of a base64 string in a fixture.
pub fn bytes(value: &Value) -> Vec<u8> {
    let digit = |symbol: u8| match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("not base64: {symbol}"),
    };
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for symbol in value.as_str().unwrap().trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(digit(symbol));
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// Every output payload of the fixtures: batch name, revision, bytes.
pub fn output_payloads(fixtures: &Value) -> Vec<(String, String, Vec<u8>)> {
    let mut payloads = Vec::new();
    for output in fixtures["outputs"].as_array().unwrap() {
        for (revision, payload) in output["payloads"].as_object().unwrap() {
            let name = output["name"].as_str().unwrap().to_owned();
            payloads.push((name, revision.clone(), bytes(payload)));
        }
    }
    payloads
}

/// Every request payload of the fixtures.
pub fn request_payloads(fixtures: &Value) -> Vec<(String, Vec<u8>)> {
    let requests = fixtures["requests"].as_array().unwrap();
    let named = |request: &Value| {
        let name = request["name"].as_str().unwrap().to_owned();
        (name, bytes(&request["frames"][1]))
    };
    requests.iter().map(named).collect()
}

/// The revisions of the output wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revision {
    Untagged,
    /// So many elements, the tag among them.
    Tagged(usize),
}

/// One row of a batch, as an engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRow {
    pub rid: String,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f64>,
    pub finished: String,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
}

/// The load of an engine, as it holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLoad {
    pub engine_index: u32,
    pub running: u64,
    pub waiting: u64,
    pub kv_active_pages: u64,
    pub kv_total_pages: u64,
}

/// One batch, as an engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub rows: Vec<BatchRow>,
    pub load: BatchLoad,
}

impl Batch {
    pub fn encode(&self, revision: Revision) -> Vec<u8> {
        let mut writer = Writer::default();
        match revision {
            Revision::Untagged => writer.array(8),
            Revision::Tagged(length) => {
                writer.array(length);
                writer.str("BatchTokenIDOutSlim");
            }
        }
        self.column(&mut writer, |writer, row| writer.str(&row.rid));
        self.column(&mut writer, |writer, row| writer.u32s(&row.tokens));
        self.column(&mut writer, |writer, row| writer.str(&row.finished));
        self.column(&mut writer, |writer, row| {
            writer.uint(row.prompt_tokens.into());
        });
        self.column(&mut writer, |writer, row| {
            writer.uint(row.completion_tokens.into());
        });
        self.column(&mut writer, |writer, row| {
            writer.uint(row.cached_tokens.into());
        });
        self.column(&mut writer, |writer, row| {
            writer.array(row.logprobs.len());
            for value in &row.logprobs {
                writer.f64(*value);
            }
        });
        self.column(&mut writer, |writer, row| {
            writer.u32s(&row.tokens[..row.logprobs.len()]);
        });
        if let Revision::Tagged(length) = revision {
            let load = &self.load;
            let trailing =
                [u64::from(load.engine_index), load.running, load.waiting, load.kv_active_pages, load.kv_total_pages];
            for value in trailing.iter().take(length - 9) {
                writer.uint(*value);
            }
            // Fields of a revision to come, of a kind that is nowhere else in the batch.
            for _ in 14..length {
                writer.map(1);
                writer.str("new");
                writer.array(1);
                writer.bin(&[1, 2, 3]);
            }
        }
        writer.into_bytes()
    }

    fn column(&self, writer: &mut Writer, write: impl Fn(&mut Writer, &BatchRow)) {
        writer.array(self.rows.len());
        for row in &self.rows {
            write(writer, row);
        }
    }

    /// Says where a decoded tick differs from this batch.
    pub fn compare(&self, revision: Revision, frame: &[u8], tick: &Tick) {
        assert_eq!(rows(frame, tick), self.expected_rows());
        let (rank, load) = match revision {
            Revision::Untagged | Revision::Tagged(..=9) => (false, false),
            Revision::Tagged(..=13) => (true, false),
            Revision::Tagged(_) => (true, self.load.kv_total_pages != 0),
        };
        assert_eq!(tick.engine_index, rank.then_some(self.load.engine_index));
        let BatchLoad { engine_index, running, waiting, kv_active_pages, kv_total_pages } = self.load;
        let kv_usage = kv_active_pages as f64 / kv_total_pages as f64;
        assert_eq!(tick.load, load.then_some(Load { engine_index, running, waiting, kv_usage }));
    }

    fn expected_rows(&self) -> Vec<(BatchRow, Option<FinishReason>)> {
        let expected = |row: &BatchRow| {
            let finish = match row.finished.as_str() {
                "" => None,
                "stop" => Some(FinishReason::Stop),
                "length" => Some(FinishReason::Length),
                "abort" => Some(FinishReason::Abort),
                _ => Some(FinishReason::Error),
            };
            let row = BatchRow { finished: String::new(), prompt_tokens: 0, completion_tokens: 0, ..row.clone() };
            (row, finish)
        };
        self.rows.iter().map(expected).collect()
    }
}

/// A tick's rows with their columns resolved; it does not have those that are 0 here. Fails where a range leaves its column.
pub fn rows(frame: &[u8], tick: &Tick) -> Vec<(BatchRow, Option<FinishReason>)> {
    let range = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
    let resolved = |row: &_codec::protocol::Row| {
        let decoded = BatchRow {
            rid: std::str::from_utf8(&frame[range(&row.id)]).unwrap().to_owned(),
            tokens: tick.token_ids[range(&row.tokens)].to_vec(),
            logprobs: tick.logprobs[range(&row.logprobs)].to_vec(),
            finished: String::new(),
            prompt_tokens: 0,
            completion_tokens: 0,
            cached_tokens: row.cached_tokens,
        };
        (decoded, row.finish)
    };
    tick.rows.iter().map(resolved).collect()
}
