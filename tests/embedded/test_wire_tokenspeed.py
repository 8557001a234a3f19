"""The engine side's bytes against those of TokenSpeed 0.1.1's own wire classes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_fast.embedded.wire import Abort, Add, EngineInfo, EngineRequest, Load, Malformed, Sampling, TickRow, TokenSpeed
from smg_fast.embedded.wire.tokenspeed import REVISIONS, Revision

FIXTURE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "tokenspeed" / "wire-0.1.1.json").read_text(encoding="utf-8")
)
RECORDED: dict[Revision, str] = {
    "untagged8": "untagged_8",
    "tagged9": "tagged_9",
    "tagged10": "tagged_10",
    "tagged14": "tagged_14",
    "future": "tagged_15_future",
}


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("output", FIXTURE["outputs"], ids=lambda output: output["name"])
def test_ticks_equal_the_recorded_bytes(output: dict[str, Any], revision: Revision) -> None:
    fields = output["fields"]
    names = FIXTURE["output_field_order"]
    rows = [
        TickRow(rid, ids, finish, prompt, completion, cached, logprobs)
        for rid, ids, finish, prompt, completion, cached, logprobs, _ in zip(
            *(fields[name] for name in names[:8]), strict=True
        )
    ]
    load = Load(*(fields.get(name, 0) for name in names[9:]))
    frames = TokenSpeed(revision).encode_tick(rows, load, fields.get("engine_index", 0))
    assert frames == [base64.b64decode(output["payloads"][RECORDED[revision]])]


def test_registration_equals_the_recorded_bytes() -> None:
    recorded = base64.b64decode(FIXTURE["handshake"]["registration"])
    info = EngineInfo(
        version="tokenspeed-0.1.1",
        max_model_len=131072,
        max_num_seqs=256,
        page_size=64,
        num_pages=6660,
        cache_tokens=426176,
        dtype="bfloat16",
        instance_id="m",
        data_parallel_size=2,
    )
    assert TokenSpeed().encode_registration(info, 1) == recorded


@pytest.mark.parametrize("recorded", FIXTURE["requests"], ids=lambda request: request["name"])
@pytest.mark.parametrize("elements", [25, 24, 12, 11])
def test_requests_are_understood_from_any_prefix(recorded: dict[str, Any], elements: int) -> None:
    kind, payload = (base64.b64decode(frame) for frame in recorded["frames"])
    if elements < 25:
        payload = msgpack.packb(msgpack.unpackb(payload)[:elements])
    values = dict(zip(FIXTURE["request_field_order"], recorded["decoded"][1:], strict=True))
    wanted = dict(zip(FIXTURE["sampling_field_order"], values["sampling_params"], strict=True))
    event = TokenSpeed().decode_request([kind, payload])

    assert isinstance(event, Add)
    request = event.request
    assert (request.rid, request.prompt_ids) == (values["rid"], values["input_ids"])
    assert (request.logprobs, request.stream) == (values["return_logprob"], values["stream"])
    assert (request.top_logprobs, request.prompt_logprobs) == (0, None)
    stop_ids = wanted["stop_token_ids"]
    wanted["stop_token_ids"] = None if stop_ids is None else tuple(stop_ids)
    names = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
    constraints = {names[constraint.kind]: constraint.value for constraint in request.sampling.constraints}
    assert constraints == {name: wanted[name] for name in names.values() if wanted[name] is not None}
    for name in wanted.keys() & Sampling.__struct_fields__:
        assert getattr(request.sampling, name) == wanted[name], name


def test_the_tuple_form_is_understood() -> None:
    # Named like the tag of the other form, to be told apart all the same.
    rid = "TokenizedGenerateReqInput"
    sampling = [8, [2, 3], 0.5, 0.9, 40, 0.05, 0.1, 0.2, 1.1, 1, True, 42, 1]
    event = TokenSpeed().decode_request([b"\0", msgpack.packb([rid, [1, 70000], sampling, True, False])])
    assert event == Add(
        EngineRequest(
            rid=rid,
            prompt_ids=[1, 70000],
            sampling=Sampling(
                max_new_tokens=8,
                stop_token_ids=(2, 3),
                temperature=0.5,
                top_p=0.9,
                top_k=40,
                min_p=0.05,
                frequency_penalty=0.1,
                presence_penalty=0.2,
                repetition_penalty=1.1,
                min_new_tokens=1,
                ignore_eos=True,
                seed=42,
                n=1,
            ),
            logprobs=True,
            stream=False,
        )
    )


def test_logprobs_beyond_the_sampled_token_are_seen() -> None:
    payload = base64.b64decode(FIXTURE["requests"][0]["frames"][1])
    fields = msgpack.unpackb(payload)[:11]
    for place, value, expected in [(7, 0, (0, 0)), (8, 5, (5, None)), (9, [1, 2], (2, None))]:
        changed = [*fields[:place], value, *fields[place + 1 :]]
        event = TokenSpeed().decode_request([b"\0", msgpack.packb(changed)])
        assert isinstance(event, Add)
        assert (event.request.top_logprobs, event.request.prompt_logprobs) == expected


def test_aborts_are_understood() -> None:
    frames = [base64.b64decode(frame) for frame in FIXTURE["abort"]["frames"]]
    assert TokenSpeed().decode_request(frames) == Abort(FIXTURE["abort"]["rids"])


@pytest.mark.parametrize(
    ("frames", "clue"),
    [
        ([], "0 frames"),
        ([b"\0"], "1 frames"),
        ([b"\x07", b"\x90"], "unknown message type 07"),
        ([b"\0", b"\x92\x01"], "incomplete"),
        ([b"\0", b"\xc1"], "FormatError"),
        ([b"\0", b"\x90" * 2], "ExtraData"),
        ([b"\0", msgpack.packb("x")], "Expected `array`"),
        ([b"\0", msgpack.packb(["x", [1, "2"], [], False, True])], "$[1][1]"),
        ([b"\0", msgpack.packb(["TokenizedGenerateReqInput", "x", None, None, [1], ["8"], False, -1, 0])], "length 11"),
        ([b"\1", msgpack.packb([1])], "$[0]"),
    ],
)
def test_what_cannot_be_read_is_said_and_not_raised(frames: list[bytes], clue: str) -> None:
    event = TokenSpeed().decode_request(frames)
    assert isinstance(event, Malformed)
    assert clue in event.reason
