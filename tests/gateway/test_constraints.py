"""Constraints: their many names, their limits, and whether they compile."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from smg_fast.engines import Capabilities, Constraint, TokenSpeed, family
from smg_fast.gateway.compiler import Compiler
from smg_fast.gateway.constraints import MAX_CONSTRAINT_SIZE, constraint_of
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.grammars import MAX_MEMORY

from .requests import TOKENSPEED, VLLM, chat, completion, constraint, refused, sampling, terms
from .support import PATIENCE, eventually, served

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAGS_TEXT = msgspec.json.encode(TAGS).decode()
FORMAT = {"format": {"type": "any_text"}}
NO_SCHEMA = {"structures": [{"begin": "<f>", "end": "</f>"}], "triggers": ["<f"]}
NAMED = {"name": "n", "schema": SCHEMA}
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
        ({"structural_tag": {"type": "tag", **TAGS}}, "structural_tag.type"),
        ({"structural_tag": {"type": 5, **FORMAT}}, "structural_tag.type"),
        ({"structural_tag": NO_SCHEMA}, "structural_tag.structures[0].schema"),
        ({"response_format": {"type": "structural_tag", **NO_SCHEMA}}, "response_format.structures[0].schema"),
        ({"response_format": {"type": "text", "json_schema": NAMED}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": NAMED}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED, **FORMAT}}, "response_format.format"),
        ({"structured_outputs": {}}, "structured_outputs"),
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


def test_a_huge_constraint_holds_nobody_up() -> None:
    """Its size is seen before what is inside is looked at."""
    request = chat(guided_json={"enum": [[]] * 2_000_000})
    began = time.monotonic()
    with pytest.raises(ApiError, match="guided_json can have at most 131072 bytes"):
        constraint_of(request, VLLM)
    assert time.monotonic() - began < 0.5


def test_a_constraint_that_the_engine_does_not_have_is_refused() -> None:
    error = refused(terms(TokenSpeed(form="tuple").capabilities), response_format={"type": "json_object"}).detail
    assert error.param == "response_format"
    sampling(chat(response_format={"type": "json_object"}), terms(TOKENSPEED))


@pytest_asyncio.fixture
async def compiler() -> AsyncIterator[Compiler]:
    compiler = Compiler()
    yield compiler
    await compiler.close()
    assert not helpers()


def helpers() -> list[int]:
    """Process ids of those that compile for this one."""
    found = []
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in children.read_text().split():
            command = Path(f"/proc/{child}/cmdline")
            if b"smg_fast.gateway.grammars" in command.read_bytes():
                found.append(int(child))
    return found


async def reason(compiler: Compiler, capabilities: Capabilities, **body: Any) -> str | None:
    """Why it does not compile, if it does not."""
    named = constraint_of(chat(**body), capabilities)
    assert named is not None
    try:
        await compiler.check(named, capabilities)
    except ApiError as error:
        if (error.status, error.detail.param) != (400, named.param):
            raise
        return error.detail.message
    return None


@pytest.mark.parametrize("body", [body for body, _ in CONSTRAINTS if "format" not in str(body)], ids=str)
async def test_what_compiles(compiler: Compiler, body: dict[str, Any]) -> None:
    assert await reason(compiler, VLLM, **body) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"guided_json": {"type": "objec"}}, "Invalid type: objec"),
        ({"guided_json": {"$ref": "#/nope"}}, "/nope"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"guided_json": {"type": "string", "pattern": "["}}, "unclosed character class"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
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
async def test_what_does_not(compiler: Compiler, body: dict[str, Any], expected: str) -> None:
    message = await reason(compiler, VLLM, **body)
    assert message is not None
    assert message.startswith(f"{next(iter(body))} does not compile: ")
    assert expected in message


OTHERS = [family("vllm", structured_outputs_backend="xgrammar").capabilities, TOKENSPEED]


@pytest.mark.parametrize("capabilities", OTHERS, ids=["xgrammar", "tokenspeed"])
@pytest.mark.parametrize(
    "body",
    [
        {"structural_tag": FORMAT},
        {"structural_tag": TAGS},
        {"guided_choice": ["a"]},
        {"guided_json": {"type": "array", "uniqueItems": True}},
        {"guided_json": {"oneOf": [{"const": 1}, {"not": {"type": "string"}}]}},
        {"guided_json": {"type": "object", "patternProperties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
        {"guided_json": {"type": "string", "pattern": "(?=a)b"}},
        {"regex": r"\cA"},
        {"guided_grammar": 'root ::= "x"'},
        {"guided_grammar": 'root ::= a\n  | b # "(\na ::= [^"\\](]{2,3} # z\nb ::= "\\"(" a'},
        {"guided_grammar": 'root ::= TagDispatch(("<f>", call), stop_eos=true)\ncall ::= "x"'},
    ],
    ids=str,
)
async def test_other_backends_have_what_is_their_own(
    compiler: Compiler, capabilities: Capabilities, body: dict[str, Any]
) -> None:
    assert await reason(compiler, capabilities, **body) is None


@pytest.mark.parametrize("capabilities", OTHERS, ids=["xgrammar", "tokenspeed"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"guided_json": {"type": "objec"}}, "Invalid type: objec"),
        ({"guided_json": {"$ref": "#/nope"}}, "/nope"),
        ({"guided_json": {"properties": []}}, "properties must be an object"),
        ({"guided_json": {"type": "string", "pattern": "["}}, "unclosed character class"),
        ({"structural_tag": {**TAGS, "triggers": ["<g"]}}, "no trigger begins '<f>'"),
        (
            {"structural_tag": {"structures": [{"begin": "a", "end": "", "schema": {"type": 5}}], "triggers": ["a"]}},
            "type must be a string",
        ),
        ({"guided_grammar": 'start: "x"'}, "must be in EBNF with this engine: rule ::= ..."),
        ({"guided_grammar": "x # a ::= comment"}, "must be in EBNF with this engine: rule ::= ..."),
        ({"guided_grammar": 'start ::= "x"'}, "no rule root"),
        ({"guided_grammar": "root ::= nothing"}, "no rule nothing"),
        ({"guided_grammar": 'root ::= ("a"'}, "( without its counterpart"),
        ({"guided_grammar": 'root ::= a\na ::= "b'}, 'line 2: a " without its counterpart'),
    ],
    ids=str,
)
async def test_what_is_wrong_with_every_backend(
    compiler: Compiler, capabilities: Capabilities, body: dict[str, Any], expected: str
) -> None:
    message = await reason(compiler, capabilities, **body)
    assert message is not None
    assert expected in message


def nested(depth: int, inner: dict[str, Any]) -> dict[str, Any]:
    return inner if not depth else {"items": nested(depth - 1, inner)}


def chained(count: int, depth: int) -> dict[str, Any]:
    """Definitions that refer to the next, each from some depth."""
    links = {f"d{i}": nested(depth, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": {**links, f"d{count}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def overlapping(name: str) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^{name}{i}[a-z]+$": {"type": "integer"} for i in range(400)}}


CRASHES = chained(398, 4)
TAKES_LONG = overlapping("p")
TAKES_MEMORY = {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(22)]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [(CRASHES, "it is too deep"), (TAKES_LONG, "more than 1.5 s"), (TAKES_MEMORY, "more than")],
    ids=["crashes", "takes-long", "takes-memory"],
)
async def test_what_is_too_complex(compiler: Compiler, schema: dict[str, Any], expected: str) -> None:
    message = await reason(compiler, VLLM, guided_json=schema)
    assert message is not None
    assert message.startswith("guided_json is too complex to compile: ")
    assert expected in message
    assert await reason(compiler, VLLM, guided_regex="a") is None


async def test_a_regex_that_only_an_engine_would_find_too_complex(compiler: Compiler) -> None:
    """It is valid; what takes minutes is made of it when the first token is sampled."""
    message = await reason(compiler, VLLM, guided_regex="a?" * 40_000)
    assert message is not None
    assert message.startswith("guided_regex is too complex to compile: ")


async def test_a_chain_of_definitions_that_engines_stand(compiler: Compiler) -> None:
    assert await reason(compiler, VLLM, guided_json=chained(200, 1)) is None
    rules = "".join(f"r{i}: r{i + 1}\n" for i in range(400))
    assert await reason(compiler, VLLM, guided_grammar=f'start: r0\n{rules}r400: "x"') is None


async def test_a_helper_that_has_ended_is_replaced(compiler: Compiler) -> None:
    assert await reason(compiler, VLLM, guided_regex="a") is None
    (first,) = helpers()
    os.kill(first, signal.SIGKILL)
    for regex in ("b", "c"):
        assert await reason(compiler, VLLM, guided_regex=regex) is None
    assert first not in helpers()
    assert len(helpers()) in (1, 2)


async def test_only_a_new_helpers_end_is_held_against_a_constraint(compiler: Compiler) -> None:
    """Others may have left little memory. A kernel holds a helper to its share."""
    assert await reason(compiler, VLLM, guided_regex="a") is None
    assert await reason(compiler, VLLM, guided_regex="b") is None
    for helper in helpers():
        assert resource.prlimit(helper, resource.RLIMIT_AS) == (MAX_MEMORY, MAX_MEMORY)
        resource.prlimit(helper, resource.RLIMIT_AS, (1 << 20, MAX_MEMORY))
    old = set(helpers())
    many = [f"value {i}" for i in range(9000)]
    assert await reason(compiler, VLLM, guided_json={"enum": many}) is None
    assert set(helpers()) != old


async def test_a_verdict_is_remembered(compiler: Compiler) -> None:
    assert await reason(compiler, VLLM, guided_regex="a") is None
    for helper in helpers():
        os.kill(helper, signal.SIGSTOP)  # none could compile it again
    assert await reason(compiler, VLLM, guided_regex="a") is None


async def test_a_request_that_is_called_off_leaves_the_others_be(compiler: Compiler) -> None:
    bombs = [asyncio.create_task(reason(compiler, VLLM, guided_json=overlapping(name))) for name in "abcdefgh"]
    await eventually(lambda: asyncio.sleep(0, helpers()), lambda found: len(found) == 2)
    for bomb in bombs:
        bomb.cancel()
    began = time.monotonic()
    assert await reason(compiler, VLLM, guided_regex="a") is None
    assert time.monotonic() - began < 5
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*bombs, return_exceptions=True))


async def test_nobody_waits_for_long(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg_fast.gateway.compiler._PATIENCE", 0.5)
    bombs = [asyncio.create_task(reason(compiler, VLLM, guided_json=overlapping(name))) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="Too many constraints wait") as caught:
        await reason(compiler, VLLM, guided_regex="a")
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
    await asyncio.gather(*bombs, return_exceptions=True)


async def test_a_helper_that_does_not_start(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("sys.executable", "/bin/false")
        with pytest.raises(ApiError, match="cannot be compiled now") as caught:
            await reason(compiler, VLLM, guided_regex="a")
        assert caught.value.status == 503
    assert "/bin/false -m smg_fast.gateway.grammars does not start" in caplog.text
    assert await reason(compiler, VLLM, guided_regex="a") is None


async def ask(session: aiohttp.ClientSession, url: str, **body: Any) -> tuple[int, str]:
    async with session.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 1, **body}) as response:
        return response.status, await response.text()


async def test_bombs_harm_nobody_else() -> None:
    """Those that take long, and those that crash what compiles them; the engine is sent none of them."""
    async with served(runtime="vllm") as (server, engine), aiohttp.ClientSession() as session:
        bodies = [CRASHES, overlapping("a"), TAKES_MEMORY, overlapping("b")]
        bombs = [asyncio.create_task(ask(session, server.url, guided_json=body)) for body in bodies]
        await eventually(lambda: asyncio.sleep(0, helpers()), lambda found: len(found) == 2)
        slowest = 0.0
        innocent = asyncio.create_task(ask(session, server.url, guided_regex="[a-z]+"))
        while not innocent.done():
            began = time.monotonic()
            async with session.get(f"{server.url}/health") as response:
                assert response.status == 200
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.01)
        assert (await innocent)[0] == 200
        assert slowest < 1
        for status, text in await asyncio.wait_for(asyncio.gather(*bombs), PATIENCE):
            assert status == 400
            assert "guided_json is too complex to compile: " in text
            assert '"param":"guided_json"' in text
        assert (await engine.idle()).adds == 1


async def test_the_gateway_stops_while_bombs_go_off() -> None:
    async with aiohttp.ClientSession() as session:
        async with served(runtime="vllm", shutdown_timeout=0.5) as (server, engine):
            names = "abcdefgh"
            bombs = [asyncio.create_task(ask(session, server.url, guided_json=overlapping(name))) for name in names]
            await eventually(lambda: asyncio.sleep(0, helpers()), lambda found: len(found) == 2)
            assert (await engine.counters()).adds == 0
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert not helpers()
        for status, text in await asyncio.gather(*bombs):
            assert status == 503
            assert "shutting down" in text
