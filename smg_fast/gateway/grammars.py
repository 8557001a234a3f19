"""Whether a constraint compiles: an engine that is sent one that does not fails the request, or worse."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import llguidance
import msgspec
from llguidance import LLMatcher, StructTag

from ..engines import Capabilities, Constraint
from .constraints import NamedConstraint
from .errors import invalid

#: The backend that compiles with the same library as this module; it reads grammars in Lark's notation too. Of the
#: others' constraints only regular expressions are tried: what the library does not know of those (look-around,
#: references back) the others do not either.
_GUIDANCE = "guidance"


async def check_compiles(named: NamedConstraint, capabilities: Capabilities) -> None:
    """Compile a constraint and forget the result. The loop is not held: it takes 1 ms, a large one 0.2 s.

    Raises ``ApiError``, 400, telling what is wrong with it.
    """
    kind, value = named.constraint.kind, named.constraint.value
    if capabilities.constraint_backend != _GUIDANCE:
        if kind == "grammar" and "::=" not in value:
            raise invalid(named.param, f"{named.param} must be in EBNF with this engine: rule ::= ...")
        if kind != "regex":
            return
    error = await asyncio.to_thread(_error, named.constraint)
    if error is not None:
        raise invalid(named.param, f"{named.param} does not compile: {error}")


@functools.lru_cache(maxsize=128)
def _error(constraint: Constraint) -> str | None:
    """Why a constraint does not compile. The library bounds its own time and memory."""
    try:
        error: str = LLMatcher.validate_grammar(_grammar(constraint))
    except (KeyError, TypeError, ValueError) as raised:
        error = str(raised)
    if not error or error.startswith("WARNING"):
        return None
    # Behind the reason it shows the grammar, which the client did not write.
    reason = error.partition("\n   1 | ")[0]
    return " ".join(reason.split())


def _grammar(constraint: Constraint) -> str:
    """As vLLM's backend of that name makes it (facts from 0.32, ``serialize_guidance_grammar``)."""
    kind, value = constraint.kind, constraint.value
    if kind == "json_object":
        return _of_schema('{"type":"object"}')
    if isinstance(value, tuple):
        return _text(llguidance.grammar_from("choice", msgspec.json.encode(value).decode()))
    if kind == "json_schema":
        return _of_schema(value)
    if kind == "structural_tag":
        return _of_structural_tag(msgspec.json.decode(value))
    return _text(llguidance.grammar_from(kind, value))


def _of_schema(schema: str | dict[str, Any]) -> str:
    return _text(LLMatcher.grammar_from_json_schema(schema))


def _of_structural_tag(tag: dict[str, Any]) -> str:
    if "structures" not in tag:
        raise ValueError("the engine knows structures and triggers only, no format")
    tags = []
    for structure in tag["structures"]:
        begin = structure["begin"]
        trigger = next((trigger for trigger in tag["triggers"] if begin.startswith(trigger)), None)
        if not trigger:
            raise ValueError(f"no trigger begins {begin!r}")
        grammar = _of_schema(structure["schema"])
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=grammar, end=structure["end"]))
    if not tags:
        raise ValueError("it has no structures")
    return _text(StructTag.to_grammar(tags))


def _text(grammar: object) -> str:
    assert isinstance(grammar, str)
    return grammar
