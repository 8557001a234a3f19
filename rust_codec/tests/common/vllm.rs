//! Recordings of a vLLM EngineCore, and an encoder of its output messages in the layout of any version.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "shared by several test binaries")]

use super::bytes;
use super::node::Node;
use _codec::protocol::vllm::Layout;
use _codec::protocol::{FinishReason, Load, StopReason, Tick};
use serde_json::Value;
use std::ops::Range;
use std::sync::LazyLock;

fn data(name: &str) -> String {
    format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/{}"), name)
}

/// `vllm-layouts.json`: the field order of every positional struct, by version.
pub fn layouts() -> Value {
    serde_json::from_str(&std::fs::read_to_string(data("vllm-layouts.json")).unwrap()).unwrap()
}

/// Every version in `vllm-layouts.json`: its name, its structs, and the crate's layout for it.
pub fn versions() -> Vec<(String, Value, &'static Layout)> {
    static VERSIONS: LazyLock<Vec<(String, Value, &'static Layout)>> = LazyLock::new(read_versions);
    VERSIONS.clone()
}

fn read_versions() -> Vec<(String, Value, &'static Layout)> {
    let layouts = layouts();
    let version =
        |(name, structs): (&String, &Value)| (name.clone(), structs.clone(), Layout::select(name).unwrap().layout);
    layouts.as_object().unwrap().iter().map(version).collect()
}

/// Every recording of a live engine, by name.
pub fn recordings() -> Vec<(String, Value)> {
    let mut recordings = Vec::new();
    for entry in std::fs::read_dir(data("vllm-0.32.0")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        recordings.push((name, serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()));
    }
    recordings.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(recordings.len() >= 20);
    recordings
}

/// The output messages of a recording, each a list of frames.
pub fn outputs(recording: &Value) -> Vec<Vec<Vec<u8>>> {
    let key = if recording["outputs"].is_array() { "outputs" } else { "outputs_after_SIGTERM" };
    let messages = recording[key].as_array().map_or(&[][..], Vec::as_slice);
    messages.iter().map(|frames| frames.as_array().unwrap().iter().map(bytes).collect()).collect()
}

/// The request payloads of a recording.
pub fn requests(recording: &Value) -> Vec<Vec<u8>> {
    let requests = recording["requests"].as_array().map_or(&[][..], Vec::as_slice);
    requests.iter().map(|request| bytes(&request["frames"][1])).collect()
}

/// Logprobs of some positions: ids and values have `width` columns, ranks one. A tick has no ranks of sampled tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub width: usize,
    pub ids: Vec<u32>,
    pub values: Vec<f64>,
    pub ranks: Vec<u32>,
}

impl Logprobs {
    /// What a tick has of those of sampled tokens.
    pub fn without_ranks(self) -> Self {
        Self { ranks: Vec::new(), ..self }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    Token(u32),
    Text(String),
}

/// One row, as an engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    pub id: String,
    pub tokens: Vec<u32>,
    pub logprobs: Option<Logprobs>,
    pub prompt_logprobs: Option<Logprobs>,
    pub finish: Option<u8>,
    pub stop: Option<Stop>,
    pub cached: u32,
}

impl Output {
    pub fn new(id: &str, tokens: &[u32]) -> Self {
        let tokens = tokens.to_vec();
        let id = id.to_owned();
        Self { id, tokens, logprobs: None, prompt_logprobs: None, finish: None, stop: None, cached: 0 }
    }
}

/// How arrays and ends are written.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub integers: &'static str,
    pub floats: &'static str,
    pub in_frames: bool,
    pub omit_defaults: bool,
    /// Fields that are of no use here have their default, as they mostly do; else what no other field has.
    pub unused: bool,
    /// Elements of a later version, at the end of each struct.
    pub more: usize,
}

pub const PLAIN: Style =
    Style { integers: "<i8", floats: "<f8", in_frames: false, omit_defaults: false, unused: false, more: 0 };

/// One message, as an engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub engine_index: u32,
    pub outputs: Vec<Output>,
    pub load: Option<(u64, u64, f64)>,
    pub finished: Vec<String>,
    pub utility: Option<(i64, Option<String>)>,
    pub wave_complete: Option<u64>,
    pub start_wave: Option<u64>,
}

impl Message {
    pub fn of(outputs: Vec<Output>) -> Self {
        Self {
            engine_index: 0,
            outputs,
            load: None,
            finished: Vec::new(),
            utility: None,
            wave_complete: None,
            start_wave: None,
        }
    }

    /// What a tick has of it.
    pub fn as_told(&self) -> Self {
        let mut message = self.clone();
        for output in &mut message.outputs {
            output.logprobs = output.logprobs.take().map(Logprobs::without_ranks);
        }
        message
    }

    /// Frames in the layout whose `structs` these are.
    pub fn encode(&self, structs: &Value, style: Style) -> Vec<Vec<u8>> {
        let mut encoder = Encoder { style, frames: vec![Vec::new()] };
        let outputs = self.outputs.iter().map(|output| encoder.output(output, structs)).collect();
        let outputs = Node::Array(outputs);
        let message = encoder.structure(&structs["EngineCoreOutputs"], |_, name| match name {
            "engine_index" => Some(Node::Int(self.engine_index.into())),
            "outputs" => Some(outputs.clone()),
            "scheduler_stats" => Some(self.load.map_or(Node::Nil, |(running, waiting, usage)| {
                Node::map(vec![
                    ("num_running_reqs", Node::Int(running.into())),
                    ("of_a_later_version", Node::map(vec![("a", Node::Array(vec![Node::Nil]))])),
                    ("num_waiting_reqs", Node::Int(waiting.into())),
                    ("kv_cache_usage", Node::Float(usage)),
                ])
            })),
            "utility_output" => Some(self.utility.as_ref().map_or(Node::Nil, |(call_id, failure)| {
                let failure = failure.as_deref().map_or(Node::Nil, Node::str);
                Node::Array(vec![Node::Int(i128::from(*call_id)), failure, Node::Array(vec![Node::Nil, Node::Nil])])
            })),
            "finished_requests" => Some(match self.finished.is_empty() {
                true => Node::Nil,
                false => Node::Array(self.finished.iter().map(|id| Node::str(id)).collect()),
            }),
            "wave_complete" => Some(optional(self.wave_complete)),
            "start_wave" => Some(optional(self.start_wave)),
            _ => None,
        });
        encoder.frames[0] = message.pack();
        encoder.frames
    }
}

fn optional<T: Into<i128>>(value: Option<T>) -> Node {
    value.map_or(Node::Nil, |value| Node::Int(value.into()))
}

struct Encoder {
    style: Style,
    frames: Vec<Vec<u8>>,
}

impl Encoder {
    /// A positional struct; a field that `value` does not know has what no other field has.
    fn structure(&mut self, names: &Value, mut value: impl FnMut(&mut Self, &str) -> Option<Node>) -> Node {
        let strange = || Node::map(vec![("new", Node::Array(vec![Node::Bin(vec![1, 2, 3]), Node::Int(-1)]))]);
        let Style { omit_defaults: omit, unused, .. } = self.style;
        let mut items = Vec::new();
        for name in names.as_array().unwrap() {
            let known = value(self, name.as_str().unwrap());
            items.push(known.unwrap_or_else(|| if omit || unused { Node::Nil } else { strange() }));
        }
        while omit && items.len() > 2 && items.last() == Some(&Node::Nil) {
            items.pop();
        }
        assert!(!omit || self.style.more == 0);
        items.extend((0..self.style.more).map(|_| strange()));
        Node::Array(items)
    }

    fn output(&mut self, output: &Output, structs: &Value) -> Node {
        self.structure(&structs["EngineCoreOutput"], |encoder, name| match name {
            "request_id" => Some(Node::str(&output.id)),
            "new_token_ids" => Some(Node::ints(&output.tokens)),
            "new_logprobs" => Some(encoder.logprobs(output.logprobs.as_ref())),
            "new_prompt_logprobs_tensors" => Some(encoder.logprobs(output.prompt_logprobs.as_ref())),
            "finish_reason" => Some(optional(output.finish)),
            "stop_reason" => Some(match &output.stop {
                None => Node::Nil,
                Some(Stop::Token(id)) => Node::Int((*id).into()),
                Some(Stop::Text(text)) => Node::str(text),
            }),
            "num_cached_tokens" => Some(Node::Int(output.cached.into())),
            "prefill_stats" if output.cached == 0 => Some(Node::Nil),
            "prefill_stats" => Some(Node::map(vec![
                ("num_prompt_tokens", Node::Int(i128::from(output.cached) + 1)),
                ("num_computed_tokens", Node::Int(1)),
                ("num_cached_tokens", Node::Int(output.cached.into())),
            ])),
            _ => None,
        })
    }

    fn logprobs(&mut self, logprobs: Option<&Logprobs>) -> Node {
        let Some(Logprobs { width, ids, values, ranks }) = logprobs else { return Node::Nil };
        let positions = ranks.len();
        let (integers, floats) = (self.style.integers, self.style.floats);
        Node::Array(vec![
            self.array(integers, &[positions, *width], &integer_bytes(integers, ids)),
            self.array(floats, &[positions, *width], &float_bytes(floats, values)),
            self.array(integers, &[positions], &integer_bytes(integers, ranks)),
            Node::Nil,
        ])
    }

    fn array(&mut self, dtype: &str, shape: &[usize], bytes: &[u8]) -> Node {
        let data = if self.style.in_frames {
            self.frames.push(bytes.to_vec());
            Node::Int(self.frames.len() as i128 - 1)
        } else {
            Node::Ext(3, bytes.to_vec())
        };
        array(dtype, shape, data)
    }
}

/// `[dtype, shape, data]`.
pub fn array(dtype: &str, shape: &[usize], data: Node) -> Node {
    let shape = shape.iter().map(|length| Node::Int(*length as i128)).collect();
    Node::Array(vec![Node::str(dtype), Node::Array(shape), data])
}

fn integer_bytes(dtype: &str, values: &[u32]) -> Vec<u8> {
    let width = match dtype.trim_start_matches(['<', '=', '|', 'u', 'i']) {
        "1" | "nt8" => 1,
        "2" | "nt16" => 2,
        "4" | "nt32" => 4,
        "8" | "nt64" => 8,
        other => panic!("{other}"),
    };
    values.iter().flat_map(|value| u64::from(*value).to_le_bytes().into_iter().take(width)).collect()
}

fn float_bytes(dtype: &str, values: &[f64]) -> Vec<u8> {
    let narrow = |value: &f64| (*value as f32).to_le_bytes();
    match dtype.trim_start_matches(['<', '=']) {
        "f4" | "float32" => values.iter().flat_map(narrow).collect(),
        "f8" | "float64" => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        "bfloat16" => values.iter().flat_map(|value| narrow(value)[2..].to_vec()).collect(),
        other => panic!("{other}"),
    }
}

/// What a tick says, its ranges resolved. A sampled token's own logprobs and the candidates' must agree.
pub fn resolve(frame: &[u8], tick: &Tick) -> Message {
    let text =
        |range: &Range<u32>| std::str::from_utf8(&frame[range.start as usize..range.end as usize]).unwrap().to_owned();
    let span = |range: &Range<u32>| range.start as usize..range.end as usize;
    let mut outputs: Vec<Output> = Vec::new();
    for row in &tick.rows {
        let tops = tick.tops(row);
        let width = tops.width.max(1);
        let sampled = &tick.logprobs[span(&row.logprobs)];
        let tokens = tick.token_ids[span(&row.tokens)].to_vec();
        let logprobs = (!sampled.is_empty()).then(|| {
            let (ids, values) = match tops.ids.is_empty() {
                true => (tokens.clone(), sampled.to_vec()),
                false => (tops.ids.to_vec(), tops.logprobs.to_vec()),
            };
            let firsts: Vec<f64> = values.iter().copied().step_by(width).collect();
            assert_eq!(firsts, sampled);
            Logprobs { width, ids, values, ranks: Vec::new() }
        });
        outputs.push(Output {
            id: text(&row.id),
            tokens,
            logprobs,
            prompt_logprobs: tick.prompt_logprobs(row).map(|prompt| Logprobs {
                width: prompt.width as usize,
                ids: prompt.token_ids.clone(),
                values: prompt.logprobs.clone(),
                ranks: prompt.ranks.clone(),
            }),
            finish: row.finish.map(|finish| match finish {
                FinishReason::Stop => 0,
                FinishReason::Length => 1,
                FinishReason::Abort => 2,
                FinishReason::Error => 3,
                FinishReason::Repetition => 4,
            }),
            stop: tick.stop_reason(row).map(|reason| match reason {
                StopReason::Token(id) => Stop::Token(*id),
                StopReason::Text(range) => Stop::Text(text(range)),
            }),
            cached: row.cached_tokens,
        });
    }
    Message {
        engine_index: tick.engine_index.unwrap(),
        outputs,
        load: tick.load.map(|Load { engine_index, running, waiting, kv_usage }| {
            assert_eq!(Some(engine_index), tick.engine_index);
            (running, waiting, kv_usage)
        }),
        finished: tick.finished.iter().map(text).collect(),
        utility: tick.utility.clone().map(|utility| (utility.call_id, utility.failure)),
        wave_complete: tick.wave_complete,
        start_wave: tick.start_wave,
    }
}
