//! Arrays, as they are in logprobs.

use crate::common::node::Node;
use crate::common::vllm::{Logprobs, Message, Output, PLAIN, Style, array, resolve, versions};
use _codec::protocol::{Protocol, Tick};
use serde_json::Value;

fn newest() -> (Value, Protocol) {
    let (_, structs, layout) = versions().pop().unwrap();
    (structs, Protocol::Vllm(layout))
}

fn row() -> Output {
    Output {
        logprobs: Some(Logprobs {
            width: 3,
            ids: vec![7, 7, 100, 9, 33, 1],
            values: vec![-0.5, -0.5, -1.0, -3.0, -0.25, f64::NEG_INFINITY],
            ranks: vec![1, 3],
        }),
        ..Output::new("r", &[7, 9])
    }
}

#[test]
fn every_width_inline_and_in_frames() {
    let (structs, protocol) = newest();
    let of_prompt = Output { prompt_logprobs: row().logprobs, ..Output::new("s", &[]) };
    let message = Message::of(vec![row(), of_prompt]);
    let mut tick = Tick::default();
    for integers in
        ["<i8", "<i4", "=i2", "|i1", "|u1", "<u2", "=u4", "u8", "i8", "int64", "int32", "int16", "int8", "uint8"]
    {
        for floats in ["<f4", "<f8", "=f4", "f8", "float32", "float64", "bfloat16"] {
            for in_frames in [false, true] {
                let frames = message.encode(&structs, Style { integers, floats, in_frames, ..PLAIN });
                let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                protocol.decode(&frames, &mut tick).unwrap();
                assert_eq!(resolve(frames[0], &tick), message.as_told(), "{integers} {floats}");
            }
        }
    }
}

/// The message of a row whose logprobs are these arrays.
fn with_arrays(token_ids: Node, logprobs: Node, ranks: Node, frames: &[&[u8]]) -> Result<Vec<f64>, String> {
    let (structs, protocol) = newest();
    let mut items = Node::unpack(&Message::of(vec![Output::new("r", &[7, 9])]).encode(&structs, PLAIN)[0]);
    let Node::Array(message) = &mut items else { panic!() };
    let Node::Array(outputs) = &mut message[1] else { panic!() };
    let Node::Array(output) = &mut outputs[0] else { panic!() };
    output[2] = Node::Array(vec![token_ids, logprobs, ranks, Node::Nil]);
    let first = items.pack();
    let frames: Vec<&[u8]> = [&first[..]].into_iter().chain(frames.iter().copied()).collect();
    let mut tick = Tick::default();
    match protocol.decode(&frames, &mut tick) {
        Ok(_) => Ok(tick.logprobs),
        Err(error) => Err(error.to_string()),
    }
}

fn raw(bytes: &[u8]) -> Node {
    Node::Ext(3, bytes.to_vec())
}

fn ids() -> Node {
    array("|u1", &[2, 1], raw(&[7, 9]))
}

fn ranks() -> Node {
    array("|u1", &[2], raw(&[1, 2]))
}

fn floats(dtype: &str, bytes: &[u8]) -> Result<Vec<f64>, String> {
    with_arrays(ids(), array(dtype, &[2, 1], raw(bytes)), ranks(), &[])
}

#[test]
fn floats_widen_exactly() {
    let halves = |one: u16, other: u16| floats("<f2", &[one.to_le_bytes(), other.to_le_bytes()].concat()).unwrap();
    assert_eq!(halves(0x3c00, 0xc000), [1.0, -2.0]);
    assert_eq!(halves(0x7bff, 0x0001), [65504.0, 5.960_464_477_539_063e-8]);
    assert_eq!(halves(0x0400, 0xfc00), [6.103_515_625e-5, f64::NEG_INFINITY]);
    assert_eq!(halves(0x3555, 0x83ff), [0.333_251_953_125, -6.097_555_160_522_461e-5]);
    assert!(halves(0x7e00, 0)[0].is_nan());
    let single = [0.1f32, -f32::MIN_POSITIVE];
    let wide = floats("<f4", &[single[0].to_le_bytes(), single[1].to_le_bytes()].concat()).unwrap();
    assert_eq!(wide, [f64::from(single[0]), f64::from(single[1])]);
    assert_ne!(wide[0], 0.1);
}

#[test]
fn a_bad_array_is_named() {
    let place = "outputs[0].new_logprobs.";
    let eight = [0; 8];
    let float = || array("<f4", &[2, 1], raw(&eight));
    let check = |outcome: Result<Vec<f64>, String>, expected: &str| {
        let refusal = outcome.unwrap_err();
        let expected = format!("{place}{expected}");
        assert!(refusal.starts_with(&expected), "{refusal}\n{expected}");
    };
    check(floats(">f4", &eight), "logprobs.dtype: expected integers or floats, little-endian, seen \">f4\"");
    check(floats("|O", &eight), "logprobs.dtype: expected integers or floats, little-endian, seen \"|O\"");
    check(floats("<i4", &eight), "logprobs.dtype: expected floats, seen integers");
    check(floats("<f4", &eight[..7]), "logprobs: expected data of 2 by 1 elements of 4 bytes, seen 7 bytes");
    let flat = array("|u1", &[2], raw(&[7, 9]));
    check(with_arrays(flat, float(), ranks(), &[]), "logprob_token_ids: expected two dimensions, seen one");
    let cube = array("|u1", &[2, 1, 1], raw(&[7, 9]));
    check(with_arrays(cube, float(), ranks(), &[]), "logprob_token_ids.shape: expected one or two dimensions, seen 3");
    let none = array("|u1", &[2, 0], raw(&[]));
    check(with_arrays(none, float(), ranks(), &[]), "logprob_token_ids: expected columns, seen none");
    let negative = array("|i1", &[2, 2], raw(&[7, 7, 0xff, 9]));
    let wide = || array("<f4", &[2, 2], raw(&[0; 16]));
    check(with_arrays(wide(), wide(), ranks(), &[]), "logprob_token_ids.dtype: expected integers, seen floats");
    check(with_arrays(negative, wide(), ranks(), &[]), "logprob_token_ids[2]: expected integers in 0..2^32");
    check(with_arrays(ids(), wide(), ranks(), &[]), "logprobs: expected shape (2, 1), seen shape (2, 2)");
    let long = array("|u1", &[3], raw(&[1, 2, 3]));
    check(with_arrays(ids(), float(), long, &[]), "sampled_token_ranks: expected shape (2), seen shape (3)");
    let huge = array("<f8", &[u32::MAX as usize, u32::MAX as usize], raw(&[]));
    check(with_arrays(ids(), huge, ranks(), &[]), "logprobs: expected data of 4294967295 by 4294967295 elements");
    let kind = array("<f4", &[2, 1], Node::Ext(4, eight.to_vec()));
    check(with_arrays(ids(), kind, ranks(), &[]), "logprobs.data: expected an extension value of type 3, seen type 4");
    let pair = Node::Array(vec![Node::str("<f4"), Node::Array(vec![Node::Int(2), Node::Int(1)])]);
    check(with_arrays(ids(), pair, ranks(), &[]), "logprobs: expected a dtype, a shape and data, seen 2 elements");
}

#[test]
fn an_auxiliary_frame_is_there_and_serves_once() {
    let eight = [0; 8];
    let framed = |index| array("<f4", &[2, 1], Node::Int(index));
    let at = |index, frames: &[&[u8]]| with_arrays(ids(), framed(index), ranks(), frames);
    assert_eq!(at(1, &[&eight]).unwrap(), [0.0, 0.0]);
    assert_eq!(at(2, &[b"unused", &eight]).unwrap(), [0.0, 0.0]);
    for (index, frames) in [(0, &[&eight[..]][..]), (2, &[&eight]), (1, &[]), (u32::MAX.into(), &[&eight])] {
        let refusal = at(index, frames).unwrap_err();
        let expected = "outputs[0].new_logprobs.logprobs.data: expected the index of an auxiliary frame, of which";
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    assert!(at(-1, &[&eight]).unwrap_err().contains("logprobs.data: expected an integer in 0..2^32, seen -1"));
    let twice = with_arrays(array("<i4", &[2, 1], Node::Int(1)), framed(1), ranks(), &[&eight]).unwrap_err();
    assert!(twice.contains("logprobs.data: expected an auxiliary frame of its own"), "{twice}");
}
