"""What an answer must look like, in llama.cpp's terms: one grammar."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import llguidance

if TYPE_CHECKING:
    from smg_fast.embedded.wire import Sampling

# llama.cpp hands a grammar that begins so to llguidance; any other it reads itself, as GBNF.
_LARK = "%llguidance {}\n"

# Of JSON: on one line. Where it may have any blanks, small models go on with them for ever.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class UnsupportedError(ValueError):
    """A request that this engine cannot honour. The text tells why."""


def grammar_for(sampling: Sampling) -> str | None:
    """The grammar that a request's constraint amounts to, if it has one.

    llama.cpp generates without a constraint, and says nothing, where llguidance refuses it: so it is tried out here.

    Raises
    ------
    UnsupportedError
        More constraints than one, or one that cannot be honoured.
    """
    if not sampling.constraints:
        return None
    if len(sampling.constraints) > 1:
        kinds = " and ".join(constraint.kind for constraint in sampling.constraints)
        raise UnsupportedError(f"{kinds}: one constraint is the most that an answer can have")
    (constraint,) = sampling.constraints
    kind, value = constraint.kind, constraint.value
    if kind == "json" and isinstance(value, str):
        return _checked(kind, f"{_LARK}start: %json {_compact(value)}")
    if kind == "regex" and isinstance(value, str):
        return _checked(kind, f"{_LARK}start: /{llguidance.regex_to_lark(value)}/")
    if kind == "grammar" and isinstance(value, str):
        return value
    raise UnsupportedError(f"{kind}: llama.cpp has nothing like it")


def _compact(text: str) -> str:
    """A schema on one line, as it must be inside a grammar."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"json: not JSON: {error}") from None
    if isinstance(schema, dict):
        schema.setdefault("x-guidance", _LAYOUT)
    return json.dumps(schema)


def _checked(name: str, grammar: str) -> str:
    error: str = llguidance.LLMatcher.validate_grammar(grammar)
    if error and not error.startswith("WARNING"):
        # Below it stands the grammar, which the client did not write.
        raise UnsupportedError(f"{name}: {error.splitlines()[0]}")
    return grammar
