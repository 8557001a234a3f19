"""API terms -> TokenSpeed's normal form.

The engine takes requests marked as normalised at their word, so this is where it happens.
"""

from __future__ import annotations

import re
from typing import Literal

from ..._codec import encode_tokenspeed_request
from ..request import Constraint, GenerationRequest
from .capabilities import TOP_K_LIMIT

#: ``tagged``: a tagged array, in use today. ``tuple``: the first revision of the wire, with untagged tuples.
RequestForm = Literal["tagged", "tuple"]

#: The engine's word for "all tokens".
TOP_K_ALL = 1 << 30
#: Below this the engine takes sampling for greedy.
GREEDY_TEMPERATURE = 1e-6
#: The schema of any JSON object.
_ANY_OBJECT = '{"type":"object"}'


def encode_request(request: GenerationRequest, form: RequestForm) -> list[bytes]:
    """Frames of an ADD message: ``[type byte, payload]``. Raises ``ValueError`` for what the engine does not have."""
    _check(request)
    sampling = request.sampling
    temperature, seed = sampling.temperature, sampling.seed
    top_k = _top_k(sampling.top_k)
    if temperature < GREEDY_TEMPERATURE:
        temperature, top_k = 1.0, 1
        # Without a seed the engine derives one from the request id, and ties would depend on it.
        seed = 0 if seed is None else seed
    constraint: dict[str, str] = {}
    if sampling.constraint is not None:
        field, value = _constraint(sampling.constraint)
        constraint[field] = value
    return encode_tokenspeed_request(
        request.rid,
        request.prompt_ids,
        form=form,
        max_new_tokens=sampling.max_tokens,
        min_new_tokens=sampling.min_tokens,
        temperature=temperature,
        top_p=sampling.top_p,
        top_k=top_k,
        min_p=sampling.min_p,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        stop_token_ids=sampling.stop_token_ids or None,
        ignore_eos=sampling.ignore_eos,
        return_logprob=sampling.logprobs is not None,
        json_schema=constraint.get("json_schema"),
        regex=constraint.get("regex"),
        ebnf=constraint.get("ebnf"),
        structural_tag=constraint.get("structural_tag"),
    )


def _check(request: GenerationRequest) -> None:
    """Nothing that the wire has no room for is dropped."""
    sampling = request.sampling
    asked = {
        "logprobs of more than the sampled token": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "logit_bias": sampling.logit_bias,
        "allowed_token_ids": sampling.allowed_token_ids is not None,
        "bad_words": sampling.bad_words,
        "priority": request.priority,
        "cache_salt": request.cache_salt is not None,
    }
    lacking = [name for name, value in asked.items() if value]
    if lacking:
        raise ValueError(f"TokenSpeed has no {', '.join(lacking)}")


def _constraint(constraint: Constraint) -> tuple[str, str]:
    """Its field on the wire, and what that says."""
    value = constraint.value
    if constraint.kind == "json_object":
        return "json_schema", _ANY_OBJECT
    if not isinstance(value, str):
        return "regex", "|".join(map(re.escape, value))
    return ("ebnf" if constraint.kind == "grammar" else constraint.kind), value


def _top_k(top_k: int) -> int:
    if top_k in (-1, 0):
        return TOP_K_ALL
    if not 1 <= top_k < TOP_K_LIMIT:
        raise ValueError(f"top_k must be -1, 0 or 1 to {TOP_K_LIMIT - 1}, got {top_k}")
    return top_k
