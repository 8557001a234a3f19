"""What TokenSpeed can do."""

from __future__ import annotations

from ..capabilities import Capabilities

#: The engine refuses top_k from 128 on, and returns no logprob but the sampled token's.
CAPABILITIES = Capabilities(
    max_top_k=127,
    max_top_logprobs=0,
    constraints=frozenset(("json_schema", "regex", "grammar", "structural_tag")),
)
