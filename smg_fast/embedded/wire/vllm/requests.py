"""Requests: arrays by the layout of the version, sampling parameters as a map without its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgpack
import msgspec

from smg_fast.embedded.wire.messages import (
    Abort,
    Add,
    Constraint,
    ConstraintKind,
    EngineRequest,
    Malformed,
    Sampling,
    StartWave,
    Utility,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_fast.embedded.wire.messages import Request
    from smg_fast.embedded.wire.vllm.layouts import Layout

ADD, ABORT, START_DP_WAVE, UTILITY = b"\x00", b"\x01", b"\x02", b"\x03"

_DELTA = 1  # of the kinds of output


class _StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    backend: str | None = msgspec.field(default=None, name="_backend")
    backend_was_auto: bool = msgspec.field(default=False, name="_backend_was_auto")


class _Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text generation needs. A real engine passes over a name that it does not know; here it is refused."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    output_kind: int = 0
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    eos_token_id: int | None = msgspec.field(default=None, name="_eos_token_id")
    all_stop_token_ids: tuple[int, ...] = msgspec.field(default=(), name="_all_stop_token_ids")
    structured_outputs: _StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] | None = msgspec.field(default=None, name="_bad_words_token_ids")
    skip_reading_prefix_cache: bool | None = None
    routed_experts_prompt_start: int = 0
    watermarking: bool = False


class _Request(msgspec.Struct, frozen=True):
    """The fields that mean something to an engine of texts; others must be as they are in every such request."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: _Sampling
    arrival_time: float
    mm_features: None = None
    pooling_params: None = None
    eos_token_id: int | None = None
    """Before ``_eos_token_id`` was among the sampling parameters."""
    lora_request: None = None
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
    prompt_embeds: None = None
    prompt_is_token_ids: None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: None = None


def decode_request(frames: Sequence[bytes], layout: Layout) -> Request:
    """Reads one message, the type byte first."""
    if len(frames) < 2:
        return Malformed(f"{len(frames)} frames: expected a type byte and a payload")
    kind, payload = frames[0], frames[1]
    try:
        message = msgpack.unpackb(payload, strict_map_key=False)
        if kind == ADD:
            return Add(_engine_request(message, layout))
        if kind == ABORT:
            return Abort(msgspec.convert(message, list[str]))
        if kind == START_DP_WAVE:
            return StartWave(*msgspec.convert(message, tuple[int, int | None]))
        if kind == UTILITY:
            client, call_id, method, _ = msgspec.convert(message, tuple[int, int, str, Any])
            return Utility(call_id, method, client)
    except (ValueError, msgspec.ValidationError) as error:
        return Malformed(f"message of type {kind.hex()}: {error!r}")
    return Malformed(f"unknown message type {kind.hex()}")


def _engine_request(message: Any, layout: Layout) -> EngineRequest:
    elements = msgspec.convert(message, list[Any])
    if len(elements) > len(layout.request):
        raise ValueError(f"{len(elements)} elements where vLLM {layout.version} has {len(layout.request)}")
    request = msgspec.convert(dict(zip(layout.request, elements, strict=False)), _Request)
    sampling = request.sampling_params
    # Where the layout has a place of its own for it, an engine looks nowhere else.
    eos = request.eos_token_id if "eos_token_id" in layout.request else sampling.eos_token_id
    outputs = sampling.structured_outputs or _StructuredOutputs()
    return EngineRequest(
        rid=request.request_id,
        prompt_ids=request.prompt_token_ids,
        sampling=Sampling(
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            n=sampling.n,
            logit_bias=sampling.logit_bias,
            allowed_token_ids=sampling.allowed_token_ids,
            bad_words=sampling.bad_words_token_ids or (),
            constraints=_constraints(outputs),
            backend=outputs.backend,
        ),
        logprobs=sampling.logprobs is not None,
        top_logprobs=sampling.logprobs or 0,
        prompt_logprobs=sampling.prompt_logprobs,
        eos_token_ids=() if eos is None else (eos,),
        all_stop_token_ids=sampling.all_stop_token_ids,
        delta=sampling.output_kind == _DELTA,
        skip_prefix_cache=sampling.skip_reading_prefix_cache is True,
        cache_salt=request.cache_salt,
        priority=request.priority,
        data_parallel_rank=request.data_parallel_rank,
        wave=request.current_wave,
        client=request.client_index,
    )


def _constraints(outputs: _StructuredOutputs) -> tuple[Constraint, ...]:
    constraints = []
    kinds: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
    for kind in kinds:
        value = getattr(outputs, kind)
        if value is None or value is False:
            continue
        if isinstance(value, dict):
            value = msgspec.json.encode(value).decode()
        constraints.append(
            Constraint(
                kind=kind,
                value="" if value is True else value,
                whitespace_pattern=outputs.whitespace_pattern,
                disable_any_whitespace=outputs.disable_any_whitespace,
                disable_additional_properties=outputs.disable_additional_properties,
            )
        )
    return tuple(constraints)
