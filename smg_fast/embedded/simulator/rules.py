"""What an engine expects of its frontend and does not check itself.

A real engine that gets what breaks one of these fails in its own way: vLLM's EngineCore may die, and every request with
it. The simulator says which rule was broken, so that a frontend's own checks can be held against it.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smg_fast.embedded.wire.messages import Constraint, EngineRequest

Runtime = Literal["tokenspeed", "vllm"]

_TOP_K_ALL = 1 << 30
_TOP_K_BOUND = 128


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's own size and configuration allow."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    engine_index: int = 0


def broken_rule(request: EngineRequest, runtime: Runtime, limits: Limits) -> str | None:
    """The first rule that a request breaks, if any, in words."""
    own = _tokenspeed if runtime == "tokenspeed" else _vllm
    return next(_common(request, limits), None) or next(own(request, limits), None)


def _common(request: EngineRequest, limits: Limits) -> Iterator[str]:
    sampling, length = request.sampling, len(request.prompt_ids)
    if not 0 < length < limits.max_model_len:
        yield f"a prompt of {length} tokens where 1 to {limits.max_model_len - 1} fit"
    if sampling.n != 1:
        yield f"n = {sampling.n}"
    if sampling.max_new_tokens is not None:
        if sampling.max_new_tokens < 1:
            yield f"max_tokens = {sampling.max_new_tokens}"
        if sampling.min_new_tokens > sampling.max_new_tokens:
            yield f"min_tokens = {sampling.min_new_tokens} where max_tokens = {sampling.max_new_tokens}"
    if sampling.min_new_tokens < 0:
        yield f"min_tokens = {sampling.min_new_tokens}"
    for name, value, least, most in (
        ("temperature", sampling.temperature, 0.0, 2.0),
        ("top_p", sampling.top_p, math.ulp(0.0), 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("repetition_penalty", sampling.repetition_penalty, math.ulp(0.0), math.nextafter(math.inf, 0)),
    ):
        if not least <= value <= most:  # not a number is in no range
            yield f"{name} = {value}"
    if sampling.seed is not None and not -(1 << 63) <= sampling.seed < 1 << 63:
        yield f"seed = {sampling.seed}"
    for name, token in _tokens(request):
        if not 0 <= token < limits.vocab_size:
            yield f"{name}: token id {token} where 0 to {limits.vocab_size - 1} exist"
    if len(sampling.constraints) > 1:
        yield f"{len(sampling.constraints)} constraints"
    for constraint in sampling.constraints:
        fault = _fault(constraint)
        if fault is not None:
            yield f"{constraint.kind}: {fault}"


def _tokenspeed(request: EngineRequest, _: Limits) -> Iterator[str]:
    sampling = request.sampling
    if sampling.top_k < 1 or (sampling.top_k >= _TOP_K_BOUND and sampling.top_k != _TOP_K_ALL):
        yield f"top_k = {sampling.top_k}"
    if request.top_logprobs or request.prompt_logprobs is not None:
        yield "logprobs other than the sampled token's"
    if sampling.logit_bias:
        yield "logit_bias"


def _vllm(request: EngineRequest, limits: Limits) -> Iterator[str]:
    sampling = request.sampling
    if sampling.max_new_tokens is None or sampling.max_new_tokens > limits.max_model_len:
        yield f"max_tokens = {sampling.max_new_tokens} where {limits.max_model_len} is the most"
    if sampling.top_k < -1:
        yield f"top_k = {sampling.top_k}"
    for name, count in (("logprobs", request.top_logprobs), ("prompt_logprobs", request.prompt_logprobs or 0)):
        if not 0 <= count <= limits.max_logprobs:
            yield f"{name} = {count} where {limits.max_logprobs} is the most"
    if request.prompt_logprobs is not None and not request.skip_prefix_cache:
        yield "prompt_logprobs of what may come from the prefix cache, which has none"
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        yield "allowed_token_ids: none"
    if not all(sampling.bad_words):
        yield "bad_words: one without a token"
    if not all(map(math.isfinite, (sampling.logit_bias or {}).values())):
        yield "logit_bias: a bias that is not finite"
    if sampling.constraints and sampling.backend is None:
        yield f"{sampling.constraints[0].kind}: no _backend"
    stops = set(request.eos_token_ids or ())
    if sampling.min_new_tokens:
        stops.update(sampling.stop_token_ids or ())
    if not stops.issubset(request.all_stop_token_ids):
        yield f"_all_stop_token_ids = {[*request.all_stop_token_ids]} where {sorted(stops)} are stops"
    if sampling.ignore_eos and request.eos_token_ids:
        yield "ignore_eos with an _eos_token_id, at which the engine stops all the same"
    if not request.delta:
        yield "output_kind: not delta"
    if request.data_parallel_rank not in (None, limits.engine_index):
        yield f"data_parallel_rank = {request.data_parallel_rank} at the engine {limits.engine_index}"


def _tokens(request: EngineRequest) -> Iterator[tuple[str, int]]:
    sampling = request.sampling
    for name, tokens in (
        ("prompt", request.prompt_ids),
        ("stop_token_ids", sampling.stop_token_ids or ()),
        ("_eos_token_id", request.eos_token_ids or ()),
        ("_all_stop_token_ids", request.all_stop_token_ids),
        ("logit_bias", sampling.logit_bias or ()),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):
        for token in tokens:
            yield name, token
    for word in sampling.bad_words:
        for token in word:
            yield "bad_words", token


def _fault(constraint: Constraint) -> str | None:
    """Why no engine could compile it, as far as that shows without the engine's own compiler."""
    if constraint.kind in ("choice", "grammar") and not constraint.value:
        return "nothing to match"
    if isinstance(constraint.value, str):
        try:
            if constraint.kind in ("json", "structural_tag"):
                json.loads(constraint.value)
            elif constraint.kind == "regex":
                # A class of Unicode, which Python's expressions do not have, stands for something that they do.
                re.compile(re.sub(r"\\[pP](\w|\{[^}]*\})", r"\\w", constraint.value))
        except (ValueError, re.error, RecursionError) as error:
            return str(error)
    return None
