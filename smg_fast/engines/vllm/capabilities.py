"""What vLLM can do. Facts from vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from ..capabilities import Capabilities, OptionalParameter
from ..request import ConstraintKind

ConstraintBackend = Literal["guidance", "xgrammar", "outlines", "lm-format-enforcer"]

#: Alternatives at most where an engine sets no limit: each is looked up, rendered and sent, with every token.
MOST_LOGPROBS = 1000

_EVERY_KIND: frozenset[ConstraintKind] = frozenset(get_args(ConstraintKind))

#: What each backend compiles (``vllm/v1/structured_output``); at the rest the engine fails the request.
BACKEND_CONSTRAINTS: Mapping[ConstraintBackend, frozenset[ConstraintKind]] = {
    "guidance": _EVERY_KIND,
    "xgrammar": _EVERY_KIND,  # it gets a choice as a grammar
    "outlines": frozenset(("json_schema", "regex", "choice")),
    "lm-format-enforcer": frozenset(("json_schema", "json_object", "regex", "choice")),
}


def capabilities_with(backend: ConstraintBackend = "guidance", max_logprobs: int = 20) -> Capabilities:
    """Those of an engine with this constraint backend, and this ``--max-logprobs``, of which -1 is no limit."""
    return Capabilities(
        max_top_k=None,
        max_top_logprobs=MOST_LOGPROBS if max_logprobs == -1 else max_logprobs,
        constraints=BACKEND_CONSTRAINTS[backend],
        parameters=frozenset(get_args(OptionalParameter)),
        constraint_backend=backend,
    )
