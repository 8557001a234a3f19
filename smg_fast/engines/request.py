"""A generation as the gateway asks for it, before an engine family translates it to its wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from .._codec import TokenIds

ConstraintKind = Literal["json_schema", "regex", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must be: JSON by a schema, a match of a regular expression as a whole, ...

    ``value`` is the constraint's text, a schema's in JSON; a grammar's is EBNF as GBNF writes it.
    """

    kind: ConstraintKind
    value: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample, in the API's terms: validated, every value concrete, not yet in any engine's normal form.

    ``top_k`` -1 or 0 means all tokens; ``temperature`` 0 means greedy; ``logprobs`` asks for the sampled token's.
    ``skip_special_tokens`` is about text, which is made on this side of the wire: a family may leave it out.
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
    skip_special_tokens: bool = True
    logprobs: bool = False
    constraint: Constraint | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. ``rid`` is unique among those in flight."""

    rid: str
    prompt_ids: TokenIds
    sampling: SamplingParams
