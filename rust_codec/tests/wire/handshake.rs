use crate::common::{bytes, fixtures};
use _codec::msgpack::{Reader, Writer};
use _codec::protocol::handshake::{Handshake, ReadyResponse, Status, encode_init};

type Pair<'a> = (&'a str, &'a dyn Fn(&mut Writer));

fn map(pairs: &[Pair<'_>]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.map(pairs.len());
    for (key, value) in pairs {
        writer.str(key);
        value(&mut writer);
    }
    writer.into_bytes()
}

#[test]
fn recorded_hello_and_ready() {
    let fixtures = fixtures();
    for (name, status) in [("hello", Status::Hello), ("ready", Status::Ready)] {
        let payload = bytes(&fixtures["handshake"][name]);
        let expected = Handshake { status, local: true, headless: true };
        assert_eq!(Handshake::decode(&payload).unwrap(), expected);
        assert_eq!(status.as_str().to_lowercase(), name);
        for end in 0..payload.len() {
            assert!(Handshake::decode(&payload[..end]).is_err());
        }
    }
}

#[test]
fn recorded_registration() {
    let payload = bytes(&fixtures()["handshake"]["registration"]);
    let expected = ReadyResponse {
        max_model_len: Some(131_072),
        num_gpu_blocks: Some(6_660),
        block_size: Some(64),
        vllm_version: Some("tokenspeed-0.1.1".to_owned()),
        dtype: Some("bfloat16".to_owned()),
        world_size: Some(2),
        data_parallel_size: Some(2),
        data_parallel_rank: Some(1),
        max_num_seqs: Some(256),
        max_num_batched_tokens: Some(-1),
    };
    assert_eq!(ReadyResponse::decode(&payload).unwrap(), expected);
    for end in 0..payload.len() {
        assert!(ReadyResponse::decode(&payload[..end]).is_err());
    }
}

#[test]
fn keys_may_be_missing_unknown_or_nil() {
    let hello = map(&[
        ("new", &|writer| writer.strs(&["a", "b"])),
        ("status", &|writer| writer.str("HELLO")),
        ("headless", &Writer::nil),
    ]);
    let expected = Handshake { status: Status::Hello, local: false, headless: false };
    assert_eq!(Handshake::decode(&hello).unwrap(), expected);
    assert_eq!(ReadyResponse::decode(&[0x80]).unwrap(), ReadyResponse::default());
    let sparse = map(&[("max_model_len", &Writer::nil), ("world_size", &|writer| writer.uint(4))]);
    let expected = ReadyResponse { world_size: Some(4), ..ReadyResponse::default() };
    assert_eq!(ReadyResponse::decode(&sparse).unwrap(), expected);
}

#[test]
fn the_block_size_goes_by_two_names() {
    let block_size = |pairs: &[Pair<'_>]| ReadyResponse::decode(&map(pairs)).unwrap().block_size;
    assert_eq!(block_size(&[("block_size", &|writer| writer.uint(16))]), Some(16));
    assert_eq!(block_size(&[("prefix_granularity", &|writer| writer.uint(64))]), Some(64));
    assert_eq!(
        block_size(&[("prefix_granularity", &|writer| writer.uint(64)), ("block_size", &Writer::nil)]),
        Some(64)
    );
}

#[test]
fn wrong_values_are_refused_and_named() {
    let refusal = |payload: &[u8]| Handshake::decode(payload).unwrap_err().to_string();
    assert_eq!(refusal(&[0x80]), "status: expected HELLO or READY, seen nothing (at byte 1)");
    let bye = map(&[("status", &|writer| writer.str("BYE"))]);
    assert_eq!(refusal(&bye), "status: expected HELLO or READY, seen another string (at byte 8)");
    let number = map(&[("status", &|writer| writer.str("HELLO")), ("local", &|writer| writer.uint(1))]);
    assert!(refusal(&number).starts_with("local: expected a boolean, seen an integer ("));
    assert!(refusal(&[0x90]).starts_with("expected a map, seen an array"));
    let negative = map(&[("max_model_len", &|writer| writer.int(-1))]);
    let refusal = ReadyResponse::decode(&negative).unwrap_err();
    assert_eq!(refusal.path(), "max_model_len");
}

#[test]
fn init_carries_the_addresses_and_names_what_is_absent() {
    let inputs = ["ipc:///tmp/x-in.sock"];
    let payload = encode_init(&inputs, &["ipc:///tmp/x-out.sock"]);
    let mut reader = Reader::new(&payload);
    assert_eq!(reader.map().unwrap(), 2);
    assert_eq!(reader.str().unwrap(), "addresses");
    assert_eq!(reader.map().unwrap(), 5);
    for (key, address) in [("inputs", "ipc:///tmp/x-in.sock"), ("outputs", "ipc:///tmp/x-out.sock")] {
        assert_eq!(reader.str().unwrap(), key);
        assert_eq!(reader.array().unwrap(), 1);
        assert_eq!(reader.str().unwrap(), address);
    }
    for key in ["coordinator_input", "coordinator_output", "frontend_stats_publish_address"] {
        assert_eq!(reader.str().unwrap(), key);
        assert!(reader.take_nil());
    }
    assert_eq!(reader.str().unwrap(), "parallel_config");
    assert_eq!(reader.map().unwrap(), 0);
    reader.finish().unwrap();
}
