use crate::common::node::Node;
use crate::common::vllm::{recordings, requests, versions};
use _codec::protocol::request::decode_abort;
use _codec::protocol::vllm::{
    Constraint, Layout, Request, Sampling, StructuredOutputs, decode_request, encode_request, encode_start_wave,
};
use proptest::prelude::*;
use std::borrow::Cow;

#[test]
fn recorded_requests_are_encoded_to_the_same_meaning() {
    let layout = Layout::select("0.32.0").unwrap().layout;
    let mut compared = 0;
    for (name, recording) in recordings() {
        for payload in requests(&recording) {
            let request = decode_request(&payload, layout).unwrap();
            let encoded = encode_request(&request, layout);
            assert_eq!(Node::unpack(&encoded).normal(), Node::unpack(&payload).normal(), "{name}");
            compared += 1;
        }
        if let Some(frames) = recording["abort_frames"].as_array() {
            assert_eq!(decode_abort(&crate::common::bytes(&frames[1])).unwrap(), ["ab-1"]);
        }
    }
    assert_eq!(compared, 28);
}

#[test]
fn recorded_requests_decode_to_what_was_asked() {
    let layout = Layout::select("0.32.0").unwrap().layout;
    let recordings = recordings();
    let first = |name: &str| {
        let (_, recording) = recordings.iter().find(|(recorded, _)| recorded == name).unwrap();
        requests(recording).remove(0)
    };
    let plain = Sampling {
        max_tokens: 3,
        temperature: 0.0,
        eos_token_id: Some(2),
        all_stop_token_ids: vec![2].into(),
        ..Sampling::default()
    };
    let guided = |constraint| StructuredOutputs::new(constraint, Some("guidance".into()));
    for (name, expected) in [
        ("length", plain.clone()),
        ("stop_token", Sampling { max_tokens: 20, stop_token_ids: vec![7042].into(), ..plain.clone() }),
        ("logit_bias", Sampling { logit_bias: vec![(3575, -100.0)], ..plain.clone() }),
        ("logprobs0", Sampling { max_tokens: 8, logprobs: Some(0), ..plain.clone() }),
        (
            "prompt_logprobs2",
            Sampling { max_tokens: 2, prompt_logprobs: Some(2), skip_reading_prefix_cache: true, ..plain.clone() },
        ),
        ("min_tokens", Sampling { max_tokens: 20, min_tokens: 15, ..plain.clone() }),
        ("batch8", Sampling { max_tokens: 12, temperature: 0.8, seed: Some(0), ..plain.clone() }),
        ("abort", Sampling { max_tokens: 200, temperature: 0.0, ignore_eos: true, ..Sampling::default() }),
        (
            "choice",
            Sampling {
                max_tokens: 20,
                structured_outputs: Some(guided(Constraint::Choice(vec!["yes".into(), "no".into()]))),
                ..plain.clone()
            },
        ),
        (
            "json_object",
            Sampling { max_tokens: 40, structured_outputs: Some(guided(Constraint::JsonObject)), ..plain.clone() },
        ),
        (
            "regex",
            Sampling {
                max_tokens: 20,
                structured_outputs: Some(guided(Constraint::Regex("\\d{3}-\\d{4}".into()))),
                ..plain.clone()
            },
        ),
    ] {
        let payload = first(name);
        let request = decode_request(&payload, layout).unwrap();
        assert_eq!(request.sampling, expected, "{name}");
        assert_eq!((request.arrival_time, request.priority, request.data_parallel_rank), (1.0, 0, None));
    }
}

#[test]
fn the_end_of_sequence_is_where_a_version_looks_for_it() {
    let sampling = Sampling { eos_token_id: Some(2), ..Sampling::default() };
    let request = Request::new("r", vec![1], sampling);
    for (name, structs, layout) in versions() {
        let tree = Node::unpack(&encode_request(&request, layout));
        let fields = structs["EngineCoreRequest"].as_array().unwrap();
        let place = |wanted: &str| fields.iter().position(|field| field == wanted);
        let Node::Map(pairs) = &tree.items()[place("sampling_params").unwrap()] else { panic!() };
        let in_sampling = pairs.iter().any(|(key, value)| key.text() == "_eos_token_id" && *value == Node::Int(2));
        let in_request = place("eos_token_id").is_some_and(|place| tree.items()[place] == Node::Int(2));
        assert!(in_sampling != in_request, "{name}");
        assert_eq!(tree.items().len(), fields.len());
        // Every key is one that the version has.
        for (key, _) in pairs {
            assert!(
                structs["SamplingParams"].as_array().unwrap().iter().any(|known| known == key.text()),
                "{name} {key:?}"
            );
        }
    }
}

#[test]
fn a_prefix_is_a_request_and_more_is_skipped() {
    for (name, structs, layout) in versions() {
        let request = Request::new("r", vec![1, 300], Sampling::default());
        let Node::Array(mut items) = Node::unpack(&encode_request(&request, layout)) else { panic!() };
        items.push(Node::map(vec![("new", Node::Bin(vec![1]))]));
        assert_eq!(decode_request(&Node::Array(items.clone()).pack(), layout).unwrap(), request, "{name}");
        let sampling =
            structs["EngineCoreRequest"].as_array().unwrap().iter().position(|field| field == "sampling_params");
        items.truncate(sampling.unwrap() + 1);
        assert_eq!(decode_request(&Node::Array(items.clone()).pack(), layout).unwrap(), request, "{name}");
        items.pop();
        let refusal = decode_request(&Node::Array(items).pack(), layout).unwrap_err().to_string();
        assert!(refusal.starts_with("expected elements up to sampling_params or more, seen 3"), "{refusal}");
    }
}

#[test]
fn a_bad_field_is_named() {
    let layout = Layout::select("0.32.0").unwrap().layout;
    let refusal = |sampling: Vec<(&str, Node)>| {
        let items = vec![Node::str("r"), Node::ints(&[1]), Node::Nil, Node::map(sampling)];
        decode_request(&Node::Array(items).pack(), layout).unwrap_err().to_string()
    };
    for (key, value, expected) in [
        ("top_k", Node::str("all"), "sampling_params.top_k: expected an integer in -2^63..2^63, seen a string"),
        ("logprobs", Node::Int(1 << 40), "sampling_params.logprobs: expected an integer in -2^31..2^31"),
        (
            "_bad_words_token_ids",
            Node::Array(vec![Node::Int(1)]),
            "sampling_params._bad_words_token_ids[0]: expected an array",
        ),
        (
            "structured_outputs",
            Node::map(vec![]),
            "sampling_params.structured_outputs: expected one constraint, seen 0",
        ),
        (
            "structured_outputs",
            Node::map(vec![("json_object", Node::Bool(true)), ("regex", Node::str("a"))]),
            "sampling_params.structured_outputs: expected one constraint, seen 2",
        ),
        (
            "structured_outputs",
            Node::map(vec![("choice", Node::Array(vec![Node::str("a"), Node::Int(1)]))]),
            "sampling_params.structured_outputs.choice[1]: expected a string, seen an integer",
        ),
    ] {
        let refused = refusal(vec![(key, value)]);
        assert!(refused.starts_with(expected), "{refused}");
    }
}

#[test]
fn a_wave_that_no_engine_has_begun() {
    for wave in [0, 7, u64::MAX] {
        let expected = Node::Array(vec![Node::Int(wave.into()), Node::Nil]);
        assert_eq!(Node::unpack(&encode_start_wave(wave)), expected);
    }
}

fn number() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("comparable", |value| !value.is_nan())
}

fn any_constraint() -> impl Strategy<Value = Constraint<'static>> {
    let text = || any::<String>().prop_map(Cow::Owned);
    prop_oneof![
        text().prop_map(Constraint::Json),
        text().prop_map(Constraint::Regex),
        proptest::collection::vec(text(), 0..4).prop_map(Constraint::Choice),
        text().prop_map(Constraint::Grammar),
        Just(Constraint::JsonObject),
        text().prop_map(Constraint::StructuralTag),
    ]
}

fn any_sampling() -> impl Strategy<Value = Sampling<'static>> {
    let bounds = (any::<u32>(), any::<u32>(), any::<i64>(), any::<Option<i64>>(), any::<bool>(), any::<bool>());
    let numbers = (number(), number(), number(), number(), number(), number());
    let few = || proptest::collection::vec(any::<u32>(), 0..20);
    let ids = (few(), any::<Option<u32>>(), few(), proptest::option::of(few()));
    let words = proptest::collection::vec(few(), 0..4);
    let wanted = (any::<Option<i32>>(), any::<Option<i32>>());
    let texts = (any::<Option<String>>(), any::<Option<String>>(), any::<bool>(), any::<bool>());
    let outputs = proptest::option::of((any_constraint(), texts).prop_map(|(constraint, texts)| StructuredOutputs {
        constraint,
        backend: texts.0.map(Cow::Owned),
        whitespace_pattern: texts.1.map(Cow::Owned),
        disable_any_whitespace: texts.2,
        disable_additional_properties: texts.3,
    }));
    let bias = proptest::collection::vec((any::<u32>(), number()), 0..4);
    (bounds, numbers, ids, wanted, outputs, bias, words).prop_map(
        |(bounds, numbers, ids, wanted, structured_outputs, logit_bias, bad_words_token_ids)| Sampling {
            max_tokens: bounds.0,
            min_tokens: bounds.1,
            top_k: bounds.2,
            seed: bounds.3,
            ignore_eos: bounds.4,
            skip_reading_prefix_cache: bounds.5,
            temperature: numbers.0,
            top_p: numbers.1,
            min_p: numbers.2,
            presence_penalty: numbers.3,
            frequency_penalty: numbers.4,
            repetition_penalty: numbers.5,
            stop_token_ids: ids.0.into(),
            eos_token_id: ids.1,
            all_stop_token_ids: ids.2.into(),
            allowed_token_ids: ids.3.map(Cow::Owned),
            logprobs: wanted.0,
            prompt_logprobs: wanted.1,
            structured_outputs,
            logit_bias,
            bad_words_token_ids,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_requests_come_back_in_every_version(
        request_id in ".{0,40}",
        prompt_token_ids: Vec<u32>,
        sampling in any_sampling(),
        arrival_time in number(),
        cache_salt: Option<String>,
        (data_parallel_rank, client_index, current_wave, priority) in any::<(Option<u32>, u32, u64, i64)>(),
    ) {
        let request = Request {
            request_id: request_id.into(),
            prompt_token_ids: prompt_token_ids.into(),
            sampling,
            arrival_time,
            cache_salt: cache_salt.map(Cow::Owned),
            data_parallel_rank,
            client_index,
            current_wave,
            priority,
        };
        for (name, _, layout) in versions() {
            let payload = encode_request(&request, layout);
            prop_assert_eq!(&decode_request(&payload, layout).unwrap(), &request, "{}", name);
        }
    }

    #[test]
    fn a_truncated_request_is_refused_wherever_it_ends(sampling in any_sampling()) {
        let request = Request::new("r", vec![1, 70_000], sampling);
        let (_, _, layout) = versions().pop().unwrap();
        let payload = encode_request(&request, layout);
        for end in 0..payload.len() {
            prop_assert!(decode_request(&payload[..end], layout).is_err(), "{}", end);
        }
    }
}
