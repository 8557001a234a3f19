"""vLLM's wire from Python: versions, and requests as vLLM's own frontend writes them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_fast._codec import Protocol, TokenIds, encode_start_wave, encode_vllm_request

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted((DATA / "vllm-0.32.0").glob("*.json"))}
VERSIONS = list(json.loads((DATA / "vllm-layouts.json").read_text()))
V0_32 = Protocol.vllm("0.32.0")


def decoded(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def encoded(recorded: list[Any], protocol: Protocol = V0_32) -> list[bytes]:
    """The request that a recorded one asks for."""
    rid, prompt, _, sampling, *_ = recorded
    outputs = sampling.get("structured_outputs") or {}
    kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    constraint = {kind: outputs[kind] for kind in kinds if outputs.get(kind) is not None}
    taken = {"stop", "bad_words", "output_kind", "structured_outputs", "_eos_token_id", "_all_stop_token_ids"}
    return encode_vllm_request(
        protocol,
        rid,
        TokenIds(prompt),
        **{"max_tokens": 16, **{key: value for key, value in sampling.items() if key not in taken}},
        eos_token_id=sampling.get("_eos_token_id"),
        all_stop_token_ids=sampling.get("_all_stop_token_ids", []),
        backend=outputs.get("_backend"),
        arrival_time=1.0,
        **constraint,
    )


@pytest.mark.parametrize("name", [name for name, recording in RECORDINGS.items() if "requests" in recording])
def test_a_request_is_what_vllms_own_frontend_sent(name: str) -> None:
    for request in RECORDINGS[name]["requests"]:
        kind, payload = (base64.b64decode(frame) for frame in request["frames"])
        frames = encoded(decoded(payload))
        assert frames[0] == kind
        assert decoded(frames[1]) == decoded(payload)


def test_what_no_recording_asks_for() -> None:
    _, payload = encode_vllm_request(
        V0_32,
        "r",
        TokenIds([1, 2]),
        max_tokens=5,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        allowed_token_ids=[3, 4],
        bad_words_token_ids=[[5], [6, 7]],
        structural_tag="{}",
        disable_any_whitespace=True,
        whitespace_pattern=" ",
        cache_salt="salt",
        data_parallel_rank=1,
        client_index=2,
        current_wave=3,
        priority=-4,
    )
    request = decoded(payload)
    sampling = request[3]
    expected: dict[str, Any] = {
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 1.5,
    }
    expected |= {"repetition_penalty": 1.1, "allowed_token_ids": [3, 4], "_bad_words_token_ids": [[5], [6, 7]]}
    assert {key: sampling[key] for key in expected} == expected
    outputs = sampling["structured_outputs"]
    assert (outputs["structural_tag"], outputs["disable_any_whitespace"]) == ("{}", True)
    assert (outputs["whitespace_pattern"], outputs["_backend"]) == (" ", None)
    assert [request[place] for place in (7, 8, 11, 12, 13)] == ["salt", 1, 2, 3, -4]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_has_the_length_of_its_version(version: str) -> None:
    layouts = json.loads((DATA / "vllm-layouts.json").read_text())
    _, payload = encode_vllm_request(Protocol.vllm(version), "r", TokenIds([1]), max_tokens=1)
    assert len(decoded(payload)) == len(layouts[version]["EngineCoreRequest"])


@pytest.mark.parametrize("wave", [0, 300, 2**64 - 1])
def test_a_wave_that_no_engine_has_begun(wave: int) -> None:
    kind, payload = encode_start_wave(wave)
    assert (kind, decoded(payload)) == (b"\x02", [wave, None])


@pytest.mark.parametrize("wave", [-1, 2**64])
def test_what_is_no_wave(wave: int) -> None:
    with pytest.raises(OverflowError):
        encode_start_wave(wave)


def test_versions() -> None:
    assert Protocol.vllm("0.32.0+cpu") == V0_32 != Protocol.tokenspeed()
    assert hash(Protocol.vllm("0.32.5")) == hash(V0_32)
    assert (V0_32.warning, Protocol.tokenspeed().warning) == (None, None)
    newer = Protocol.vllm("0.99.0")
    assert newer == Protocol.vllm("0.33.0")
    assert newer.warning is not None
    assert "0.99.0 is newer than 0.33.0" in newer.warning
    with pytest.raises(ValueError, match=r"0\.11\.0 is older than 0\.12\.0"):
        Protocol.vllm("0.11.0")
    with pytest.raises(ValueError, match="not a version"):
        Protocol.vllm("main")


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="one constraint"):
        encode_vllm_request(V0_32, "r", TokenIds([1]), max_tokens=1, regex="a", choice=["a"])
    with pytest.raises(ValueError, match="not vLLM's"):
        encode_vllm_request(Protocol.tokenspeed(), "r", TokenIds([1]), max_tokens=1)
