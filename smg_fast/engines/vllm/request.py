"""API terms -> what an EngineCore takes from its own frontend, whose normalisation it relies on.

Facts from vLLM 0.32 (``SamplingParams.__post_init__`` and ``update_from_generation_config``) and recordings of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..._codec import Protocol, encode_vllm_request
from ..request import Constraint, ConstraintKind, GenerationRequest, SamplingParams
from .capabilities import ConstraintBackend

#: Temperatures between 0, which is greedy, and this one are raised to it.
_MIN_TEMPERATURE = 0.01
#: The keys that kinds of constraint have on the wire, where it is another word.
_KEYS: dict[ConstraintKind, str] = {"json_schema": "json"}


def encode_request(
    request: GenerationRequest,
    protocol: Protocol,
    backend: ConstraintBackend,
    *,
    arrival_time: float,
    wave: int,
    client: int,
) -> list[bytes]:
    """Frames of an ADD message: ``[type byte, payload]``.

    ``arrival_time`` is in seconds since the epoch: requests of one priority are taken in its order.
    """
    sampling = request.sampling
    return encode_vllm_request(
        protocol,
        request.rid,
        request.prompt_ids,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        **_randomness(sampling),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        **_ends(request),
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        # What comes out of the cache is not computed, and has no logprobs.
        skip_reading_prefix_cache=sampling.prompt_logprobs is not None,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words_token_ids=sampling.bad_words,
        **_constraint(sampling.constraint, backend),
        arrival_time=arrival_time,
        cache_salt=request.cache_salt,
        data_parallel_rank=request.data_parallel_rank,
        client_index=client,
        current_wave=wave,
        priority=request.priority,
    )


def _randomness(sampling: SamplingParams) -> dict[str, Any]:
    """Greedy sampling chooses from all tokens, whatever else is asked for."""
    if sampling.temperature == 0:
        return {"temperature": 0.0}
    return {
        "temperature": max(sampling.temperature, _MIN_TEMPERATURE),
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
    }


def _ends(request: GenerationRequest) -> dict[str, Any]:
    """What the engine stops at.

    It knows no token of the model's own, and reports those of ``stop_token_ids`` as the reason. ``all_stop_token_ids``
    are those that it must not sample within the first ``min_tokens``.
    """
    sampling = request.sampling
    first, further = request.eos_token_ids[:1], request.eos_token_ids[1:]
    everything = dict.fromkeys(request.eos_token_ids + sampling.stop_token_ids)
    if sampling.ignore_eos:
        first, further = (), ()
    return {
        "ignore_eos": sampling.ignore_eos,
        "eos_token_id": first[0] if first else None,
        "stop_token_ids": list(dict.fromkeys(further + sampling.stop_token_ids)),
        "all_stop_token_ids": list(everything),
    }


def _constraint(constraint: Constraint | None, backend: ConstraintBackend) -> dict[str, Any]:
    """Without a backend the first constrained request of an engine's life fails."""
    if constraint is None:
        return {}
    if isinstance(constraint.value, tuple) and backend == "xgrammar":
        # It has no choice of its own.
        constraint = msgspec.structs.replace(constraint, kind="grammar", value=_choice_grammar(constraint.value))
    return {
        _KEYS.get(constraint.kind, constraint.kind): True if constraint.kind == "json_object" else constraint.value,
        "backend": backend,
    }


def _choice_grammar(texts: Sequence[str]) -> str:
    """EBNF of one text out of several. A JSON string without its escapes for what is not ASCII is a literal there."""
    return "root ::= " + " | ".join(msgspec.json.encode(text).decode() for text in texts)
