"""What vLLM can do."""

from __future__ import annotations

from typing import get_args

from ..capabilities import Capabilities, OptionalParameter
from ..request import ConstraintKind

#: What an engine that is started without options for it can do.
CAPABILITIES = Capabilities(
    max_top_k=None,
    max_top_logprobs=20,
    constraints=frozenset(get_args(ConstraintKind)),
    parameters=frozenset(get_args(OptionalParameter)),
    constraint_backend="guidance",
)
