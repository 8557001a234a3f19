"""API terms -> TokenSpeed's normal form.

The engine takes requests marked as normalised at their word, so this is where it happens.
"""

from __future__ import annotations

from typing import Literal

from ..._codec import encode_tokenspeed_request
from ..request import GenerationRequest
from .capabilities import CAPABILITIES

#: ``tagged``: a tagged array, in use today. ``tuple``: the first revision of the wire, with untagged tuples.
RequestForm = Literal["tagged", "tuple"]

#: The engine's word for "all tokens".
TOP_K_ALL = 1 << 30
#: Below this the engine takes sampling for greedy.
GREEDY_TEMPERATURE = 1e-6


def encode_request(request: GenerationRequest, form: RequestForm) -> list[bytes]:
    """Frames of an ADD message: ``[type byte, payload]``. Raises ``ValueError`` for a ``top_k`` the engine refuses."""
    sampling = request.sampling
    temperature, seed = sampling.temperature, sampling.seed
    top_k = _top_k(sampling.top_k)
    if temperature < GREEDY_TEMPERATURE:
        temperature, top_k = 1.0, 1
        # Without a seed the engine derives one from the request id, and ties would depend on it.
        seed = 0 if seed is None else seed
    constraint: dict[str, str] = {}
    if sampling.constraint is not None:
        constraint[sampling.constraint.kind] = sampling.constraint.value
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
        return_logprob=sampling.logprobs,
        json_schema=constraint.get("json_schema"),
        regex=constraint.get("regex"),
        ebnf=constraint.get("grammar"),
        structural_tag=constraint.get("structural_tag"),
    )


def _top_k(top_k: int) -> int:
    if top_k in (-1, 0):
        return TOP_K_ALL
    if not 1 <= top_k <= CAPABILITIES.max_top_k:
        raise ValueError(f"top_k must be -1, 0 or 1 to {CAPABILITIES.max_top_k}, got {top_k}")
    return top_k
