"""Requests in TokenSpeed's normal form, read back with msgpack and compared with what its own code encodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_fast._codec import Protocol, TokenIds
from smg_fast.engines import Constraint, ConstraintKind, EngineFamily, GenerationRequest, SamplingParams, family

WIRE = json.loads((Path(__file__).parents[1] / "data" / "tokenspeed" / "wire-0.1.1.json").read_text())
RECORDED = {request["name"]: request["decoded"] for request in WIRE["requests"]}


def encode(rid: str, sampling: SamplingParams, engine: EngineFamily | None = None) -> list[Any]:
    """Payload of the request, decoded."""
    return payload_of(GenerationRequest(rid=rid, prompt_ids=TokenIds([1, 2, 3, 70000]), sampling=sampling), engine)


def payload_of(request: GenerationRequest, engine: EngineFamily | None = None) -> list[Any]:
    type_byte, payload = (engine or family("tokenspeed")).encode_request(request, Protocol.tokenspeed())
    assert type_byte == b"\x00"
    fields: list[Any] = msgpack.unpackb(payload)
    return fields


def sampled(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters on the wire, by name."""
    return dict(zip(WIRE["sampling_field_order"], encode("x", sampling)[5], strict=True))


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        (
            "plain",
            SamplingParams(max_tokens=8, temperature=0.5, top_p=0.9, stop_token_ids=(2,), seed=42, logprobs=0),
        ),
        ("greedy", SamplingParams(max_tokens=16, temperature=0.0)),
        (
            "penalties",
            SamplingParams(
                max_tokens=16,
                temperature=0.7,
                top_k=40,
                min_p=0.05,
                frequency_penalty=0.1,
                presence_penalty=0.2,
                repetition_penalty=1.1,
                min_tokens=1,
                ignore_eos=True,
            ),
        ),
    ],
)
def test_what_the_engines_own_code_encodes(name: str, sampling: SamplingParams) -> None:
    recorded = RECORDED[name]
    stream = 1 + WIRE["request_field_order"].index("stream")
    encoded = encode(name, sampling)
    # "stream" is how the recorded client wanted its answer; the gateway always wants ticks.
    assert encoded[:stream] == recorded[:stream]
    assert encoded[stream] is True


@pytest.mark.parametrize(
    ("kind", "field"),
    [("json_schema", "json_schema"), ("regex", "regex"), ("grammar", "ebnf"), ("structural_tag", "structural_tag")],
)
def test_a_constraint_has_a_field_of_its_own(kind: ConstraintKind, field: str) -> None:
    plain = sampled(SamplingParams(max_tokens=1))
    constrained = sampled(SamplingParams(max_tokens=1, constraint=Constraint(kind, "text")))
    assert {name for name in plain if plain[name] != constrained[name]} == {field}
    assert constrained[field] == "text"


def test_any_json_object_is_a_schema_and_a_choice_a_regular_expression() -> None:
    any_object = sampled(SamplingParams(max_tokens=1, constraint=Constraint("json_object")))
    assert json.loads(any_object["json_schema"]) == {"type": "object"}
    choice = sampled(SamplingParams(max_tokens=1, constraint=Constraint("choice", ("a.b", "c (d)"))))["regex"]
    assert [bool(re.fullmatch(choice, text)) for text in ("a.b", "c (d)", "axb", "a.bc")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("logprobs of more", {"logprobs": 1}),
        ("prompt_logprobs", {"prompt_logprobs": 0}),
        ("logit_bias", {"logit_bias": {1: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": (1,)}),
        ("bad_words", {"bad_words": ((1, 2),)}),
    ],
)
def test_what_the_wire_has_no_room_for_is_not_dropped(name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"TokenSpeed has no .*{name}"):
        encode("x", SamplingParams(max_tokens=1, **asked))


@pytest.mark.parametrize("asked", [{"priority": 1}, {"cache_salt": "s"}])
def test_nor_is_what_goes_with_the_request(asked: dict[str, Any]) -> None:
    request = GenerationRequest(rid="x", prompt_ids=TokenIds([1]), sampling=SamplingParams(max_tokens=1), **asked)
    with pytest.raises(ValueError, match=f"TokenSpeed has no {next(iter(asked))}"):
        payload_of(request)


@pytest.mark.parametrize("top_k", [-1, 0])
def test_all_tokens_have_a_number_of_their_own(top_k: int) -> None:
    assert sampled(SamplingParams(max_tokens=1, top_k=top_k))["top_k"] == 2**30


@pytest.mark.parametrize("top_k", [128, 1000, 2**30, -2])
def test_a_top_k_the_engine_refuses_is_refused_here(top_k: int) -> None:
    with pytest.raises(ValueError, match=f"top_k must be -1, 0 or 1 to 127, got {top_k}"):
        sampled(SamplingParams(max_tokens=1, top_k=top_k))
    assert sampled(SamplingParams(max_tokens=1, top_k=127))["top_k"] == 127
    assert family("tokenspeed").capabilities.max_top_k == 127


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (9e-7, True), (1e-6, False), (0.01, False)])
def test_hardly_any_temperature_is_greedy(temperature: float, greedy: bool) -> None:
    wire = sampled(SamplingParams(max_tokens=1, temperature=temperature, top_k=5))
    expected = (1.0, 1, 0) if greedy else (temperature, 5, None)
    assert (wire["temperature"], wire["top_k"], wire["seed"]) == expected


def test_a_seed_of_the_client_breaks_ties_of_greedy_sampling() -> None:
    assert sampled(SamplingParams(max_tokens=1, temperature=0.0, seed=7))["seed"] == 7


def test_the_first_revision_of_the_wire() -> None:
    sampling = SamplingParams(max_tokens=5, temperature=0.5, top_p=0.9, min_tokens=2, stop_token_ids=(7, 8), seed=3)
    assert encode("r", sampling, family("tokenspeed", request_form="tuple")) == [
        "r",
        [1, 2, 3, 70000],
        [5, [7, 8], 0.5, 0.9, 2**30, 0.0, 0.0, 0.0, 1.0, 2, False, 3, 1],
        False,
        True,
    ]


def test_abort() -> None:
    type_byte, payload = family("tokenspeed").encode_abort(["a", "b"])
    assert (type_byte, msgpack.unpackb(payload)) == (b"\x01", ["a", "b"])


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown runtime 'vllm7'; known: vllm, tokenspeed"):
        family("vllm7")
