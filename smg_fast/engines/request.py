"""A generation as the gateway asks for it, before an engine family translates it to its wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from .._codec import TokenIds

ConstraintKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must be: JSON by a schema, a match of a regular expression as a whole, ...

    ``value`` is the constraint's text, a schema's in JSON; for a choice the texts to choose from; for ``json_object``
    (any JSON object) empty.
    """

    kind: ConstraintKind
    value: str | tuple[str, ...] = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample, in the API's terms: validated, every value concrete, not yet in any engine's normal form.

    ``top_k`` -1 or 0 means all tokens; ``temperature`` 0 means greedy. ``stop_token_ids`` are the request's, and those
    that stand for its stop strings. ``logprobs`` is a number of alternatives, 0 asks for the sampled token's alone;
    ``prompt_logprobs`` the same for the prompt's tokens. ``bad_words`` are sequences of token ids that must not occur.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. ``rid`` is unique among those in flight.

    ``eos_token_ids`` are the model's, the tokenizer's own first. ``data_parallel_rank`` names the engine of the worker
    that has to take it. A lower ``priority`` goes first.
    """

    rid: str
    prompt_ids: TokenIds
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
