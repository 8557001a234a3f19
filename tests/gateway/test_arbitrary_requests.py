"""Whatever a client sends: no internal error, no hang, and nothing to the engine that breaks one of its rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.refusals import ASKS_NOTHING, NOT_HONOURED
from smg_fast.gateway.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from smg_fast.prompts.model_directory import ModelDirectory

from .support import PATIENCE, Simulator, served

VOCABULARY = ModelDirectory.load(MODEL_DIRECTORY).vocab_size or 0
CONTEXT = 64
PATHS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

# --- Values: sound ones, of which most of a request is made, and broken ones


class Values(msgspec.Struct, frozen=True):
    sound: st.SearchStrategy[Any]
    broken: st.SearchStrategy[Any]


TEXT = st.sampled_from(["hi", "the", "a b c", "é🎉", "<|im_end|>"]) | st.text(min_size=1, max_size=8)
ODD_TEXT = st.sampled_from(["", " ", "\0", "x" * 2000]) | st.text(max_size=3)
TOKEN_ID = st.integers(0, VOCABULARY - 1)
ODD_TOKEN_ID = st.sampled_from([VOCABULARY - 1, VOCABULARY, -1, 2**31, 2**64, 10**30])
NUMBERS = st.sampled_from([0, 1, 5, 20, 21, CONTEXT, -1, -2, 0.5, 1e-9, 1e30, 2**31, 2**63, -(2**63), 10**30])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=6,
)


def nested(depth: int) -> Any:
    value: Any = {}
    for level in range(depth):
        value = [value] if level % 2 else {"items": value}
    return value


#: Deep, wide, long, and what is no character.
BOMBS = st.sampled_from(
    [
        nested(63),
        nested(500),
        [[]] * 5000,
        {str(i): {} for i in range(5000)},
        10**400,
        "\ud800",
        "\udfff",
        "x" * 100_000,
    ]
)
TEXTS = Values(TEXT, ODD_TEXT)
TOKEN_IDS = Values(st.lists(TOKEN_ID, min_size=1, max_size=3), st.lists(TOKEN_ID | ODD_TOKEN_ID, max_size=3))
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMAS = Values(
    st.sampled_from([{}, {"type": "object"}, SCHEMA, {"items": {"items": {}}}, json.dumps(SCHEMA)]),
    st.sampled_from(
        [{"type": "objec"}, {"$ref": "#/nope"}, {"$ref": "#"}, {"enum": []}, {"pattern": "["}, "", "{", "[]"]
    ),
)
REGEXES = Values(
    st.sampled_from(["a", "[a-z]{2}", "(a|b)*", "a" * 300]), st.sampled_from(["", "(", "(?=a)", r"\b", "[", "\0"])
)
GRAMMARS = Values(
    st.sampled_from(['root ::= "x"', 'root ::= "a" | b\nb ::= [0-9]+']),
    st.sampled_from(["", " ", 'start: "x"', "root ::= nothing", "nonsense", 'a ::= "x"', "root ::= (" + "(" * 3000]),
)
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAGS = Values(
    st.sampled_from([TAG, json.dumps(TAG)]),
    st.sampled_from([{"structures": [], "triggers": []}, {"structures": [{"begin": "x"}]}, {"format": {}}, {}, "x"]),
)
#: Where the type alone would hardly ever give one that means something.
VALUES = {
    "model": Values(st.just("sim"), ODD_TEXT),
    "max_tokens": Values(st.integers(1, 8), st.integers(-1, CONTEXT + 1)),
    "max_completion_tokens": Values(st.integers(1, 8), st.integers(-1, CONTEXT + 1)),
    "min_tokens": Values(st.integers(0, 2), NUMBERS),
    "n": Values(st.integers(1, 3), st.integers(-1, 129)),
    "best_of": Values(st.just(1), NUMBERS),
    "data_parallel_rank": Values(st.just(0), NUMBERS),
    "echo": Values(st.booleans(), st.just(None)),
    "repetition_penalty": Values(st.floats(0.1, 2), NUMBERS),
    "logit_bias": Values(
        st.dictionaries(TOKEN_ID.map(str), st.floats(-200, 200), max_size=3),
        st.dictionaries((TOKEN_ID | ODD_TOKEN_ID).map(str) | ODD_TEXT, NUMBERS, max_size=3),
    ),
    "cache_salt": Values(st.just("salt"), ODD_TEXT),
    "stop": Values(TEXT | st.lists(TEXT, max_size=4), st.lists(ODD_TEXT, max_size=5)),
    "stop_token_ids": TOKEN_IDS,
    "allowed_token_ids": TOKEN_IDS,
    "tokens": TOKEN_IDS,
    "json": SCHEMAS,
    "guided_json": SCHEMAS,
    "json_schema": SCHEMAS,
    "guided_regex": REGEXES,
    "regex": REGEXES,
    "guided_grammar": GRAMMARS,
    "grammar": GRAMMARS,
    "ebnf": GRAMMARS,
    "structural_tag": TAGS,
    "role": Values(st.sampled_from(["user", "assistant", "system", "developer", "tool"]), ODD_TEXT),
    "content": Values(TEXT, ODD_TEXT | st.lists(TEXT, max_size=2)),
    "tool_calls": Values(st.just([]), JSON),
    "prompt": Values(
        st.one_of(
            TEXT,
            st.lists(TOKEN_ID, min_size=1, max_size=8),
            st.lists(TEXT, min_size=1, max_size=3),
            st.lists(st.lists(TOKEN_ID, min_size=1, max_size=5), min_size=1, max_size=3),
        ),
        st.one_of(
            ODD_TEXT,
            st.lists(TEXT | TOKEN_ID | ODD_TOKEN_ID, max_size=3),
            st.lists(TOKEN_ID, min_size=CONTEXT - 2, max_size=CONTEXT + 1),
            st.lists(st.lists(TOKEN_ID | ODD_TOKEN_ID, max_size=2), max_size=2),
        ),
    ),
}


def values_of(name: str, kind: inspect.Type) -> Values:
    if name in VALUES:
        return VALUES[name]
    if isinstance(kind, inspect.UnionType):
        options = [values_of("", option) for option in kind.types if not isinstance(option, inspect.NoneType)]
        return Values(st.one_of([option.sound for option in options]), st.one_of([option.broken for option in options]))
    if isinstance(kind, inspect.ListType):
        item = values_of("", kind.item_type)
        return Values(st.lists(item.sound, min_size=1, max_size=3), st.lists(item.broken, max_size=3))
    if isinstance(kind, inspect.StructType):
        return Values(of_struct(kind.cls, broken=0), of_struct(kind.cls, broken=1))
    if isinstance(kind, inspect.DictType):
        return Values(st.dictionaries(TEXT, JSON, max_size=2), JSON)
    known: dict[type[inspect.Type], Values] = {
        inspect.BoolType: Values(st.booleans(), JSON),
        inspect.IntType: Values(st.integers(0, 20), NUMBERS),
        inspect.FloatType: Values(st.floats(0.01, 1), NUMBERS),
        inspect.StrType: TEXTS,
        inspect.AnyType: Values(st.none(), JSON),
    }
    return known[type(kind)]


@st.composite
def of_struct(draw: st.DrawFn, model: type[msgspec.Struct], broken: int) -> dict[str, Any]:
    """Some of a request's fields, and the required ones; so many have a broken value."""
    kind = inspect.type_info(model)
    assert isinstance(kind, inspect.StructType)
    refused = NOT_HONOURED.get(model, ())
    fields = {field.encode_name: field for field in kind.fields if field.encode_name not in refused}
    # Only an assistant's message is complete without content.
    chosen = [name for name, field in fields.items() if field.required or name == "content"]
    optional = [name for name in fields if name not in chosen]
    chosen += draw(st.lists(st.sampled_from(optional), max_size=4, unique=True))
    made = {name: draw(values_of(name, fields[name].type).sound) for name in chosen}
    for name in draw(st.lists(st.sampled_from(sorted(refused)), max_size=1)) if refused else ():
        made[name] = draw(st.sampled_from([None, *ASKS_NOTHING.get(name, ())]))
    for _ in range(broken):
        name = draw(st.sampled_from([*fields, *refused]))
        how = draw(st.sampled_from(["value", "value", "type", "missing", "bomb"]))
        if how == "missing":
            made.pop(name, None)
        elif how == "bomb":
            made[name] = draw(BOMBS | st.dictionaries(TEXT, BOMBS, max_size=1))
        else:
            made[name] = draw(values_of(name, fields[name].type).broken if how == "value" and name in fields else JSON)
    return made


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from([path for path in PATHS for _ in range(4 if path.startswith("/v1") else 1)]))
    body = draw(of_struct(PATHS[path], broken=draw(st.sampled_from([0, 0, 1, 1, 2]))))
    if issubclass(PATHS[path], GenerateRequest) and "max_completion_tokens" not in body:
        body.setdefault("max_tokens", draw(st.integers(1, 4)))
    text = json.dumps(body).encode()
    return path, text[: draw(st.integers(0, len(text)))] if draw(st.sampled_from(range(50))) == 49 else text


# --- The test


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["tokenspeed", "vllm"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Simulator]]:
    options = ("--max-model-len", str(CONTEXT), "--tick-ms", "0", "--eos-token-id", "0")
    async with served(*options, runtime=request.param) as (server, simulator):
        yield server.url, simulator


@pytest.mark.asyncio(loop_scope="module")
async def test_any_request_is_answered_or_refused_and_harms_nobody(engine: tuple[str, Simulator]) -> None:
    url, simulator = engine
    loop = asyncio.get_running_loop()

    @given(requests())
    @settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
    def run(request: tuple[str, bytes]) -> None:
        asyncio.run_coroutine_threadsafe(ask(*request), loop).result(PATIENCE)

    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:

        async def ask(path: str, body: bytes) -> None:
            async with session.post(url + path, data=body) as response:
                answer = await response.read()
                assert response.status < 500, answer
                if response.status >= 400:
                    error = json.loads(answer)["error"]
                    assert error["message"]
                    assert error["type"] == "invalid_request_error"
                else:
                    assert b'data: {"error"' not in answer

        await asyncio.to_thread(run)
    counters = await simulator.idle()
    assert counters.violations == 0
    assert counters.adds > 60, "hardly any request came through"
