use crate::common::node::Node;
use crate::common::vllm::{Logprobs, Message, Output, PLAIN, Stop, Style, outputs, recordings, resolve, versions};
use _codec::protocol::vllm::Layout;
use _codec::protocol::{ENGINE_DEAD, FinishReason, Message as Kind, Protocol, Tick};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

fn recorded() -> Protocol {
    Protocol::Vllm(Layout::select("0.32.0").unwrap().layout)
}

fn decode(protocol: Protocol, frames: &[Vec<u8>], tick: &mut Tick) -> Result<Message, String> {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    match protocol.decode(&frames, tick) {
        Ok(Kind::Tick) => Ok(resolve(frames[0], tick)),
        Ok(Kind::EngineDead) => panic!("not a dead frame"),
        Err(error) => Err(error.to_string()),
    }
}

/// An array of a recording, by its bytes.
fn elements(array: &Node, frames: &[Vec<u8>]) -> Vec<f64> {
    let [dtype, _, data] = array.items() else { panic!() };
    let bytes = match data {
        Node::Ext(3, bytes) => bytes,
        index => &frames[index.int() as usize],
    };
    let element = |bytes: &[u8]| match dtype.text() {
        "<i4" | "int32" => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
        "<i8" => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        "<f4" | "float32" => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        other => panic!("{other}"),
    };
    bytes.chunks(if dtype.text() == "<i8" { 8 } else { 4 }).map(element).collect()
}

/// The three arrays of a recording's row as they stand there.
fn recorded_logprobs(field: &Node, frames: &[Vec<u8>]) -> Option<Logprobs> {
    let Node::Array(arrays) = field else { return None };
    let integers = |array| elements(array, frames).into_iter().map(|value| value as u32).collect();
    let (ids, ranks): (Vec<u32>, Vec<u32>) = (integers(&arrays[0]), integers(&arrays[2]));
    Some(Logprobs { width: ids.len() / ranks.len(), ids, values: elements(&arrays[1], frames), ranks })
}

#[test]
fn recordings_replay_to_what_was_generated() {
    let mut tick = Tick::default();
    let (mut sampled, mut prompts, mut loads) = (0, 0, 0);
    for (name, recording) in recordings() {
        let mut tokens: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for frames in outputs(&recording) {
            let message = decode(recorded(), &frames, &mut tick).unwrap();
            let tree = Node::unpack(&frames[0]);
            loads += usize::from(message.load.is_some());
            for (row, fields) in message.outputs.iter().zip(tree.items()[1].items()) {
                let fields = fields.items();
                let expected = recorded_logprobs(&fields[2], &frames).map(Logprobs::without_ranks);
                assert_eq!(row.logprobs, expected, "{name}");
                assert_eq!(row.prompt_logprobs, recorded_logprobs(&fields[3], &frames), "{name}");
                sampled += row.logprobs.as_ref().map_or(0, |_| row.tokens.len());
                prompts += row.prompt_logprobs.as_ref().map_or(0, |logprobs| logprobs.ranks.len());
                tokens.entry(row.id.clone()).or_default().extend(&row.tokens);
                if let Some(finish) = row.finish {
                    ends.insert(row.id.clone(), (finish, row.stop.clone()));
                }
            }
        }
        let Value::Object(expected) = &recording["token_ids"] else { continue };
        for (id, ids) in expected {
            let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokens.get(id).cloned().unwrap_or_default(), ids, "{name} {id}");
        }
        let Value::Object(expected) = &recording["finish"] else { panic!("{name}") };
        assert_eq!(ends.len(), expected.len(), "{name}");
        for (id, finish) in expected {
            let reasons = ["stop", "length", "abort", "error", "repetition"];
            let reason = reasons.iter().position(|reason| finish[0] == **reason).unwrap() as u8;
            let stop = finish[1].as_u64().map(|token| Stop::Token(token as u32));
            assert_eq!(ends[id], (reason, stop), "{name} {id}");
        }
    }
    // Nothing would have been compared, were these none.
    assert_eq!((sampled, prompts), (25, 36));
    assert!(loads > 200);
}

#[test]
fn a_truncated_recording_is_refused_wherever_it_ends() {
    let mut tick = Tick::default();
    for (name, recording) in recordings() {
        // The first messages of a recording have every kind of field.
        for mut frames in outputs(&recording).into_iter().take(4) {
            let whole = frames[0].clone();
            for end in 0..whole.len() {
                frames[0] = whole[..end].to_vec();
                assert!(decode(recorded(), &frames, &mut tick).is_err(), "{name}: {end}");
            }
            frames[0] = [&whole[..], &[0xc0]].concat();
            assert!(decode(recorded(), &frames, &mut tick).unwrap_err().contains("seen 1 more bytes"));
        }
    }
}

fn any_logprobs(positions: usize) -> impl Strategy<Value = Logprobs> {
    (1usize..5).prop_flat_map(move |width| {
        let value = prop_oneof![-50f64..=0.0, Just(f64::NEG_INFINITY)];
        let count = positions * width;
        let ids = proptest::collection::vec(any::<u32>(), count);
        let values = proptest::collection::vec(value, count);
        let ranks = proptest::collection::vec(any::<u32>(), positions);
        (ids, values, ranks).prop_map(move |(ids, values, ranks)| Logprobs { width, ids, values, ranks })
    })
}

fn any_output() -> impl Strategy<Value = Output> {
    let tokens = proptest::collection::vec(any::<u32>(), 0..4);
    let stop = prop_oneof![any::<u32>().prop_map(Stop::Token), ".{0,20}".prop_map(Stop::Text)];
    (tokens, 1usize..9)
        .prop_flat_map(move |(tokens, prompt)| {
            // Of one column there is nothing to compare but the sampled tokens themselves.
            let sampled = tokens.clone();
            let logprobs = any_logprobs(tokens.len()).prop_map(move |logprobs| match logprobs.width {
                1 => Logprobs { ids: sampled.clone(), ..logprobs },
                _ => logprobs,
            });
            let logprobs = proptest::option::of(logprobs);
            let tokens = Just(tokens);
            let prompt = proptest::option::weighted(0.2, any_logprobs(prompt));
            let finish = proptest::option::of(0u8..5);
            (".{0,40}", tokens, logprobs, prompt, finish, proptest::option::of(stop.clone()), any::<u32>())
        })
        .prop_map(|(id, tokens, logprobs, prompt_logprobs, finish, stop, cached)| {
            let logprobs = logprobs.filter(|_| !tokens.is_empty());
            Output { id, tokens, logprobs, prompt_logprobs, finish, stop, cached }
        })
}

fn any_message() -> impl Strategy<Value = Message> {
    let outputs = proptest::collection::vec(any_output(), 0..8);
    let load = proptest::option::of((any::<u64>(), any::<u64>(), 0.0..=1.0));
    let news = any::<(Option<(i64, Option<String>)>, Option<u64>, Option<u64>)>();
    (any::<u32>(), outputs, load, any::<Vec<String>>(), news).prop_map(
        |(engine_index, outputs, load, finished, (utility, wave_complete, start_wave))| Message {
            engine_index,
            outputs,
            load,
            finished,
            utility,
            wave_complete,
            start_wave,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_messages_come_back_in_every_version(message in any_message(), in_frames: bool) {
        let mut tick = Tick::default();
        for (name, structs, layout) in versions() {
            for style in [
                Style { in_frames, ..PLAIN },
                Style { omit_defaults: true, ..PLAIN },
                Style { more: 3, ..PLAIN },
            ] {
                let frames = message.encode(&structs, style);
                let decoded = decode(Protocol::Vllm(layout), &frames, &mut tick);
                prop_assert_eq!(decoded.unwrap(), message.as_told(), "{} {:?}", name, style);
            }
        }
    }
}

fn newest() -> (Value, Protocol) {
    let (_, structs, layout) = versions().pop().unwrap();
    (structs, Protocol::Vllm(layout))
}

/// A message of one row, some of whose elements are others.
fn altered(elements: &[(usize, Node)]) -> Result<Tick, String> {
    let (structs, protocol) = newest();
    let mut message = Node::unpack(&Message::of(vec![Output::new("r", &[7, 9])]).encode(&structs, PLAIN)[0]);
    let Node::Array(batch) = &mut message else { panic!() };
    let Node::Array(outputs) = &mut batch[1] else { panic!() };
    let Node::Array(row) = &mut outputs[0] else { panic!() };
    for (index, element) in elements {
        row[*index] = element.clone();
    }
    let mut tick = Tick::default();
    match protocol.decode(&[&message.pack()], &mut tick) {
        Ok(_) => Ok(tick),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_finish_reason_has_its_name_and_unknown_ones_are_errors() {
    use FinishReason::{Abort, Error, Length, Repetition, Stop};
    for (value, expected) in
        [(0, Stop), (1, Length), (2, Abort), (3, Error), (4, Repetition), (5, Error), (1 << 40, Error)]
    {
        let tick = altered(&[(5, Node::Int(value))]).unwrap();
        assert_eq!(tick.rows[0].finish, Some(expected));
    }
    assert_eq!(altered(&[(5, Node::Nil)]).unwrap().rows[0].finish, None);
}

#[test]
fn logprobs_of_tokens_beyond_a_stop_are_dropped_and_too_few_are_refused() {
    let (structs, protocol) = newest();
    let logprobs = |positions: usize| {
        let values = (0..positions * 2).map(|index| -(index as f64)).collect();
        Some(Logprobs { width: 2, ids: vec![5; positions * 2], values, ranks: vec![1; positions] })
    };
    let mut tick = Tick::default();
    let longer = Message::of(vec![Output { logprobs: logprobs(3), ..Output::new("r", &[7, 9]) }]);
    let decoded = decode(protocol, &longer.encode(&structs, PLAIN), &mut tick).unwrap();
    assert_eq!(decoded.outputs[0].logprobs, logprobs(2).map(Logprobs::without_ranks));
    let shorter = Message::of(vec![Output { logprobs: logprobs(1), ..Output::new("r", &[7, 9]) }]);
    let refusal = decode(protocol, &shorter.encode(&structs, PLAIN), &mut tick).unwrap_err();
    let expected = "outputs[0].new_logprobs: expected 2 positions or more, as many as new_token_ids, seen 1";
    assert!(refusal.starts_with(expected), "{refusal}");
}

#[test]
fn a_bad_field_is_named() {
    for (element, value, expected) in [
        (0, Node::Int(3), "outputs[0].request_id: expected a string, seen an integer"),
        (0, Node::Nil, "outputs[0].request_id: expected a string, seen nil"),
        (1, Node::Nil, "outputs[0].new_token_ids: expected an array, seen nil"),
        (1, Node::Array(vec![Node::Int(-1)]), "outputs[0].new_token_ids[0]: expected an integer in 0..2^32, seen -1"),
        (2, Node::Array(vec![]), "outputs[0].new_logprobs: expected 3 arrays or more, seen 0"),
        (3, Node::Int(1), "outputs[0].new_prompt_logprobs_tensors: expected an array, seen an integer"),
        (5, Node::str("stop"), "outputs[0].finish_reason: expected an integer in 0..2^64, seen a string"),
        (6, Node::Float(1.5), "outputs[0].stop_reason: expected an integer in 0..2^32, seen a float"),
        (
            11,
            Node::map(vec![("num_cached_tokens", Node::Nil)]),
            "outputs[0].prefill_stats.num_cached_tokens: expected an integer in -2^63..2^63, seen nil",
        ),
    ] {
        let refusal = altered(&[(element, value)]).unwrap_err();
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    let (_, protocol) = newest();
    let mut tick = Tick::default();
    let mut refusal =
        |items: Vec<Node>| protocol.decode(&[&Node::Array(items).pack()], &mut tick).unwrap_err().to_string();
    let row = Node::Array(vec![Node::str("r")]);
    assert!(
        refusal(vec![Node::Int(0), Node::Array(vec![row])])
            .starts_with("outputs[0]: expected 2 elements or more, seen 1")
    );
    let usage = Node::map(vec![("kv_cache_usage", Node::str("much"))]);
    let refused = refusal(vec![Node::Int(0), Node::Array(vec![]), usage]);
    assert!(refused.starts_with("scheduler_stats.kv_cache_usage: expected a number, seen a string"), "{refused}");
    assert!(refusal(vec![Node::Int(-1)]).starts_with("engine_index: expected an integer in 0..2^32, seen -1"));
}

#[test]
fn a_request_that_was_never_scheduled_has_no_cached_tokens() {
    let (_, structs, layout) = versions().remove(0);
    let mut message = Node::unpack(&Message::of(vec![Output::new("r", &[])]).encode(&structs, PLAIN)[0]);
    let Node::Array(batch) = &mut message else { panic!() };
    let Node::Array(outputs) = &mut batch[1] else { panic!() };
    let Node::Array(row) = &mut outputs[0] else { panic!() };
    row[10] = Node::Int(-1);
    let mut tick = Tick::default();
    Protocol::Vllm(layout).decode(&[&message.pack()], &mut tick).unwrap();
    assert_eq!(tick.rows[0].cached_tokens, 0);
}

#[test]
fn the_dead_frame_and_an_empty_message() {
    let mut tick = Tick::default();
    assert_eq!(recorded().decode(&[ENGINE_DEAD], &mut tick).unwrap(), Kind::EngineDead);
    assert!(recorded().decode(&[], &mut tick).is_err());
    assert_eq!(recorded().decode(&[&[0x90]], &mut tick).unwrap(), Kind::Tick);
    assert_eq!(tick.engine_index.take(), Some(0));
    assert_eq!(tick, Tick::default());
}
