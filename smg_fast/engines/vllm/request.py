"""API terms -> what an EngineCore takes from its own frontend, whose normalisation it relies on.

Facts from vLLM 0.32 (``SamplingParams.__post_init__`` and ``update_from_generation_config``) and recordings of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..._codec import Protocol, encode_vllm_request
from ..request import Constraint, ConstraintKind, GenerationRequest
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
    # Greedy sampling chooses from all tokens, whatever else is asked for.
    greedy = sampling.temperature == 0
    eos_token_ids = request.eos_token_ids
    stops = () if sampling.ignore_eos else eos_token_ids
    constraint = _constraint(sampling.constraint, backend)
    # All by name, nothing unpacked: it is called for every request.
    return encode_vllm_request(
        protocol,
        request.rid,
        request.prompt_ids,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=0.0 if greedy else max(sampling.temperature, _MIN_TEMPERATURE),
        top_p=1.0 if greedy else sampling.top_p,
        top_k=0 if greedy else max(sampling.top_k, 0),
        min_p=0.0 if greedy else sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        # The engine knows no token of the model's own, and reports those of `stop_token_ids` as the reason.
        ignore_eos=sampling.ignore_eos,
        eos_token_id=stops[0] if stops else None,
        stop_token_ids=_once(stops[1:] + sampling.stop_token_ids),
        # What it must not sample within the first `min_tokens`.
        all_stop_token_ids=_once(eos_token_ids + sampling.stop_token_ids),
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        # What comes out of the cache is not computed, and has no logprobs.
        skip_reading_prefix_cache=sampling.prompt_logprobs is not None,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words_token_ids=sampling.bad_words,
        json=constraint.get("json"),
        regex=constraint.get("regex"),
        choice=constraint.get("choice"),
        grammar=constraint.get("grammar"),
        json_object=constraint.get("json_object", False),
        structural_tag=constraint.get("structural_tag"),
        backend=constraint.get("backend"),
        arrival_time=arrival_time,
        cache_salt=request.cache_salt,
        data_parallel_rank=request.data_parallel_rank,
        client_index=client,
        current_wave=wave,
        priority=request.priority,
    )


def _once(ids: tuple[int, ...]) -> list[int]:
    return list(dict.fromkeys(ids))


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
