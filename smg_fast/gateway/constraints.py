"""What an answer must be, in all the words that clients have for it: OpenAI's, vLLM's and SGLang's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..engines import Capabilities, Constraint, ConstraintKind
from .errors import invalid
from .requests import GenerateRequest, ResponseFormat, StructuredOutputs, TagStructure

#: Bytes of a constraint's text: the message of every choice repeats it, as it does the prompt.
MAX_CONSTRAINT_SIZE = 128 << 10
#: Objects and arrays inside one another, in a schema; a structural tag may wrap it in some more. vLLM's bounds: what
#: engines do with a schema is recursive, or takes the longer the deeper it is.
MAX_SCHEMA_DEPTH = 64
MAX_TAG_DEPTH = 80
#: Rules of a grammar, definitions that a schema refers to: what is made of each may stand on the stack at once, and
#: llguidance ends its process where that is full, at some 2,000 on the 8 MiB that threads have as a rule.
MAX_DEFINITIONS = 400


#: What stands before a rule in Lark's notation or in GBNF, and before a value in a schema inside: never too few.
_DEFINITION = re.compile(r"""[\w"\]}]\s*:""")


class NamedConstraint(msgspec.Struct, frozen=True):
    """``param`` is the path of the parameter that it was asked for by."""

    param: str
    constraint: Constraint


def constraint_of(request: GenerateRequest, capabilities: Capabilities) -> NamedConstraint | None:
    """The constraint that a request asks for, if it does. Whether it compiles is another matter, see ``grammars``.

    Raises
    ------
    ApiError
        400, naming the parameter: it is not what it should be, more than one is asked for, or one of a kind that the
        engine does not have.
    """
    given = list(_given(request))
    if len(given) > 1:
        names = " and ".join(named.param for named in given)
        raise invalid(given[1].param, f"an answer can have one constraint, got {names}")
    if not given:
        return None
    (named,) = given
    if named.constraint.kind not in capabilities.constraints:
        raise invalid(named.param, f"{named.param} is not supported by the engine")
    value = named.constraint.value
    size = len((value if isinstance(value, str) else "".join(value)).encode())
    if size > MAX_CONSTRAINT_SIZE:
        raise invalid(named.param, f"{named.param} can have at most {MAX_CONSTRAINT_SIZE} bytes, got {size}")
    return named


def _given(request: GenerateRequest) -> Iterator[NamedConstraint]:
    if request.response_format is not None:
        yield from _of_response_format(request.response_format)
    for name, read in _PARAMETERS.items():
        if (value := getattr(request, name)) is not None:
            yield NamedConstraint(name, read(name, value))
    if request.structured_outputs is not None:
        yield from _of_structured_outputs(request.structured_outputs)


def _of_response_format(format: ResponseFormat) -> Iterator[NamedConstraint]:
    name = "response_format"
    if format.type == "json_object":
        yield NamedConstraint(name, Constraint("json_object"))
    elif format.type == "json_schema":
        name = f"{name}.json_schema"
        if format.json_schema is None:
            raise invalid(name, f"{name}: missing, and required for this type")
        name = f"{name}.schema"
        yield NamedConstraint(name, _json(name, format.json_schema.schema))
    elif format.type == "structural_tag":
        tag = msgspec.to_builtins(_StructuralTag(format.format, format.structures, format.triggers))
        yield NamedConstraint(name, _structural_tag(name, tag))
    elif format.type != "text":
        known = "text, json_object, json_schema or structural_tag"
        raise invalid(f"{name}.type", f"{name}.type must be {known}, got {format.type!r}")


def _of_structured_outputs(outputs: StructuredOutputs) -> Iterator[NamedConstraint]:
    name = "structured_outputs"
    if outputs.json_object is False:
        raise invalid(f"{name}.json_object", f"{name}.json_object must be true where it is given")
    given = {kind: value for kind in _STRUCTURED_OUTPUTS if (value := getattr(outputs, kind)) is not None}
    if not given:
        raise invalid(name, f"{name} has no constraint: one of {', '.join(_STRUCTURED_OUTPUTS)} is required")
    for kind, value in given.items():
        path = f"{name}.{kind}"
        constraint = msgspec.structs.replace(
            _STRUCTURED_OUTPUTS[kind](path, value),
            whitespace_pattern=outputs.whitespace_pattern,
            disable_any_whitespace=bool(outputs.disable_any_whitespace),
            disable_additional_properties=bool(outputs.disable_additional_properties),
        )
        yield NamedConstraint(path, constraint)


def _json(name: str, schema: str | dict[str, Any]) -> Constraint:
    """Of a schema, or its JSON."""
    return Constraint("json_schema", _encode(name, _object(name, schema), MAX_SCHEMA_DEPTH))


def _json_object(name: str, wanted: bool) -> Constraint:
    return Constraint("json_object")


def _choice(name: str, choices: list[str]) -> Constraint:
    if not choices:
        raise invalid(name, f"{name} is empty: there is nothing to choose from")
    if "" in choices:
        raise invalid(name, f"a text of {name} is empty")
    return Constraint("choice", tuple(choices))


def _text(kind: ConstraintKind) -> Callable[[str, str], Constraint]:
    def read(name: str, text: str) -> Constraint:
        if not text.strip():
            raise invalid(name, f"{name} is empty")
        if kind == "grammar":
            _check_definitions(name, sum(1 for _ in _DEFINITION.finditer(text)))
        if "\0" in text:
            raise invalid(name, f"{name} must be without the character NUL")
        return Constraint(kind, text)

    return read


class _StructuralTag(msgspec.Struct, omit_defaults=True, tag_field="type", tag="structural_tag"):
    """Either ``format``, or the older ``structures`` and ``triggers``."""

    format: dict[str, Any] | None = None
    structures: list[TagStructure] | None = None
    triggers: list[str] | None = None


def _structural_tag(name: str, tag: str | dict[str, Any]) -> Constraint:
    value = _object(name, tag)
    try:
        shape = msgspec.convert({**value, "type": "structural_tag"}, _StructuralTag)
    except msgspec.ValidationError as error:
        raise invalid(name, f"{name} is not a structural tag: {error}") from None
    older = (shape.structures, shape.triggers)
    if (shape.format is None) == (None in older) and (shape.format is None or any(older)):
        raise invalid(name, f"{name} must have either format, or structures and triggers")
    return Constraint("structural_tag", _encode(name, value, MAX_TAG_DEPTH))


def _object(name: str, value: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(name, f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object, got JSON of another kind")
    return value


def _encode(name: str, value: dict[str, Any], depth: int) -> str:
    level: list[Any] = [value]
    references: set[str] = set()
    for _ in range(depth):
        references |= {
            target for node in level if isinstance(node, dict) and isinstance(target := node.get("$ref"), str)
        }
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
    if level:
        raise invalid(name, f"{name} is nested too deeply: the limit is {depth} objects and arrays inside one another")
    _check_definitions(name, len(references))
    return msgspec.json.encode(value).decode()


def _check_definitions(name: str, count: int) -> None:
    if count > MAX_DEFINITIONS:
        raise invalid(name, f"{name} can have at most {MAX_DEFINITIONS} definitions, got {count}")


_Reader = Callable[[str, Any], Constraint]
_PARAMETERS: dict[str, _Reader] = {
    "guided_json": _json,
    "guided_regex": _text("regex"),
    "guided_choice": _choice,
    "guided_grammar": _text("grammar"),
    "json_schema": _json,
    "regex": _text("regex"),
    "ebnf": _text("grammar"),
    "structural_tag": _structural_tag,
}
_STRUCTURED_OUTPUTS: dict[str, _Reader] = {
    "json": _json,
    "regex": _text("regex"),
    "choice": _choice,
    "grammar": _text("grammar"),
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
