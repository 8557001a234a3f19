"""What an engine family honours. Validation reads it and refuses the rest; nothing is silently dropped."""

from __future__ import annotations

from typing import Literal

import msgspec

from .request import ConstraintKind

#: Parameters of ``SamplingParams`` and ``GenerationRequest`` that some families have no room for.
OptionalParameter = Literal[
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "logit_bias",
    "priority",
    "prompt_logprobs",
]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold for every engine of a family.

    Attributes
    ----------
    max_top_k : int, optional
        Largest ``top_k`` that selects anything; "all" (-1 or 0) is always honoured. ``None``: any.
    max_top_logprobs : int
        Alternatives that can be had beside the sampled token's logprob; 0: that one only.
    constraints : frozenset of str
        Kinds of constraint that an answer can have.
    parameters : frozenset of str
        Of the optional parameters, those that are honoured.
    constraint_backend : str, optional
        What the engine enforces constraints with, where that is known: ``guidance``, ``xgrammar``, ...
    """

    max_top_k: int | None
    max_top_logprobs: int
    constraints: frozenset[ConstraintKind]
    parameters: frozenset[OptionalParameter] = frozenset()
    constraint_backend: str | None = None
