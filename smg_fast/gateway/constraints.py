"""What an answer must be, in all the words that clients have for it: OpenAI's, vLLM's and SGLang's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..engines import Capabilities, Constraint, ConstraintKind
from .errors import invalid
from .requests import GenerateRequest

#: Bytes of a constraint's text: the message of every choice repeats it, as it does the prompt.
MAX_CONSTRAINT_SIZE = 128 << 10

_ANY_OBJECT = '{"type":"object"}'


def check_constraint(request: GenerateRequest, capabilities: Capabilities) -> None:
    """Raises ``ApiError`` as ``constraint_of`` does, and for a kind of constraint that the engine does not have."""
    for name, constraint in _given(request):
        if constraint.kind not in capabilities.constraints:
            raise invalid(name, f"{name} is not supported by the engine")
    constraint_of(request)


def constraint_of(request: GenerateRequest) -> Constraint | None:
    """The constraint that a request asks for, if it does.

    Raises
    ------
    ApiError
        400, naming the parameter: it is not what it should be, or more than one is asked for.
    """
    given = list(_given(request))
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise invalid(given[1][0], f"an answer can have one constraint, got {names}")
    for name, constraint in given:
        size = len(constraint.value.encode())
        if size > MAX_CONSTRAINT_SIZE:
            raise invalid(name, f"{name} can have at most {MAX_CONSTRAINT_SIZE} bytes, got {size}")
    return given[0][1] if given else None


def _given(request: GenerateRequest) -> Iterator[tuple[str, Constraint]]:
    """Every constraint, with the path of its parameter."""
    if (format := request.response_format) is not None:
        if format.type == "json_object":
            yield "response_format", Constraint("json_schema", _ANY_OBJECT)
        elif format.type == "json_schema":
            path = "response_format.json_schema"
            if format.json_schema is None:
                raise invalid(path, f"{path}: missing, and required for this type")
            yield path, _json(f"{path}.schema", format.json_schema.schema)
        elif format.type != "text":
            known = "text, json_object or json_schema"
            raise invalid("response_format.type", f"response_format.type must be {known}, got {format.type!r}")
    for name, read in _PARAMETERS.items():
        if (value := getattr(request, name)) is not None:
            yield name, read(name, value)
    outputs = request.structured_outputs
    for name, read in _STRUCTURED_OUTPUTS.items():
        if outputs is not None and (value := getattr(outputs, name)) is not None:
            path = f"structured_outputs.{name}"
            yield path, read(path, value)
    if outputs is not None and outputs.json_object:
        yield "structured_outputs.json_object", Constraint("json_schema", _ANY_OBJECT)


def _json(name: str, schema: str | dict[str, Any]) -> Constraint:
    """Of a schema, or its JSON."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(name, f"{name} is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise invalid(name, f"{name} must be an object, a JSON schema")
    return Constraint("json_schema", _encode(name, schema))


def _encode(name: str, value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise invalid(name, f"{name} is nested too deeply") from None


def _choice(name: str, choices: list[str]) -> Constraint:
    if not choices:
        raise invalid(name, f"{name} is empty: there is nothing to choose from")
    return Constraint("regex", "|".join(map(re.escape, choices)))


def _structural_tag(name: str, tag: str | dict[str, Any]) -> Constraint:
    return Constraint("structural_tag", tag if isinstance(tag, str) else _encode(name, tag))


def _text(kind: ConstraintKind) -> Callable[[str, str], Constraint]:
    def read(name: str, text: str) -> Constraint:
        if not text:
            raise invalid(name, f"{name} is empty")
        return Constraint(kind, text)

    return read


_PARAMETERS: dict[str, Callable[[str, Any], Constraint]] = {
    "guided_json": _json,
    "guided_regex": _text("regex"),
    "guided_choice": _choice,
    "guided_grammar": _text("grammar"),
    "json_schema": _json,
    "regex": _text("regex"),
    "ebnf": _text("grammar"),
    "structural_tag": _structural_tag,
}
_STRUCTURED_OUTPUTS: dict[str, Callable[[str, Any], Constraint]] = {
    "json": _json,
    "regex": _text("regex"),
    "choice": _choice,
    "grammar": _text("grammar"),
    "structural_tag": _structural_tag,
}
