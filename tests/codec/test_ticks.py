"""The engine side of the wire and this one are two implementations: what one says, the other hears."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_fast._codec import (
    CodecError,
    Dispatcher,
    Output,
    Prompt,
    Protocol,
    ResponseFormat,
    TextOptions,
    TokenIds,
    Tokenizer,
    decode_handshake,
    decode_ready_response,
    encode_abort,
    encode_init,
    encode_tokenspeed_request,
)
from smg_fast.embedded.wire.messages import Load, TickRow
from smg_fast.embedded.wire.tokenspeed import REVISIONS, Revision, TokenSpeed

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "tokenspeed" / "wire-0.1.1.json").read_text())
FINISH: list[Literal["stop", "length"]] = ["stop", "length"]
PROMPTS = [Prompt(TokenIds([1]))]


class Sequence(NamedTuple):
    """What an engine generates for one request, in pieces of a tick each."""

    pieces: list[list[int]]
    logprobs: list[list[float]]
    finish: Literal["stop", "length"]


token_ids = st.integers(0, 2**32 - 1) | st.integers(0, 4200)
logprobs = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    pieces = draw(st.lists(st.lists(token_ids, max_size=3), min_size=1, max_size=6))
    values = [draw(st.lists(logprobs, min_size=len(piece), max_size=len(piece))) for piece in pieces]
    return Sequence(pieces, values, draw(st.sampled_from(FINISH)))


def outputs_of(
    tokenizer: Tokenizer, messages: list[list[bytes]], rids: list[str], **options: Any
) -> tuple[dict[str, Output], list[Any]]:
    """Feed messages for these requests; the outputs by request id, and the loads."""
    dispatcher = Dispatcher()
    for rid in rids:
        dispatcher.open(rid, ResponseFormat.outputs(), tokenizer, TextOptions(**options), [rid], PROMPTS)
    outcome = dispatcher.feed(Protocol.tokenspeed(), messages)
    assert outcome.refused is None
    outputs: dict[str, Output] = {}
    for sink, result, error in outcome.ended:
        assert error is None
        assert isinstance(sink, str)
        assert isinstance(result, list)
        (outputs[sink],) = result
    return outputs, outcome.loads


@settings(max_examples=100, deadline=None)
@given(st.lists(sequences(), min_size=1, max_size=5), st.sampled_from(REVISIONS), st.booleans(), st.data())
def test_random_ticks_arrive_as_they_were_sent(
    tokenizer: Tokenizer, plans: list[Sequence], revision: Revision, with_logprobs: bool, data: st.DataObject
) -> None:
    engine = TokenSpeed(revision)
    rids = [f"réq-{number}" * data.draw(st.integers(1, 20)) for number in range(len(plans))]
    load = Load(running=data.draw(st.integers(0, 2**40)), waiting=3, kv_active_pages=1, kv_total_pages=2**50)
    messages = []
    for turn in range(max(len(plan.pieces) for plan in plans)):
        rows = []
        for rid, plan in zip(rids, plans, strict=True):
            if turn < len(plan.pieces):
                is_last = turn == len(plan.pieces) - 1
                done = sum(len(piece) for piece in plan.pieces[: turn + 1])
                values = plan.logprobs[turn] if with_logprobs else []
                finish: Literal["", "stop", "length"] = plan.finish if is_last else ""
                rows.append(TickRow(rid, plan.pieces[turn], finish, 7, done, 3, values))
        messages.append(engine.encode_tick(data.draw(st.permutations(rows)), load, 2))
    outputs, loads = outputs_of(tokenizer, messages, rids, logprobs=0 if with_logprobs else None)
    for rid, plan in zip(rids, plans, strict=True):
        output = outputs[rid]
        ids = [id for piece in plan.pieces for id in piece]
        assert output.token_ids.tolist() == ids
        assert output.text == tokenizer.decode(ids)
        assert output.finish_reason == plan.finish
        assert output.cached_tokens == 3
        if with_logprobs:
            assert output.logprobs is not None
            assert output.logprobs.tolist() == [value for values in plan.logprobs for value in values]
    if revision in ("tagged14", "future"):
        assert [(seen.engine_index, seen.running, seen.waiting) for seen in loads] == [(2, load.running, 3)] * len(
            messages
        )


@pytest.mark.parametrize("case", RECORDED["outputs"], ids=lambda case: str(case["name"]))
def test_recorded_ticks_decode_to_their_fields(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    fields = case["fields"]
    for payload in case["payloads"].values():
        message = [base64.b64decode(payload)]
        for rid, ids, reason, values, cached in zip(
            fields["rids"],
            fields["output_ids"],
            fields["finished_reasons"],
            fields["output_token_logprobs_val"],
            fields["cached_tokens"],
            strict=True,
        ):
            dispatcher = Dispatcher()
            options = TextOptions(logprobs=0 if values else None)
            dispatcher.open("sink", ResponseFormat.outputs(), tokenizer, options, [rid], PROMPTS)
            outcome = dispatcher.feed(Protocol.tokenspeed(), [message])
            if not reason:
                assert outcome.ended == []
                continue
            ((_, result, error),) = outcome.ended
            if reason == "abort":
                assert error is not None
                continue
            assert isinstance(result, list)
            (output,) = result
            assert output.token_ids.tolist() == ids
            assert (None if output.logprobs is None else output.logprobs.tolist()) == (values or None)
            assert (output.finish_reason, output.cached_tokens) == (reason, cached)


def test_a_ragged_tick_is_refused_whole(tokenizer: Tokenizer) -> None:
    engine = TokenSpeed("tagged14")
    good = msgpack.unpackb(engine.encode_tick([TickRow("r", [5], "", 1, 1, 0, [])], Load(), 0)[0])
    last = engine.encode_tick([TickRow("r", [6], "stop", 1, 1, 0, [])], Load(), 0)
    for column in range(1, 9):
        ragged = [*good]
        ragged[column] = [*good[column], *good[column]]
        dispatcher = Dispatcher()
        dispatcher.open("sink", ResponseFormat.outputs(), tokenizer, TextOptions(), ["r"], PROMPTS)
        assert dispatcher.feed(Protocol.tokenspeed(), [[msgpack.packb(ragged)]]).refused
        ((_, result, _),) = dispatcher.feed(Protocol.tokenspeed(), [last]).ended
        assert isinstance(result, list)
        assert result[0].token_ids.tolist() == [6], "no row of the refused tick was applied"


@pytest.mark.parametrize("case", RECORDED["requests"], ids=lambda case: str(case["name"]))
def test_requests_encode_to_what_was_recorded(case: dict[str, Any]) -> None:
    decoded = case["decoded"]
    sampling = dict(zip(RECORDED["sampling_field_order"], decoded[5], strict=True))
    names = (
        *("max_new_tokens", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "frequency_penalty"),
        *("presence_penalty", "repetition_penalty", "min_new_tokens", "ignore_eos", "seed"),
        *("json_schema", "regex", "ebnf", "structural_tag"),
    )
    kind, payload = encode_tokenspeed_request(
        decoded[1],
        TokenIds(decoded[4]),
        return_logprob=decoded[6],
        stream=decoded[10],
        **{name: sampling[name] for name in names},
    )
    assert kind == base64.b64decode(case["frames"][0])
    assert msgpack.unpackb(payload) == decoded


def test_requests_of_the_first_revision() -> None:
    kind, payload = encode_tokenspeed_request(
        "r", TokenIds([1, 70000]), form="tuple", max_new_tokens=8, temperature=0.5, seed=42, return_logprob=True
    )
    assert kind == b"\x00"
    sampling = [8, None, 0.5, 1.0, 1 << 30, 0.0, 0.0, 0.0, 1.0, 0, False, 42, 1]
    assert msgpack.unpackb(payload) == ["r", [1, 70000], sampling, True, True]
    with pytest.raises(ValueError, match="regex"):
        encode_tokenspeed_request("r", TokenIds([1]), form="tuple", regex="a")
    with pytest.raises(ValueError, match="tagged"):
        encode_tokenspeed_request("r", TokenIds([1]), form="other")  # type: ignore[arg-type]


def test_aborts() -> None:
    frames = [base64.b64decode(frame) for frame in RECORDED["abort"]["frames"]]
    assert encode_abort(RECORDED["abort"]["rids"]) == frames


def test_the_handshake() -> None:
    recorded = {name: base64.b64decode(payload) for name, payload in RECORDED["handshake"].items()}
    hello, ready = decode_handshake(recorded["hello"]), decode_handshake(recorded["ready"])
    assert (hello.status, hello.local, hello.headless) == ("HELLO", True, True)
    assert (ready.status, ready.local, ready.headless) == ("READY", True, True)
    answer = decode_ready_response(recorded["registration"])
    assert answer.max_model_len == 131072
    assert answer.block_size == 64
    assert answer.max_num_batched_tokens == -1
    assert answer.vllm_version == "tokenspeed-0.1.1"
    init = msgpack.unpackb(encode_init(["ipc://a"], ["ipc://b"]))
    assert init["addresses"]["inputs"] == ["ipc://a"]
    assert init["addresses"]["outputs"] == ["ipc://b"]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"status": 3, "local": True, "headless": True}, "status"),
        ({"status": "HELLO", "local": "yes", "headless": True}, "local"),
        ({"status": "GOODBYE", "local": True, "headless": True}, "status"),
    ],
)
def test_a_wrong_handshake_names_its_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(CodecError, match=field):
        decode_handshake(msgpack.packb(payload))
