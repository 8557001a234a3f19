use crate::common::{Batch, BatchLoad, BatchRow, Revision, fixtures, output_payloads, rows};
use _codec::msgpack::Writer;
use _codec::protocol::{ENGINE_DEAD, FinishReason, Message, Protocol, StopReason, Tick};
use proptest::prelude::*;
use serde_json::Value;

fn decode(frame: &[u8], tick: &mut Tick) -> Result<(), String> {
    match Protocol::TokenSpeed.decode(&[frame], tick) {
        Ok(Message::Tick) => Ok(()),
        Ok(Message::EngineDead) => panic!("not a dead frame"),
        Err(error) => Err(error.to_string()),
    }
}

fn refusal(frame: &[u8]) -> String {
    decode(frame, &mut Tick::default()).unwrap_err()
}

fn batch_of_fixture(fields: &Value) -> Batch {
    let list = |name: &str| fields[name].as_array().unwrap().clone();
    let uint = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let number = |name: &str| fields[name].as_u64().unwrap_or(0);
    let row = |index: usize| BatchRow {
        rid: list("rids")[index].as_str().unwrap().to_owned(),
        tokens: list("output_ids")[index].as_array().unwrap().iter().map(uint).collect(),
        logprobs: list("output_token_logprobs_val")[index]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap())
            .collect(),
        finished: list("finished_reasons")[index].as_str().unwrap().to_owned(),
        prompt_tokens: uint(&list("prompt_tokens")[index]),
        completion_tokens: uint(&list("completion_tokens")[index]),
        cached_tokens: uint(&list("cached_tokens")[index]),
    };
    Batch {
        rows: (0..list("rids").len()).map(row).collect(),
        load: BatchLoad {
            engine_index: u32::try_from(number("engine_index")).unwrap(),
            running: number("num_running"),
            waiting: number("num_waiting"),
            kv_active_pages: number("kv_active_pages"),
            kv_total_pages: number("kv_total_pages"),
        },
    }
}

#[test]
fn recorded_payloads_decode_to_their_fields() {
    let mut tick = Tick::default();
    let mut payloads = 0;
    let fixtures = fixtures();
    for output in fixtures["outputs"].as_array().unwrap() {
        let batch = batch_of_fixture(&output["fields"]);
        for (name, revision) in [
            ("untagged_8", Revision::Untagged),
            ("tagged_9", Revision::Tagged(9)),
            ("tagged_10", Revision::Tagged(10)),
            ("tagged_14", Revision::Tagged(14)),
            ("tagged_15_future", Revision::Tagged(15)),
        ] {
            let frame = crate::common::bytes(&output["payloads"][name]);
            decode(&frame, &mut tick).unwrap();
            batch.compare(revision, &frame, &tick);
            payloads += 1;
        }
    }
    assert_eq!(payloads, output_payloads(&fixtures).len());
}

#[test]
fn a_truncated_payload_is_refused_wherever_it_ends() {
    for (name, revision, frame) in output_payloads(&fixtures()) {
        for end in 0..frame.len() {
            let mut tick = Tick::default();
            assert!(decode(&frame[..end], &mut tick).is_err(), "{name} {revision}: {end}");
        }
        let longer = [&frame[..], &[0xc0]].concat();
        assert!(refusal(&longer).contains("seen 1 more bytes"));
    }
}

#[test]
fn the_dead_frame_is_told_from_a_tick() {
    let mut tick = Tick::default();
    let dead = Protocol::TokenSpeed.decode(&[ENGINE_DEAD], &mut tick).unwrap();
    assert_eq!(dead, Message::EngineDead);
    assert!(Protocol::TokenSpeed.decode(&[ENGINE_DEAD, b""], &mut tick).is_err());
    assert!(Protocol::TokenSpeed.decode(&[], &mut tick).is_err());
}

#[test]
fn a_tick_forgets_the_one_before() {
    let mut tick = Tick::default();
    let full = Batch { rows: vec![row("a"), row("b")], load: load() };
    decode(&full.encode(Revision::Tagged(14)), &mut tick).unwrap();
    let empty = Batch { rows: vec![], load: load() };
    decode(&empty.encode(Revision::Untagged), &mut tick).unwrap();
    assert_eq!(tick, Tick::default());
}

fn row(rid: &str) -> BatchRow {
    BatchRow {
        rid: rid.to_owned(),
        tokens: vec![7, 70_000],
        logprobs: vec![-0.5, -1.5],
        finished: String::new(),
        prompt_tokens: 3,
        completion_tokens: 2,
        cached_tokens: 1,
    }
}

fn load() -> BatchLoad {
    BatchLoad { engine_index: 2, running: 5, waiting: 6, kv_active_pages: 7, kv_total_pages: 8 }
}

#[test]
fn a_rank_with_a_part_of_the_load_has_no_load() {
    let batch = Batch { rows: vec![row("a")], load: load() };
    let mut tick = Tick::default();
    for length in 11..=13 {
        let frame = batch.encode(Revision::Tagged(length));
        decode(&frame, &mut tick).unwrap();
        assert_eq!((tick.engine_index, tick.load), (Some(2), None));
        assert_eq!(rows(&frame, &tick).len(), 1);
    }
}

/// The eight columns of a batch of two rows, one of them replaced.
fn with_column(name: &str, write: impl Fn(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(8);
    for column in [
        "rids",
        "output_ids",
        "finished_reasons",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "output_token_logprobs_val",
        "output_token_logprobs_idx",
    ] {
        if column == name {
            write(&mut writer);
            continue;
        }
        match column {
            "rids" => writer.strs(&["a", "b"]),
            "finished_reasons" => writer.strs(&["", ""]),
            "prompt_tokens" | "completion_tokens" | "cached_tokens" => writer.u32s(&[3, 4]),
            "output_ids" | "output_token_logprobs_idx" => {
                writer.array(2);
                writer.u32s(&[7, 8]);
                writer.u32s(&[9]);
            }
            _ => {
                writer.array(2);
                writer.array(2);
                writer.f64(-0.5);
                writer.f64(-0.25);
                writer.array(1);
                writer.f64(-1.0);
            }
        }
    }
    writer.into_bytes()
}

#[test]
fn ragged_columns_are_refused_and_named() {
    decode(&with_column("none", |_| ()), &mut Tick::default()).unwrap();
    for column in [
        "output_ids",
        "finished_reasons",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "output_token_logprobs_val",
        "output_token_logprobs_idx",
    ] {
        for length in [0, 1, 3] {
            let refusal = refusal(&with_column(column, |writer| {
                writer.array(length);
                for _ in 0..length {
                    match column {
                        "finished_reasons" => writer.str(""),
                        "prompt_tokens" | "completion_tokens" | "cached_tokens" => writer.uint(1),
                        _ => writer.array(0),
                    }
                }
            }));
            let expected = format!("{column}: expected 2 elements, as many as rids, seen {length} (");
            assert!(refusal.starts_with(&expected), "{refusal}");
        }
    }
}

#[test]
fn ragged_logprobs_are_refused_and_named() {
    let short = with_column("output_token_logprobs_val", |writer| {
        writer.array(2);
        writer.array(2);
        writer.f64(-0.5);
        writer.f64(-0.25);
        writer.array(2);
        writer.f64(-0.5);
        writer.f64(-0.25);
    });
    assert!(
        refusal(&short)
            .starts_with("output_token_logprobs_val[1]: expected 1 elements, as many as output_ids, seen 2 (")
    );
    let unpaired = with_column("output_token_logprobs_idx", |writer| {
        writer.array(2);
        writer.u32s(&[7, 8]);
        writer.u32s(&[]);
    });
    assert!(refusal(&unpaired).starts_with(
        "output_token_logprobs_idx[1]: expected 1 elements, as many as output_token_logprobs_val, seen 0 ("
    ));
    let values_dropped = with_column("output_token_logprobs_val", |writer| {
        writer.array(2);
        writer.array(0);
        writer.array(0);
    });
    assert!(refusal(&values_dropped).starts_with("output_token_logprobs_idx[0]: expected 0 elements"));
}

#[test]
fn values_out_of_range_or_kind_are_refused_and_named() {
    let negative = with_column("output_ids", |writer| {
        writer.array(2);
        writer.array(2);
        writer.uint(7);
        writer.int(-1);
        writer.u32s(&[9]);
    });
    assert_eq!(refusal(&negative), "output_ids[0][1]: expected an integer in 0..2^32, seen -1 (at byte 9)");
    let wide = with_column("prompt_tokens", |writer| {
        writer.array(2);
        writer.uint(1);
        writer.uint(1 << 32);
    });
    assert!(refusal(&wide).starts_with("prompt_tokens[1]: expected an integer in 0..2^32, seen 4294967296 ("));
    for (column, kind) in [
        ("rids", "an array"),
        ("output_ids", "an array"),
        ("finished_reasons", "an array"),
        ("cached_tokens", "an array"),
        ("output_token_logprobs_val", "an array"),
        ("output_token_logprobs_idx", "an array"),
    ] {
        let refusal = refusal(&with_column(column, Writer::nil));
        assert!(refusal.starts_with(&format!("{column}: expected {kind}, seen nil (")), "{refusal}");
    }
    let text = with_column("output_token_logprobs_val", |writer| {
        writer.array(2);
        writer.strs(&["-0.5", "x"]);
        writer.array(0);
    });
    assert!(refusal(&text).starts_with("output_token_logprobs_val[0][0]: expected a number, seen a string ("));
    let bytes = with_column("rids", |writer| {
        writer.array(2);
        writer.str("a");
        writer.bin(b"b");
    });
    assert!(refusal(&bytes).starts_with("rids[1]: expected a string, seen raw bytes ("));
    let batch = Batch { rows: vec![], load: load() };
    let mut frame = batch.encode(Revision::Tagged(14));
    *frame.last_mut().unwrap() = 0xff;
    assert!(refusal(&frame).starts_with("kv_total_pages: expected an integer in 0..2^64, seen -1 ("));
}

#[test]
fn batches_of_another_shape_are_refused() {
    let tagged = |tag: &str, length: usize| {
        let mut writer = Writer::default();
        writer.array(length);
        writer.str(tag);
        for _ in 1..length {
            writer.array(0);
        }
        writer.into_bytes()
    };
    assert!(
        refusal(&tagged("BatchEmbeddingOut", 9)).starts_with("tag: expected BatchTokenIDOutSlim, seen another string")
    );
    assert!(refusal(&tagged("BatchTokenIDOutSlim", 8)).contains("expected 9 elements or more with the tag, seen 8"));
    for length in [0, 1, 7, 9, 10, 14] {
        let mut frame = vec![0x90 | length];
        frame.extend(vec![0x90; usize::from(length)]);
        let refusal = refusal(&frame);
        assert!(refusal.contains("expected 8 elements without a tag"), "{refusal}");
    }
    assert!(refusal(&[0x80]).contains("expected an array, seen a map"));
    assert!(refusal(&[]).contains("seen the end of the message"));
}

#[test]
fn an_error_may_say_why() {
    let failed = |finished: &str| BatchRow { finished: finished.to_owned(), ..row("a") };
    let batch = Batch { rows: vec![failed("error: n\u{f6}"), failed("error: "), failed("error")], load: load() };
    let frame = batch.encode(Revision::Tagged(14));
    let mut tick = Tick::default();
    decode(&frame, &mut tick).unwrap();
    let causes: Vec<_> = tick
        .rows
        .iter()
        .map(|row| match tick.stop_reason(row) {
            Some(StopReason::Text(cause)) => Some(&frame[cause.start as usize..cause.end as usize]),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [Some("n\u{f6}".as_bytes()), Some(b""), None]);
    assert!(tick.rows.iter().all(|row| row.finish == Some(FinishReason::Error)));
}

#[test]
fn finish_reasons() {
    let reasons = ["", "stop", "length", "abort", "error", "preempted"];
    let rows_of = |reason: &&str| BatchRow { finished: (*reason).to_owned(), ..row("a") };
    let batch = Batch { rows: reasons.iter().map(rows_of).collect(), load: load() };
    let mut tick = Tick::default();
    decode(&batch.encode(Revision::Tagged(9)), &mut tick).unwrap();
    let decoded: Vec<_> = tick.rows.iter().map(|row| row.finish).collect();
    use FinishReason::{Abort, Error, Length, Stop};
    assert_eq!(decoded, [None, Some(Stop), Some(Length), Some(Abort), Some(Error), Some(Error)]);
    assert!(tick.rows.iter().all(|row| tick.stop_reason(row).is_none()));
    let nil = with_column("finished_reasons", |writer| {
        writer.array(2);
        writer.nil();
        writer.str("stop");
    });
    decode(&nil, &mut tick).unwrap();
    assert_eq!(tick.rows[0].finish, None);
    assert_eq!(tick.rows[1].finish, Some(Stop));
}

fn any_row() -> impl Strategy<Value = BatchRow> {
    let tokens = prop_oneof![
        4 => proptest::collection::vec(any::<u32>(), 1),
        1 => proptest::collection::vec(any::<u32>(), 0..20),
    ];
    let reason = prop_oneof!["", "stop", "length", "abort", "error", "[a-z]{1,40}"];
    let counts = (any::<u32>(), any::<u32>(), any::<u32>());
    (".{0,60}", tokens, any::<bool>(), reason, counts).prop_flat_map(
        |(rid, tokens, with_logprobs, finished, (prompt_tokens, completion_tokens, cached_tokens))| {
            let length = if with_logprobs { tokens.len() } else { 0 };
            let logprob = prop_oneof![
                -50.0..=0.0,
                Just(f64::NEG_INFINITY),
                Just(-1e-300),
                any::<f64>().prop_filter("comparable", |value| !value.is_nan())
            ];
            proptest::collection::vec(logprob, length).prop_map(move |logprobs| BatchRow {
                rid: rid.clone(),
                tokens: tokens.clone(),
                logprobs,
                finished: finished.clone(),
                prompt_tokens,
                completion_tokens,
                cached_tokens,
            })
        },
    )
}

proptest! {
    #[test]
    fn random_batches_come_back_in_every_revision(
        rows in proptest::collection::vec(any_row(), 0..40),
        engine_index in any::<u32>(),
        (running, waiting, kv_active_pages) in any::<(u64, u64, u64)>(),
        kv_total_pages in prop_oneof![Just(0), any::<u64>()],
    ) {
        let load = BatchLoad { engine_index, running, waiting, kv_active_pages, kv_total_pages };
        let batch = Batch { rows, load };
        let mut tick = Tick::default();
        for revision in [
            Revision::Untagged,
            Revision::Tagged(9),
            Revision::Tagged(10),
            Revision::Tagged(13),
            Revision::Tagged(14),
            Revision::Tagged(15),
            Revision::Tagged(20),
        ] {
            let frame = batch.encode(revision);
            decode(&frame, &mut tick).unwrap();
            batch.compare(revision, &frame, &tick);
        }
    }
}
