"""What TokenSpeed can do."""

from __future__ import annotations

from ..capabilities import Capabilities

#: The engine refuses top_k from here on.
TOP_K_LIMIT = 128

#: The engine returns no logprob but the sampled token's.
CAPABILITIES = Capabilities(
    max_top_k=TOP_K_LIMIT - 1,
    max_top_logprobs=0,
    constraints=frozenset(("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")),
)
