use crate::common::{bytes, fixtures, request_payloads};
use _codec::msgpack::{Reader, Writer};
use _codec::protocol::request::{ABORT, ADD, decode_abort, encode_abort};
use _codec::protocol::tokenspeed::{ConstraintRefused, Form, Request, Sampling, decode_request, encode_request};
use proptest::prelude::*;
use serde_json::Value;
use std::borrow::Cow;

/// The request that a fixture's `decoded` list means, by the recorded field orders.
fn request_of_fixture(fixtures: &Value, decoded: &Value) -> Request<'static> {
    let position = |order: &str, name: &str| {
        let order = fixtures[order].as_array().unwrap();
        order.iter().position(|field| field == name).unwrap()
    };
    let field = |name: &str| decoded[1 + position("request_field_order", name)].clone();
    let sampling = |name: &str| field("sampling_params")[position("sampling_field_order", name)].clone();
    let ids = |value: Value| value.as_array().map(|ids| ids.iter().map(uint).collect::<Vec<_>>());
    let float = |name: &str| sampling(name).as_f64().unwrap();
    let text = |name: &str| sampling(name).as_str().map(|text| Cow::Owned(text.to_owned()));
    Request {
        rid: Cow::Owned(field("rid").as_str().unwrap().to_owned()),
        input_ids: Cow::Owned(ids(field("input_ids")).unwrap()),
        sampling: Sampling {
            max_new_tokens: Some(uint(&sampling("max_new_tokens"))),
            stop_token_ids: ids(sampling("stop_token_ids")).map(Cow::Owned),
            temperature: float("temperature"),
            top_p: float("top_p"),
            top_k: sampling("top_k").as_i64().unwrap(),
            min_p: float("min_p"),
            frequency_penalty: float("frequency_penalty"),
            presence_penalty: float("presence_penalty"),
            repetition_penalty: float("repetition_penalty"),
            min_new_tokens: uint(&sampling("min_new_tokens")),
            json_schema: text("json_schema"),
            regex: text("regex"),
            ebnf: text("ebnf"),
            structural_tag: text("structural_tag"),
            ignore_eos: sampling("ignore_eos").as_bool().unwrap(),
            seed: sampling("seed").as_i64(),
        },
        return_logprob: field("return_logprob").as_bool().unwrap(),
        stream: field("stream").as_bool().unwrap(),
    }
}

fn uint(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

#[test]
fn recorded_requests_are_encoded_to_the_same_bytes() {
    let fixtures = fixtures();
    for recorded in fixtures["requests"].as_array().unwrap() {
        let request = request_of_fixture(&fixtures, &recorded["decoded"]);
        assert_eq!(bytes(&recorded["frames"][0]), ADD);
        let payload = bytes(&recorded["frames"][1]);
        assert_eq!(decode_request(&payload).unwrap(), (request.clone(), Form::Tagged));
        assert_eq!(encode_request(&request, Form::Tagged).unwrap(), payload);
    }
}

#[test]
fn the_tuple_form_is_laid_out_as_the_first_revision_has_it() {
    let request = Request {
        rid: "r".into(),
        input_ids: vec![1, 300].into(),
        sampling: Sampling {
            max_new_tokens: Some(8),
            stop_token_ids: Some(vec![2].into()),
            temperature: 0.5,
            top_k: -1,
            ignore_eos: true,
            seed: Some(-5),
            ..Sampling::default()
        },
        return_logprob: true,
        stream: false,
    };
    let mut expected = Writer::default();
    expected.array(5);
    expected.str("r");
    expected.u32s(&[1, 300]);
    expected.array(13);
    expected.uint(8);
    expected.u32s(&[2]);
    expected.f64(0.5);
    expected.f64(1.0);
    expected.int(-1);
    for value in [0.0, 0.0, 0.0, 1.0] {
        expected.f64(value);
    }
    expected.uint(0);
    expected.bool(true);
    expected.int(-5);
    expected.uint(1);
    expected.bool(true);
    expected.bool(false);
    let payload = encode_request(&request, Form::Tuple).unwrap();
    assert_eq!(payload, expected.into_bytes());
    assert_eq!(decode_request(&payload).unwrap(), (request, Form::Tuple));
}

#[test]
fn the_tuple_form_refuses_constraints_by_name() {
    let constrained = |name: &str| {
        let mut sampling = Sampling::default();
        let place = match name {
            "json_schema" => &mut sampling.json_schema,
            "regex" => &mut sampling.regex,
            "ebnf" => &mut sampling.ebnf,
            _ => &mut sampling.structural_tag,
        };
        *place = Some("x".into());
        Request { rid: "r".into(), input_ids: vec![1].into(), sampling, return_logprob: false, stream: true }
    };
    for name in ["json_schema", "regex", "ebnf", "structural_tag"] {
        let refused = encode_request(&constrained(name), Form::Tuple).unwrap_err();
        assert_eq!(refused, ConstraintRefused(name));
        assert_eq!(refused.to_string(), format!("the engine's request form has no {name}"));
    }
}

#[test]
fn a_prefix_through_stream_is_a_request() {
    let (_, payload) = request_payloads(&fixtures()).remove(0);
    let (whole, _) = decode_request(&payload).unwrap();
    let mut reader = Reader::new(&payload);
    reader.array().unwrap();
    let start = reader.position();
    reader.skip(11).unwrap();
    let prefix = [&[0x9b], &payload[start..reader.position()]].concat();
    assert_eq!(decode_request(&prefix).unwrap(), (whole, Form::Tagged));
}

#[test]
fn a_bad_field_is_named() {
    let request = Request {
        rid: "r".into(),
        input_ids: vec![1].into(),
        sampling: Sampling { seed: Some(77), ..Sampling::default() },
        return_logprob: false,
        stream: true,
    };
    let mut payload = encode_request(&request, Form::Tagged).unwrap();
    let seed = payload.iter().position(|byte| *byte == 77).unwrap();
    payload[seed] = 0xc3;
    let refusal = decode_request(&payload).unwrap_err();
    assert_eq!(refusal.path(), "sampling_params.seed");
    assert_eq!(refusal.offset(), seed);
    let refusal = decode_request(&[0x93, 0xc0, 0xc0, 0xc0]).unwrap_err();
    assert_eq!(refusal.to_string(), "expected 5 elements, or 11 and more, seen 3 (at byte 0)");
}

#[test]
fn recorded_abort_comes_out_the_same() {
    let fixtures = fixtures();
    let abort = &fixtures["abort"];
    let rids: Vec<&str> = abort["rids"].as_array().unwrap().iter().map(|rid| rid.as_str().unwrap()).collect();
    let payload = bytes(&abort["frames"][1]);
    assert_eq!(bytes(&abort["frames"][0]), ABORT);
    assert_eq!(encode_abort(&rids), payload);
    assert_eq!(decode_abort(&payload).unwrap(), rids);
    for end in 0..payload.len() {
        assert!(decode_abort(&payload[..end]).is_err());
    }
    assert_eq!(decode_abort(&[0x91, 0x01]).unwrap_err().path(), "[0]");
}

#[test]
fn a_truncated_request_is_refused_wherever_it_ends() {
    for (name, payload) in request_payloads(&fixtures()) {
        let (request, _) = decode_request(&payload).unwrap();
        let plain =
            Sampling { json_schema: None, regex: None, ebnf: None, structural_tag: None, ..request.sampling.clone() };
        let tuple = encode_request(&Request { sampling: plain, ..request.clone() }, Form::Tuple).unwrap();
        for payload in [&payload, &tuple] {
            for end in 0..payload.len() {
                assert!(decode_request(&payload[..end]).is_err(), "{name}: {end}");
            }
        }
    }
}

fn number() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("comparable", |value| !value.is_nan())
}

fn any_request(constrained: bool) -> impl Strategy<Value = Request<'static>> {
    let text = move || any::<Option<String>>().prop_map(move |text| text.filter(|_| constrained).map(Cow::Owned));
    let bounds = (any::<Option<u32>>(), any::<Option<Vec<u32>>>(), any::<i64>(), any::<u32>());
    let numbers = (number(), number(), number(), number(), number(), number());
    let sampling = (bounds, numbers, (text(), text(), text(), text()), any::<bool>(), any::<Option<i64>>()).prop_map(
        |(bounds, numbers, texts, ignore_eos, seed)| Sampling {
            max_new_tokens: bounds.0,
            stop_token_ids: bounds.1.map(Cow::Owned),
            temperature: numbers.0,
            top_p: numbers.1,
            top_k: bounds.2,
            min_p: numbers.2,
            frequency_penalty: numbers.3,
            presence_penalty: numbers.4,
            repetition_penalty: numbers.5,
            min_new_tokens: bounds.3,
            json_schema: texts.0,
            regex: texts.1,
            ebnf: texts.2,
            structural_tag: texts.3,
            ignore_eos,
            seed,
        },
    );
    (".{0,40}", any::<Vec<u32>>(), sampling, any::<bool>(), any::<bool>()).prop_map(
        |(rid, input_ids, sampling, return_logprob, stream)| Request {
            rid: rid.into(),
            input_ids: input_ids.into(),
            sampling,
            return_logprob,
            stream,
        },
    )
}

proptest! {
    #[test]
    fn random_tagged_requests_come_back(request in any_request(true)) {
        let payload = encode_request(&request, Form::Tagged).unwrap();
        prop_assert_eq!(decode_request(&payload).unwrap(), (request, Form::Tagged));
    }

    #[test]
    fn random_tuple_requests_come_back(request in any_request(false)) {
        let payload = encode_request(&request, Form::Tuple).unwrap();
        prop_assert_eq!(decode_request(&payload).unwrap(), (request, Form::Tuple));
    }

    #[test]
    fn random_aborts_come_back(rids: Vec<String>) {
        let payload = encode_abort(&rids);
        prop_assert_eq!(decode_abort(&payload).unwrap(), rids);
    }
}
