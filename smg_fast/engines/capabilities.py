"""What an engine family honours. Validation reads it and refuses the rest; nothing is silently dropped."""

from __future__ import annotations

import msgspec

from .request import ConstraintKind


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold for every engine of a family.

    Attributes
    ----------
    max_top_k : int
        Largest ``top_k`` that selects anything; "all" (-1 or 0) is always honoured.
    max_top_logprobs : int
        Alternatives that can be had beside the sampled token's logprob; 0: that one only.
    constraints : frozenset of str
        Kinds of constraint that an answer can have.
    """

    max_top_k: int
    max_top_logprobs: int
    constraints: frozenset[ConstraintKind]
