"""Requests as vLLM's own frontend writes them, read back with msgpack and compared with recorded ones."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest

from smg_fast._codec import Protocol, TokenIds
from smg_fast.engines import (
    VLLM,
    Constraint,
    ConstraintBackend,
    ConstraintKind,
    EngineFamily,
    GenerationRequest,
    SamplingParams,
    family,
)

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted((DATA / "vllm-0.32.0").glob("*.json"))}
LAYOUTS = json.loads((DATA / "vllm-layouts.json").read_text())
V0_32 = Protocol.vllm("0.32.0")
FIELDS: list[str] = LAYOUTS["0.32.0"]["EngineCoreRequest"]

#: The kinds of constraint, by their keys on the wire.
KINDS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
#: What the engine takes for unsaid.
DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "max_tokens": 16,
    "ignore_eos": False,
}


def fields(payload: bytes) -> dict[str, Any]:
    return dict(zip(FIELDS, msgpack.unpackb(payload, strict_map_key=False), strict=True))


def encode(request: GenerationRequest, engine: EngineFamily | None = None, wave: int = 0) -> dict[str, Any]:
    """The request on the wire, by name."""
    type_byte, payload = (engine or family("vllm")).encode_request(request, V0_32, wave=wave)
    assert type_byte == b"\x00"
    return fields(payload)


def sampled(eos_token_ids: tuple[int, ...] = (2,), **sampling: Any) -> dict[str, Any]:
    """Sampling parameters on the wire, with what goes without saying."""
    request = GenerationRequest(
        rid="x",
        prompt_ids=TokenIds([1, 2]),
        sampling=SamplingParams(**{"max_tokens": 5, **sampling}),
        eos_token_ids=eos_token_ids,
    )
    return {**DEFAULTS, **encode(request)["sampling_params"]}


def asked(recorded: dict[str, Any]) -> GenerationRequest:
    """What a client must have asked for, given the recorded request."""
    sampling = recorded["sampling_params"]
    outputs = sampling.get("structured_outputs") or {}
    constraint = None
    for key, kind in KINDS.items():
        value = outputs.get(key)
        if value is not None:
            constraint = Constraint(kind, "" if value is True else tuple(value) if isinstance(value, list) else value)
    as_they_are = {
        name: sampling[name]
        for name in (*DEFAULTS, "seed", "logprobs", "prompt_logprobs", "logit_bias")
        if name in sampling
    }
    return GenerationRequest(
        rid=recorded["request_id"],
        prompt_ids=TokenIds(recorded["prompt_token_ids"]),
        sampling=SamplingParams(
            **{"max_tokens": 16, **as_they_are},
            stop_token_ids=tuple(sampling["stop_token_ids"]),
            constraint=constraint,
        ),
        eos_token_ids=(2,),
    )


def meaning(request: dict[str, Any]) -> dict[str, Any]:
    """A request without when it came, and what changes nothing."""
    sampling = {**DEFAULTS, **request["sampling_params"]}
    masked = set(sampling.pop("_all_stop_token_ids", ()))
    # Only until there are min_tokens does the engine look at them.
    sampling["masked"] = masked if sampling["min_tokens"] else set()
    if (outputs := sampling.get("structured_outputs")) is not None:
        assert outputs.pop("_backend") in ("guidance", None)  # one recording shows what becomes of None
    return {**request, "sampling_params": sampling, "arrival_time": None}


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, recording in RECORDINGS.items() for number in range(len(recording.get("requests", ())))],
)
def test_a_request_means_what_the_recorded_one_does(name: str, number: int) -> None:
    _, payload = RECORDINGS[name]["requests"][number]["frames"]
    recorded = fields(base64.b64decode(payload))
    assert meaning(encode(asked(recorded))) == meaning(recorded)


@pytest.mark.parametrize("version", LAYOUTS)
def test_a_request_has_the_layout_of_its_version(version: str) -> None:
    order: list[str] = LAYOUTS[version]["EngineCoreRequest"]
    request = GenerationRequest(
        rid="x",
        prompt_ids=TokenIds([1, 2]),
        sampling=SamplingParams(max_tokens=5),
        priority=-3,
        cache_salt="salt",
        data_parallel_rank=1,
    )
    before = time.time()
    _, payload = family("vllm").encode_request(request, Protocol.vllm(version), wave=7)
    said = dict(zip(order, msgpack.unpackb(payload), strict=True))
    expected = {"request_id": "x", "prompt_token_ids": [1, 2], "priority": -3, "cache_salt": "salt"}
    expected |= {"data_parallel_rank": 1, "current_wave": 7, "client_index": 0}
    assert {name: said[name] for name in expected} == expected
    assert before <= said["arrival_time"] <= time.time()


def test_greedy_sampling_chooses_from_all_tokens() -> None:
    wire = sampled(temperature=0.0, top_p=0.5, top_k=3, min_p=0.2, seed=7)
    assert (wire["temperature"], wire["top_p"], wire["top_k"], wire["min_p"], wire["seed"]) == (0.0, 1.0, 0, 0.0, 7)


@pytest.mark.parametrize(("temperature", "expected"), [(1e-6, 0.01), (0.009, 0.01), (0.01, 0.01), (0.02, 0.02)])
def test_hardly_any_temperature_is_a_little(temperature: float, expected: float) -> None:
    wire = sampled(temperature=temperature, top_p=0.5, top_k=-1)
    assert (wire["temperature"], wire["top_p"], wire["top_k"]) == (expected, 0.5, 0)


def test_the_models_further_ends_are_stop_tokens() -> None:
    wire = sampled((2, 9, 8), stop_token_ids=(7, 9))
    assert (wire["_eos_token_id"], wire["stop_token_ids"]) == (2, [9, 8, 7])
    assert set(wire["_all_stop_token_ids"]) == {2, 7, 8, 9}


def test_none_of_them_ends_an_answer_that_shall_not_end() -> None:
    wire = sampled((2, 9), stop_token_ids=(7,), ignore_eos=True, min_tokens=3)
    assert wire["ignore_eos"] is True
    assert wire.get("_eos_token_id") is None
    assert wire["stop_token_ids"] == [7]
    assert set(wire["_all_stop_token_ids"]) == {2, 7, 9}  # not sampled within the first min_tokens all the same


def test_logprobs_are_numbers_of_alternatives() -> None:
    assert sampled().get("logprobs") is None
    assert sampled(logprobs=0)["logprobs"] == 0
    wire = sampled(logprobs=5, prompt_logprobs=0)
    assert (wire["logprobs"], wire["prompt_logprobs"], wire["skip_reading_prefix_cache"]) == (5, 0, True)


def test_token_ids_that_are_wanted_and_that_are_not() -> None:
    wire = sampled(logit_bias={3: -1.5}, allowed_token_ids=(4, 5), bad_words=((6,), (7, 8)))
    assert (wire["logit_bias"], wire["allowed_token_ids"]) == ({3: -1.5}, [4, 5])
    assert wire["_bad_words_token_ids"] == [[6], [7, 8]]


@pytest.mark.parametrize(
    ("constraint", "key", "value"),
    [
        (Constraint("json_schema", "{}"), "json", "{}"),
        (Constraint("json_object"), "json_object", True),
        (Constraint("regex", "a+"), "regex", "a+"),
        (Constraint("choice", ("a", "b")), "choice", ["a", "b"]),
        (Constraint("grammar", "root"), "grammar", "root"),
        (Constraint("structural_tag", "{}"), "structural_tag", "{}"),
    ],
)
def test_a_constraint_has_a_key_of_its_own(constraint: Constraint, key: str, value: object) -> None:
    outputs = sampled(constraint=constraint)["structured_outputs"]
    keys = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    assert {name: outputs[name] for name in keys if outputs[name] is not None} == {key: value}
    assert outputs["_backend"] == "guidance"


def test_how_a_constraint_is_enforced() -> None:
    constraint = Constraint("json_object")
    request = GenerationRequest(
        rid="x", prompt_ids=TokenIds([1]), sampling=SamplingParams(max_tokens=1, constraint=constraint)
    )
    engine = family("vllm", structured_outputs_backend="xgrammar")
    outputs = encode(request, engine)["sampling_params"]["structured_outputs"]
    assert outputs["_backend"] == "xgrammar"
    assert engine.capabilities.constraint_backend == "xgrammar"


def test_what_is_configured_bounds_what_can_be_asked_for() -> None:
    assert family("vllm").capabilities.max_top_logprobs == 20
    assert family("vllm", max_logprobs=3).capabilities.max_top_logprobs == 3
    assert family("vllm", max_logprobs=0).capabilities.max_top_logprobs == 0
    assert family("vllm", max_logprobs=-1).capabilities.max_top_logprobs == 1000
    assert family("vllm").capabilities.max_top_k is None


@pytest.mark.parametrize(
    ("backend", "lacking"),
    [
        (None, set()),
        ("guidance", set()),
        ("xgrammar", set()),
        ("outlines", {"json_object", "grammar", "structural_tag"}),
        ("lm-format-enforcer", {"grammar", "structural_tag"}),
    ],
)
def test_a_constraint_needs_a_backend_that_knows_its_kind(backend: ConstraintBackend | None, lacking: set[str]) -> None:
    capabilities = family("vllm", structured_outputs_backend=backend).capabilities
    assert set(get_args(ConstraintKind)) - capabilities.constraints == lacking
    assert capabilities.constraint_backend == (backend or "guidance")


@pytest.mark.parametrize(
    ("name", "given", "option"),
    [
        ("vllm", {"request_form": "tagged"}, "--request-form is an option of the runtime tokenspeed"),
        ("tokenspeed", {"vllm_version": "0.32.0"}, "--vllm-version is an option of the runtime vllm"),
        ("tokenspeed", {"structured_outputs_backend": "guidance"}, "--structured-outputs-backend is an option of"),
        ("tokenspeed", {"max_logprobs": 0}, "--max-logprobs is an option of the runtime vllm"),
    ],
)
def test_what_means_nothing_to_a_family_is_refused(name: str, given: dict[str, Any], option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}.* this one is {name}"):
        family(name, **given)


def test_a_version_that_cannot_be_served_is_no_configuration() -> None:
    assert VLLM("0.20.2").version == "0.20.2"
    with pytest.raises(ValueError, match=r"0\.11\.0 is older than 0\.12\.0"):
        family("vllm", vllm_version="0.11.0")
    with pytest.raises(ValueError, match="not a version"):
        family("vllm", vllm_version="newest")


def test_abort() -> None:
    type_byte, payload = family("vllm").encode_abort(["a", "b"])
    assert (type_byte, msgpack.unpackb(payload)) == (b"\x01", ["a", "b"])


def test_xgrammar_gets_a_choice_as_a_grammar() -> None:
    choice = Constraint("choice", ("yes", 'a "b"\\\n', "日本"))
    request = GenerationRequest(
        rid="x", prompt_ids=TokenIds([1]), sampling=SamplingParams(max_tokens=5, constraint=choice)
    )
    outputs = encode(request, family("vllm", structured_outputs_backend="xgrammar"))["sampling_params"][
        "structured_outputs"
    ]
    assert outputs["_backend"] == "xgrammar"
    assert outputs.get("choice") is None
    assert outputs["grammar"] == r'root ::= "yes" | "a \"b\"\\\n" | "日本"'
