"""Constraints: their many names, their limits, and whether they compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from smg_fast.engines import Capabilities, Constraint, TokenSpeed, family
from smg_fast.gateway.constraints import MAX_CONSTRAINT_SIZE, MAX_DEFINITIONS, NamedConstraint, constraint_of
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.grammars import check_compiles

from .requests import TOKENSPEED, VLLM, chat, completion, constraint, refused, sampling, terms

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAGS_TEXT = msgspec.json.encode(TAGS).decode()
FORMAT = {"format": {"type": "any_text"}}
JSON = Constraint("json_schema", SCHEMA_TEXT)
CONSTRAINTS: list[tuple[dict[str, Any], Constraint]] = [
    ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        JSON,
    ),
    (
        {"response_format": {"type": "structural_tag", **TAGS}},
        Constraint(
            "structural_tag",
            '{"type":"structural_tag","structures":[{"begin":"<f>","end":"</f>","schema":' + SCHEMA_TEXT + "}],"
            '"triggers":["<f"]}',
        ),
    ),
    (
        {"response_format": {"type": "structural_tag", **FORMAT}},
        Constraint("structural_tag", '{"type":"structural_tag","format":{"type":"any_text"}}'),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json": SCHEMA_TEXT}}, JSON),
    ({"structured_outputs": {"json_object": True}}, Constraint("json_object")),
    ({"structured_outputs": {"regex": "a|b"}}, Constraint("regex", "a|b")),
    ({"structured_outputs": {"choice": ["a.b", "c"]}}, Constraint("choice", ("a.b", "c"))),
    ({"structured_outputs": {"grammar": 'root ::= "x"'}}, Constraint("grammar", 'root ::= "x"')),
    ({"structured_outputs": {"structural_tag": TAGS}}, Constraint("structural_tag", TAGS_TEXT)),
    ({"structured_outputs": {"structural_tag": TAGS_TEXT}}, Constraint("structural_tag", TAGS_TEXT)),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "whitespace_pattern": "[ ]?"}},
        Constraint("json_schema", SCHEMA_TEXT, disable_any_whitespace=True, whitespace_pattern="[ ]?"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        Constraint("json_schema", SCHEMA_TEXT, disable_additional_properties=True),
    ),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_regex": "a"}, Constraint("regex", "a")),
    ({"guided_choice": ["yes", "no"]}, Constraint("choice", ("yes", "no"))),
    ({"guided_grammar": 'root ::= "x"'}, Constraint("grammar", 'root ::= "x"')),
    ({"json_schema": SCHEMA_TEXT}, JSON),
    ({"regex": "a"}, Constraint("regex", "a")),
    ({"ebnf": 'root ::= "x"'}, Constraint("grammar", 'root ::= "x"')),
    ({"structural_tag": TAGS_TEXT}, Constraint("structural_tag", TAGS_TEXT)),
]


@pytest.mark.parametrize("model", [chat, completion])
@pytest.mark.parametrize(("body", "expected"), CONSTRAINTS, ids=[str(body) for body, _ in CONSTRAINTS])
def test_a_constraint_has_many_names(model: Any, body: dict[str, Any], expected: Constraint) -> None:
    assert constraint(model(**body)) == expected


def test_no_constraint_is_none() -> None:
    for body in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": None}):
        assert constraint(chat(**body)) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "no"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": {"type": "structural_tag", "triggers": ["a"]}}, "response_format"),
        ({"response_format": {"type": "structural_tag", **TAGS, **FORMAT}}, "response_format"),
        ({"structural_tag": {"structures": [{"begin": "x"}], "triggers": []}}, "structural_tag"),
        ({"structural_tag": "x"}, "structural_tag"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a\0"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_json": '{"title": "\\ud800"}'}, "guided_json"),
        ({"guided_json": '{"minimum": NaN}'}, "guided_json"),
        ({"guided_json": '{"a":' * 5000}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": 5}, "guided_json"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ],
    ids=str,
)
def test_a_wrong_constraint_is_refused(body: dict[str, Any], param: str) -> None:
    assert refused(**body).detail.param == param


@pytest.mark.parametrize(
    ("name", "of_size"),
    [
        ("regex", lambda size: "é" * (size // 2) + "a" * (size % 2)),
        ("guided_json", lambda size: {"a": "x" * (size - 8)}),
        ("guided_choice", lambda size: ["a", "b" * (size - 1)]),
        ("structural_tag", lambda size: {"format": {"a": "x" * (size - 19)}}),
    ],
)
def test_size_of_a_constraint(name: str, of_size: Callable[[int], Any]) -> None:
    assert constraint(chat(**{name: of_size(MAX_CONSTRAINT_SIZE)}))
    error = refused(**{name: of_size(MAX_CONSTRAINT_SIZE + 1)}).detail
    assert (error.param, error.message) == (name, f"{name} can have at most 131072 bytes, got 131073")


@pytest.mark.parametrize(
    ("name", "of_depth"),
    [
        ("guided_json", lambda depth: '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)),
        ("structural_tag", lambda depth: '{"format":' * (depth - 1) + "{}" + "}" * (depth - 1)),
    ],
)
def test_depth_of_a_constraint(name: str, of_depth: Callable[[int], str]) -> None:
    most = {"guided_json": 64, "structural_tag": 80}[name]
    assert constraint(chat(**{name: of_depth(most)}))
    error = refused(**{name: of_depth(most + 1)}).detail
    assert error.param == name
    assert str(most) in error.message


@pytest.mark.parametrize(
    ("name", "of_count"),
    [
        ("guided_json", lambda count: {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(count)]}),
        ("guided_grammar", lambda count: "".join(f"r{i} ::= r{i + 1}\n" for i in range(count))),
        ("ebnf", lambda count: "".join(f"r{i}: r{i + 1}\n" for i in range(count))),
    ],
)
def test_definitions_of_a_constraint(name: str, of_count: Callable[[int], Any]) -> None:
    """More of them, one after the other, would end the process that compiles them: here, and at the engine."""
    assert constraint(chat(**{name: of_count(MAX_DEFINITIONS)}))
    error = refused(**{name: of_count(MAX_DEFINITIONS + 1)}).detail
    assert (error.param, error.message) == (name, f"{name} can have at most 400 definitions, got 401")


def test_a_constraint_that_the_engine_does_not_have_is_refused() -> None:
    error = refused(terms(TokenSpeed(form="tuple").capabilities), response_format={"type": "json_object"}).detail
    assert error.param == "response_format"
    sampling(chat(response_format={"type": "json_object"}), terms(TOKENSPEED))


async def compiles(capabilities: Capabilities, **body: Any) -> str | None:
    """Why it does not, if it does not."""
    named = constraint_of(chat(**body), capabilities)
    assert named is not None
    try:
        await check_compiles(named, capabilities)
    except ApiError as error:
        return error.detail.message
    return None


@pytest.mark.parametrize("body", [body for body, _ in CONSTRAINTS if "format" not in str(body)], ids=str)
async def test_what_compiles(body: dict[str, Any]) -> None:
    assert await compiles(VLLM, **body) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"guided_json": {"type": "objec"}}, "Invalid type: objec"),
        ({"guided_json": {"$ref": "#/nope"}}, "/nope"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"guided_json": {"type": "string", "pattern": "["}}, "unclosed character class"),
        ({"guided_grammar": "root ::= nothing"}, "nothing"),
        ({"guided_grammar": "start: nothing"}, "nothing"),
        ({"guided_grammar": "nonsense"}, "GBNF"),
        ({"guided_grammar": "root ::= " + "(" * 5000}, "recursion"),
        ({"structural_tag": {**TAGS, "triggers": ["<g"]}}, "no trigger begins '<f>'"),
        ({"structural_tag": {**TAGS, "triggers": [""]}}, "no trigger begins '<f>'"),
        ({"structural_tag": {"structures": [], "triggers": ["<g"]}}, "no structures"),
        ({"structural_tag": FORMAT}, "structures and triggers only"),
    ],
    ids=str,
)
async def test_what_does_not(body: dict[str, Any], reason: str) -> None:
    message = await compiles(VLLM, **body)
    assert message is not None
    assert message.startswith(f"{next(iter(body))} does not compile: ")
    assert reason in message


async def test_other_backends_are_judged_by_what_none_of_them_has() -> None:
    for capabilities in (family("vllm", structured_outputs_backend="xgrammar").capabilities, TOKENSPEED):
        assert await compiles(capabilities, structural_tag=FORMAT) is None
        assert await compiles(capabilities, guided_json={"type": "array", "uniqueItems": True}) is None
        assert await compiles(capabilities, regex="(") is not None
        assert await compiles(capabilities, guided_grammar='root ::= "x"') is None
        lark = await compiles(capabilities, guided_grammar='start: "x"')
        assert lark == "guided_grammar must be in EBNF with this engine: rule ::= ..."


async def test_a_long_chain_of_definitions_compiles() -> None:
    """What is within the limit leaves the process alive."""
    chain = "".join(f"r{i}: r{i + 1}\n" for i in range(MAX_DEFINITIONS - 2))
    grammar = f'start: r0\n{chain}r{MAX_DEFINITIONS - 2}: "x"'
    await check_compiles(NamedConstraint("ebnf", Constraint("grammar", grammar)), VLLM)
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(MAX_DEFINITIONS - 1)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{MAX_DEFINITIONS - 1}": {"type": "string"}}}
    assert await compiles(VLLM, guided_json=schema) is None
