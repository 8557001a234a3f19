"""The engine side's bytes at every version of vLLM: against recordings of 0.32.0, and against the gateway's codec."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smg_fast._codec import (
    Dispatcher,
    Output,
    Prompt,
    Protocol,
    ReadyResponse,
    ResponseFormat,
    TextOptions,
    TokenIds,
    Tokenizer,
    decode_ready_response,
    encode_abort,
    encode_vllm_request,
)
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.embedded.simulator import logprob_rows
from smg_fast.embedded.simulator.rules import Limits, broken_rule
from smg_fast.embedded.wire import (
    VLLM,
    Abort,
    Add,
    Constraint,
    EngineInfo,
    EngineRequest,
    Load,
    LogprobRows,
    Malformed,
    Sampling,
    StartWave,
    TickRow,
    Utility,
    UtilityAnswer,
    Wave,
)
from smg_fast.embedded.wire.messages import ConstraintKind, FinishReason
from smg_fast.embedded.wire.vllm import VERSIONS
from smg_fast.embedded.wire.vllm.layouts import known, layout_of

DATA = Path(__file__).parents[1] / "data"
LAYOUTS: dict[str, dict[str, list[str]]] = json.loads((DATA / "vllm-layouts.json").read_text(encoding="utf-8"))
RECORDINGS: dict[str, Any] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DATA / "vllm-0.32.0").glob("*.json"))
}
REQUESTED = [name for name, recording in RECORDINGS.items() if "requests" in recording]
FINISH: list[FinishReason] = ["stop", "length", "abort", "error", "repetition"]
LIMITS = Limits(max_model_len=2048, vocab_size=49152)

every_version = pytest.mark.parametrize("version", VERSIONS)


def frames_of(texts: list[str]) -> list[bytes]:
    return [base64.b64decode(text) for text in texts]


def unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def row_of(values: list[Any], version: str) -> dict[str, Any]:
    return dict(zip(layout_of(version).output, values, strict=True))


def add(event: object) -> EngineRequest:
    assert isinstance(event, Add), event
    return event.request


# ---- layouts


def test_the_layouts_are_those_of_the_shared_facts() -> None:
    assert [layout.version for layout in known()] == list(LAYOUTS)
    for layout in known():
        facts = LAYOUTS[layout.version]
        assert [*layout.request] == facts["EngineCoreRequest"]
        assert [*layout.output] == facts["EngineCoreOutput"]
        assert [*layout.message] == facts["EngineCoreOutputs"]


def test_a_version_has_the_layout_of_the_release_before_it() -> None:
    assert layout_of("0.32.7+cpu") == layout_of("0.32.0")
    assert layout_of("0.29.1").version == "0.28.0"
    assert layout_of("1.0").version == VERSIONS[-1]
    with pytest.raises(ValueError, match=r"0\.11\.0 is older than 0\.12\.0"):
        VLLM("0.11.0")
    with pytest.raises(ValueError, match="not a version"):
        VLLM("main")


# ---- handshake


def test_the_handshake_is_as_recorded() -> None:
    recorded = RECORDINGS["handshake"]
    hello, ready, registration = (frames_of(message["frames"])[1] for message in recorded["handshake"])
    assert VLLM().encode_status("HELLO", local=False) == hello
    assert VLLM().encode_status("READY", local=False) == ready
    info = EngineInfo(
        version="",
        max_model_len=2048,
        max_num_seqs=128,
        page_size=128,
        num_pages=364,
        cache_tokens=46592,
        instance_id="1795952270111479061",
    )
    assert VLLM("0.32.0").encode_registration(info, 0) == registration


@every_version
def test_a_registration_says_what_its_version_says(version: str) -> None:
    info = EngineInfo(
        version="", max_model_len=2048, max_num_seqs=8, page_size=16, num_pages=100, cache_tokens=1600, instance_id="i"
    )
    ready = decode_ready_response(VLLM(version).encode_registration(info, 1))
    fields = layout_of(version).registration
    assert isinstance(ready, ReadyResponse)
    assert ready.vllm_version == (version if "vllm_version" in fields else None)
    assert ready.max_model_len == (2048 if "max_model_len" in fields else None)
    assert ready.block_size == (16 if "block_size" in fields else None)
    assert ready.data_parallel_rank == (1 if "data_parallel_rank" in fields else None)


# ---- requests


@pytest.mark.parametrize("name", REQUESTED)
def test_recorded_requests_are_understood_and_break_no_rule(name: str) -> None:
    for recorded in RECORDINGS[name]["requests"]:
        frames = frames_of(recorded["frames"])
        sent = unpack(frames[1])[3]
        request = add(VLLM("0.32.0").decode_request(frames))
        sampling = request.sampling
        assert (request.rid, request.prompt_ids) == (recorded["request_id"], recorded["prompt_token_ids"])
        assert (sampling.max_new_tokens, sampling.min_new_tokens) == (
            sent.get("max_tokens", 16),
            sent.get("min_tokens", 0),
        )
        assert (sampling.temperature, sampling.seed) == (sent["temperature"], sent.get("seed"))
        assert sampling.stop_token_ids == tuple(sent["stop_token_ids"])
        assert request.eos_token_ids == ((2,) if "_eos_token_id" in sent else ())
        assert (request.logprobs, request.top_logprobs) == ("logprobs" in sent, sent.get("logprobs", 0))
        assert request.prompt_logprobs == sent.get("prompt_logprobs")
        assert sampling.logit_bias == sent.get("logit_bias")
        assert len(sampling.constraints) == ("structured_outputs" in sent)
        expected = "choice: no _backend" if name == "structured_without_backend" else None
        assert broken_rule(request, "vllm", LIMITS) == expected


def test_recorded_constraints_keep_their_kind() -> None:
    constraints = {}
    for name in ("json_schema", "json_object", "regex", "choice", "grammar"):
        request = add(VLLM().decode_request(frames_of(RECORDINGS[name]["requests"][0]["frames"])))
        (constraints[name],) = request.sampling.constraints
        assert request.sampling.backend == "guidance"
    assert constraints["json_object"] == Constraint(kind="json_object")
    assert constraints["regex"] == Constraint(kind="regex", value=r"\d{3}-\d{4}")
    assert constraints["choice"] == Constraint(kind="choice", value=("yes", "no"))
    assert constraints["grammar"] == Constraint(kind="grammar", value='start: "a" "b"+')
    assert constraints["json_schema"].kind == "json"


def test_recorded_aborts_are_understood() -> None:
    assert VLLM().decode_request(frames_of(RECORDINGS["abort"]["abort_frames"])) == Abort(["ab-1"])
    assert VLLM().decode_request(encode_abort(["a", "b"])) == Abort(["a", "b"])


tokens = st.integers(0, (1 << 32) - 1)
token_lists = st.lists(tokens, max_size=4)
finite = st.floats(-10.0, 10.0)
CONSTRAINTS: dict[ConstraintKind, Any] = {
    "json": '{"type":"object"}',
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'root ::= "a"',
    "json_object": True,
    "structural_tag": "{}",
}


def read_constraint(kind: ConstraintKind) -> Constraint:
    value = CONSTRAINTS[kind]
    return Constraint(kind=kind, value="" if value is True else tuple(value) if isinstance(value, list) else value)


@every_version
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompt=token_lists,
    given_sampling=st.fixed_dictionaries(
        {"max_tokens": st.integers(0, 1 << 31)},
        optional={
            "min_tokens": st.integers(0, 1 << 31),
            **dict.fromkeys(
                ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"), finite
            ),
            "top_k": st.integers(-1, 1 << 40),
            "seed": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "stop_token_ids": token_lists,
            "ignore_eos": st.booleans(),
            "logprobs": st.none() | st.integers(0, 20),
            "prompt_logprobs": st.none() | st.integers(0, 20),
            "logit_bias": st.none() | st.dictionaries(tokens, finite, min_size=1, max_size=4),
            "allowed_token_ids": st.none() | token_lists,
            "all_stop_token_ids": token_lists,
            "bad_words_token_ids": st.lists(token_lists, max_size=3),
            "skip_reading_prefix_cache": st.booleans(),
        },
    ),
    eos=st.none() | tokens,
    whole=st.fixed_dictionaries(
        {},
        optional={
            "cache_salt": st.sampled_from([None, "", "salt"]),
            "data_parallel_rank": st.none() | st.integers(0, 7),
            "priority": st.integers(-9, 9),
            "current_wave": st.integers(0, 9),
        },
    ),
    constraint=st.none() | st.sampled_from(sorted(CONSTRAINTS)),
    backend=st.none() | st.just("guidance"),
)
def test_what_the_gateway_asks_is_what_the_engine_reads(
    version: str,
    prompt: list[int],
    given_sampling: dict[str, Any],
    eos: int | None,
    whole: dict[str, Any],
    constraint: ConstraintKind | None,
    backend: str | None,
) -> None:
    constrained = {constraint: CONSTRAINTS[constraint], "backend": backend} if constraint else {}
    frames = encode_vllm_request(
        Protocol.vllm(version),
        "r",
        TokenIds(prompt),
        **given_sampling,
        **constrained,
        **whole,
        eos_token_id=eos,
        arrival_time=1.5,
    )
    request = add(VLLM(version).decode_request(frames))
    asked = dict(given_sampling)
    logprobs, prompt_logprobs = asked.pop("logprobs", None), asked.pop("prompt_logprobs", None)
    assert request == EngineRequest(
        rid="r",
        prompt_ids=prompt,
        sampling=Sampling(
            max_new_tokens=asked.pop("max_tokens"),
            min_new_tokens=asked.pop("min_tokens", 0),
            stop_token_ids=tuple(asked.pop("stop_token_ids", ())),
            top_k=asked.pop("top_k", 0),
            allowed_token_ids=None if (allowed := asked.pop("allowed_token_ids", None)) is None else tuple(allowed),
            bad_words=tuple(map(tuple, asked.pop("bad_words_token_ids", ()))),
            constraints=(() if constraint is None else (read_constraint(constraint),)),
            backend=backend if constraint else None,
            **{key: asked[key] for key in asked.keys() & set(Sampling.__struct_fields__)},
        ),
        logprobs=logprobs is not None,
        top_logprobs=logprobs or 0,
        prompt_logprobs=prompt_logprobs,
        eos_token_ids=() if eos is None else (eos,),
        all_stop_token_ids=tuple(asked.get("all_stop_token_ids", ())),
        skip_prefix_cache=asked.get("skip_reading_prefix_cache", False),
        cache_salt=whole.get("cache_salt"),
        data_parallel_rank=whole.get("data_parallel_rank"),
        priority=whole.get("priority", 0),
        wave=whole.get("current_wave", 0),
    )


@every_version
def test_trailing_defaults_may_be_left_out(version: str) -> None:
    frames = encode_vllm_request(Protocol.vllm(version), "r", TokenIds([1, 2]), max_tokens=3)
    whole = VLLM(version).decode_request(frames)
    fields = unpack(frames[1])
    shorter = fields[: layout_of(version).request.index("arrival_time") + 1]
    assert VLLM(version).decode_request([frames[0], msgpack.packb(shorter)]) == whole


def test_waves_and_calls_are_understood() -> None:
    assert VLLM().decode_request([b"\2", msgpack.packb([3, 1])]) == StartWave(3, 1)
    assert VLLM().decode_request([b"\3", msgpack.packb([0, 7, "sleep", [1]])]) == Utility(7, "sleep")


GOOD = unpack(encode_vllm_request(Protocol.vllm("0.32.0"), "r", TokenIds([1]), max_tokens=1)[1])


@pytest.mark.parametrize(
    ("frames", "clue"),
    [
        ([], "0 frames"),
        ([b"\0"], "1 frames"),
        ([b"\x07", b"\x90"], "unknown message type 07"),
        ([b"\0", b"\x92\x01"], "incomplete"),
        ([b"\0", msgpack.packb("x")], "Expected `array`"),
        ([b"\0", msgpack.packb(GOOD[:3])], "sampling_params"),
        ([b"\0", msgpack.packb([*GOOD, None])], "23 elements where vLLM 0.32.0 has 22"),
        ([b"\0", msgpack.packb(["r", [1, -1.5], *GOOD[2:]])], "prompt_token_ids[1]"),
        ([b"\0", msgpack.packb([*GOOD[:3], {**GOOD[3], "max_tokens": 2.5}, *GOOD[4:]])], "max_tokens"),
        ([b"\0", msgpack.packb([*GOOD[:3], {**GOOD[3], "guided_json": "{}"}, *GOOD[4:]])], "guided_json"),
        ([b"\1", msgpack.packb([1])], "$[0]"),
        ([b"\2", msgpack.packb(["x"])], "message of type 02"),
        ([b"\3", msgpack.packb([0, 1])], "message of type 03"),
    ],
)
def test_what_cannot_be_read_is_said_and_not_raised(frames: list[bytes], clue: str) -> None:
    event = VLLM("0.32.0").decode_request(frames)
    assert isinstance(event, Malformed)
    assert clue in event.reason


def test_a_request_in_another_layout_is_not_taken_for_one_of_this() -> None:
    frames = encode_vllm_request(Protocol.vllm("0.15.1"), "r", TokenIds([1]), max_tokens=1, eos_token_id=7)
    assert isinstance(VLLM("0.18.1").decode_request(frames), Malformed)


# ---- outputs


def rows_of(arrays: list[Any], frames: list[bytes]) -> LogprobRows:
    """The logprobs of a recorded row."""
    columns = []
    for dtype, shape, data in arrays[:3]:
        code = {"i4": "i", "int32": "i", "f4": "f", "float32": "f", "i8": "q"}[dtype.removeprefix("<")]
        raw = frames[data] if isinstance(data, int) else data.data
        flat = struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)
        width = shape[1] if len(shape) == 2 else 1
        columns.append([flat[i : i + width] for i in range(0, len(flat), width)])
    return LogprobRows(columns[0], columns[1], [rank for (rank,) in columns[2]])


def tick_row(recorded: dict[str, Any], frames: list[bytes]) -> TickRow:
    """What an engine must have had to say, to have written this."""
    prefill = recorded["prefill_stats"] or {}
    tokens = recorded["new_token_ids"]
    first = recorded["prefill_stats"] is not None
    finish = recorded["finish_reason"]
    logprobs, prompt_logprobs = recorded["new_logprobs"], recorded["new_prompt_logprobs_tensors"]
    return TickRow(
        recorded["request_id"],
        tokens,
        "" if finish is None else FINISH[finish],
        prefill.get("num_prompt_tokens", 1),
        len(tokens) if first else len(tokens) + 1,
        prefill.get("num_cached_tokens", 0),
        stop_reason=recorded["stop_reason"],
        logprob_rows=rows_of(logprobs, frames) if logprobs else None,
        prompt_logprobs=rows_of(prompt_logprobs, frames) if prompt_logprobs else None,
    )


@pytest.mark.parametrize("name", REQUESTED)
def test_recorded_rows_come_out_as_they_were(name: str) -> None:
    for texts in RECORDINGS[name]["outputs"]:
        frames = frames_of(texts)
        recorded = dict(zip(layout_of("0.32.0").message, unpack(frames[0]), strict=True))
        wanted = [row_of(values, "0.32.0") for values in recorded["outputs"]]
        stats = recorded["scheduler_stats"]
        usage = round(stats["kv_cache_usage"] * 363)  # one block of the engine's 364 is its own
        load = Load(stats["num_running_reqs"], stats["num_waiting_reqs"], usage, 363)
        encoded = VLLM("0.32.0").encode_tick([tick_row(row, frames) for row in wanted], load, 0)
        assert encoded[1:] == frames[1:]
        got = dict(zip(layout_of("0.32.0").message, unpack(encoded[0]), strict=True))
        for row, values in zip(wanted, got["outputs"], strict=True):
            assert row_of(values, "0.32.0") == {**row, "events": None}
        for key in ("num_running_reqs", "num_waiting_reqs"):
            assert got["scheduler_stats"][key] == stats[key]
        assert got["scheduler_stats"]["kv_cache_usage"] == pytest.approx(stats["kv_cache_usage"])
        assert got["scheduler_stats"].keys() <= stats.keys()
        assert (got["engine_index"], got["weight_version"]) == (0, "default")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))


def received(
    tokenizer: Tokenizer, version: str, messages: list[list[bytes]], options: TextOptions, prompt: list[int]
) -> tuple[Output | None, str | None]:
    """What the gateway's codec makes of the ticks of the generation "r"."""
    dispatcher = Dispatcher()
    dispatcher.open("sink", ResponseFormat.outputs(), tokenizer, options, ["r"], [Prompt(TokenIds(prompt))])
    outcome = dispatcher.feed(Protocol.vllm(version), messages)
    assert outcome.refused is None
    ((_, outputs, error),) = outcome.ended
    assert outcome.finished == ["r"]
    if outputs is None:
        return None, error
    assert isinstance(outputs, list)
    return outputs[0], error


@every_version
@pytest.mark.parametrize("alternatives", [0, 3, 20])
def test_ticks_arrive_as_they_were_said(tokenizer: Tokenizer, version: str, alternatives: int) -> None:
    prompt, said = [40, 41, 42, 43, 44], [50, 51, 52, 53, 54]
    rows = logprob_rows(said, 0, alternatives, 512)
    prompt_rows = logprob_rows(prompt[1:], 1, alternatives, 512)
    first = TickRow(
        "r",
        said[:4],
        "",
        5,
        4,
        2,
        logprob_rows=LogprobRows(rows.token_ids[:4], rows.values[:4], rows.ranks[:4]),
        prompt_logprobs=prompt_rows,
    )
    last = TickRow(
        "r",
        said[4:],
        "stop",
        5,
        5,
        2,
        logprob_rows=LogprobRows(rows.token_ids[4:], rows.values[4:], rows.ranks[4:]),
        stop_reason=54,
    )
    wire = VLLM(version)
    messages = [wire.encode_tick([first], Load(1, 2, 3, 4), 5), wire.encode_tick([last], Load(0, 0, 0, 4), 5)]
    # Large arrays have frames of their own: ids and logprobs of four tokens, and of the prompt, with 20 alternatives.
    assert [len(frames) for frames in messages] == ([5, 1] if alternatives == 20 else [1, 1])
    options = TextOptions(logprobs=alternatives, prompt_logprobs=alternatives, stop_token_ids=[54])
    output, error = received(tokenizer, version, messages, options, prompt)
    assert error is None
    assert output is not None
    assert output.token_ids.tolist() == said
    assert (output.finish_reason, output.stop_reason, output.cached_tokens) == ("stop", 54, 2)
    assert output.logprobs is not None
    assert output.logprobs.tolist() == [values[0] for values in rows.values]
    if alternatives:
        expected = []
        for ids, values in zip(rows.token_ids, rows.values, strict=True):
            (token, value), *others = zip(ids, values, strict=True)
            expected.append([(token, value), *(other for other in others if other[0] != token)])
        assert output.top_logprobs == expected
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    heads = [position[0] for position in output.prompt_logprobs[1:] if position]
    assert heads == [
        (ids[0], values[0], rank)
        for ids, values, rank in zip(prompt_rows.token_ids, prompt_rows.values, prompt_rows.ranks, strict=True)
    ]


@every_version
@pytest.mark.parametrize("finish", FINISH)
def test_every_finish_arrives(tokenizer: Tokenizer, version: str, finish: FinishReason) -> None:
    row = TickRow("r", [50], finish, 1, 1)
    output, error = received(tokenizer, version, [VLLM(version).encode_tick([row], Load(), 0)], TextOptions(), [1])
    if finish == "error":
        assert output is None
        assert error is not None
    else:
        assert output is not None
        assert output.finish_reason == finish
        assert output.token_ids.tolist() == [50]


@every_version
def test_the_load_arrives(version: str) -> None:
    frames = VLLM(version).encode_tick([], Load(3, 4, 1, 8), 6)
    (load,) = Dispatcher().feed(Protocol.vllm(version), [frames]).loads
    assert (load.engine_index, load.running, load.waiting, load.kv_usage) == (6, 3, 4, 0.125)


@every_version
def test_waves_arrive(version: str) -> None:
    wire = VLLM(version)
    outcome = Dispatcher().feed(
        Protocol.vllm(version), [wire.encode_notice(Wave(complete=3), 1), wire.encode_notice(Wave(start=4), 1)]
    )
    assert outcome.refused is None
    assert [(wave.engine_index, wave.complete, wave.start) for wave in outcome.waves] == [(1, 3, None), (1, None, 4)]


@every_version
def test_answers_of_calls_have_their_place(version: str) -> None:
    for answer, wanted in (
        (UtilityAnswer(7, failure="no such method"), [7, "no such method", None]),
        (UtilityAnswer(8, result=["generate"]), [8, None, [None, ["generate"]]]),
    ):
        frames = VLLM(version).encode_notice(answer, 0)
        message = dict(zip(layout_of(version).message, unpack(frames[0]), strict=True))
        assert (message["utility_output"], message["outputs"]) == (wanted, [])
        assert Dispatcher().feed(Protocol.vllm(version), [frames]).refused is None


@every_version
def test_only_the_first_row_tells_of_the_prompt(version: str) -> None:
    rows = [TickRow("r", [5], "", 9, 1, 4), TickRow("r", [6], "", 9, 2, 4), TickRow("x", [], "error", 9, 0)]
    frames = VLLM(version).encode_tick(rows, Load(), 0)
    first, *others = (row_of(values, version) for values in unpack(frames[0])[1])
    if "prefill_stats" in first:
        assert (first["prefill_stats"]["num_prompt_tokens"], first["prefill_stats"]["num_cached_tokens"]) == (9, 4)
        assert [other["prefill_stats"] for other in others] == [None, None]
    else:
        assert first["num_cached_tokens"] == 4
        assert [other["num_cached_tokens"] for other in others] == [0, 0]
