"""What an answer must be, in all the words that clients have for it: OpenAI's, vLLM's and SGLang's."""

from __future__ import annotations

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


class NamedConstraint(msgspec.Struct, frozen=True):
    """``param`` is the path of the parameter that it was asked for by."""

    param: str
    constraint: Constraint


def constraint_of(request: GenerateRequest, capabilities: Capabilities) -> NamedConstraint | None:
    """The constraint that a request asks for, if it does. Whether it compiles is another matter, see ``compiler``.

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
    _check_size(named.param, (value if isinstance(value, str) else "".join(value)).encode())
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
    if format.type not in _RESPONSE_FORMATS:
        known = "text, json_object, json_schema or structural_tag"
        raise invalid(f"{name}.type", f"{name}.type must be {known}, got {format.type!r}")
    for field in format.__struct_fields__:
        if field not in ("type", *_RESPONSE_FORMATS[format.type]) and getattr(format, field) is not None:
            raise invalid(f"{name}.{field}", f"{name}.{field} is of another type, got {format.type}")
    if format.type == "json_object":
        yield NamedConstraint(name, Constraint("json_object"))
    elif format.type == "json_schema":
        name = f"{name}.json_schema"
        if format.json_schema is None:
            raise invalid(name, f"{name}: missing, and required for this type")
        name = f"{name}.schema"
        yield NamedConstraint(name, _json(name, format.json_schema.schema))
    elif format.type == "structural_tag":
        tag = _StructuralTag(format.format, format.structures, format.triggers)
        yield NamedConstraint(name, _structural_tag(name, tag))


def _of_structured_outputs(outputs: StructuredOutputs) -> Iterator[NamedConstraint]:
    name = "structured_outputs"
    if outputs.json_object is False:
        raise invalid(f"{name}.json_object", f"{name}.json_object must be true where it is given")
    given = {kind: value for kind in _STRUCTURED_OUTPUTS if (value := getattr(outputs, kind)) is not None}
    if not given:
        raise invalid(name, f"{name} has no constraint: one of {', '.join(_STRUCTURED_OUTPUTS)} is required")
    for kind, value in given.items():
        path = f"{name}.{kind}"
        yield NamedConstraint(path, _STRUCTURED_OUTPUTS[kind](path, value))


def _json(name: str, schema: str | dict[str, Any]) -> Constraint:
    """Of a schema, or its JSON."""
    value, text = _object(name, schema)
    _check_depth(name, value, MAX_SCHEMA_DEPTH)
    return Constraint("json_schema", text)


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
        if "\0" in text:
            raise invalid(name, f"{name} must be without the character NUL")
        return Constraint(kind, text)

    return read


class _StructuralTag(msgspec.Struct, omit_defaults=True, tag_field="type", tag="structural_tag"):
    """Either ``format``, or the older ``structures`` and ``triggers``."""

    format: dict[str, Any] | None = None
    structures: list[TagStructure] | None = None
    triggers: list[str] | None = None


def _structural_tag(name: str, tag: str | dict[str, Any] | _StructuralTag) -> Constraint:
    value, text = _object(name, tag)
    _check_depth(name, value, MAX_TAG_DEPTH)
    kind = value.get("type", "structural_tag")
    if kind != "structural_tag":
        raise invalid(f"{name}.type", f"{name}.type must be structural_tag, got {kind!r}")
    try:
        shape = msgspec.convert({**value, "type": kind}, _StructuralTag)
    except msgspec.ValidationError as error:
        raise invalid(name, f"{name} is not a structural tag: {error}") from None
    older = (shape.structures, shape.triggers)
    if (shape.format is None) == (None in older) and (shape.format is None or any(older)):
        raise invalid(name, f"{name} must have either format, or structures and triggers")
    for index, structure in enumerate(shape.structures or ()):
        if structure.schema is None:
            path = f"{name}.structures[{index}].schema"
            raise invalid(path, f"{path}: missing, and required")
    return Constraint("structural_tag", text)


def _object(name: str, given: str | dict[str, Any] | _StructuralTag) -> tuple[dict[str, Any], str]:
    """Of an object, or its JSON, both. Its size is checked before anything looks at what is inside."""
    try:
        if isinstance(given, str):
            _check_size(name, given.encode())
            given = msgspec.json.decode(given)
        encoded = msgspec.json.encode(given)
        _check_size(name, encoded)
        value = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(name, f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object, got JSON of another kind")
    return value, encoded.decode()


def _check_size(name: str, encoded: bytes) -> None:
    if len(encoded) > MAX_CONSTRAINT_SIZE:
        raise invalid(name, f"{name} can have at most {MAX_CONSTRAINT_SIZE} bytes, got {len(encoded)}")


def _check_depth(name: str, value: dict[str, Any], depth: int) -> None:
    level: list[Any] = [value]
    for _ in range(depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
    if level:
        raise invalid(name, f"{name} is nested too deeply: the limit is {depth} objects and arrays inside one another")


#: What belongs to each type of a response format.
_RESPONSE_FORMATS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": (),
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
}

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
