"""Logprobs as clients see them: shaped to what was asked for, in chats and completions, whole and streamed."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_fast._codec import Output, Prompt, Protocol, ResponseFormat, TokenIds, Tokenizer
from tests.codec import ticks
from tests.codec.client import Client
from tests.codec.test_detokenizer import BYTE_LEVEL, tokenizer_with
from tests.codec.vllm_ticks import ABORT, LENGTH, STOP, Row, message

FORMATS = {
    (api, stream): getattr(ResponseFormat, api)(id="i", model="m", created=0, stream=stream)
    for api in ("chat", "completion")
    for stream in (False, True)
}
V0_32 = Protocol.vllm("0.32.0")
A, B, C, D, E = range(64, 69)  # the tokens "a" to "e"


@pytest.fixture
def vllm(tokenizer: Tokenizer) -> Client:
    return Client(tokenizer, V0_32)


def chat_content(client: Client) -> list[dict[str, Any]]:
    return [entry for choice in client.choices() if choice["logprobs"] for entry in choice["logprobs"]["content"]]


SAMPLED_IS_THIRD = [(C, -3.0), (A, -1.0), (B, -2.0), (C, -3.0), (D, -4.0)]
SAMPLED_IS_NONE_OF_THEM = [(E, -9.0), (A, -1.0), (B, -2.0), (C, -3.0), (D, -4.0)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("count", "third", "none"),
    [
        (0, "", ""),
        (1, "c", "e"),
        (2, "ca", "ea"),
        (3, "cab", "eab"),
        (4, "cabd", "eabc"),
    ],
)
def test_a_chat_shows_the_sampled_token_first_and_as_many_as_asked_for(
    vllm: Client, count: int, third: str, none: str, stream: bool
) -> None:
    vllm.open(FORMATS["chat", stream], ["r"], logprobs=count)
    columns = [SAMPLED_IS_THIRD[: count + 1], SAMPLED_IS_NONE_OF_THEM[: count + 1]]
    vllm.feed(message(Row("r", [C, E], LENGTH, logprobs=columns)))
    content = chat_content(vllm)
    assert [(entry["token"], entry["logprob"], entry["bytes"]) for entry in content] == [
        ("c", -3.0, [99]),
        ("e", -9.0, [101]),
    ]
    # The sampled token is among the two likeliest only where they were so many.
    assert ["".join(top["token"] for top in entry["top_logprobs"]) for entry in content] == [third[:count], none]
    logprobs = {"c": -3.0, "a": -1.0, "b": -2.0, "d": -4.0}
    for entry in content[0]["top_logprobs"]:
        assert (entry["logprob"], entry["bytes"]) == (logprobs[entry["token"]], [ord(entry["token"])])


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_shows_the_sampled_token_beside_as_many_as_asked_for(vllm: Client, stream: bool) -> None:
    vllm.open(FORMATS["completion", stream], ["r"], logprobs=3)
    vllm.feed(message(Row("r", [C], logprobs=[SAMPLED_IS_THIRD[:4]])))
    vllm.feed(message(Row("r", [E], LENGTH, logprobs=[SAMPLED_IS_NONE_OF_THEM[:4]])))
    assert vllm.completion_logprobs() == {
        "tokens": ["c", "e"],
        "token_logprobs": [-3.0, -9.0],
        "top_logprobs": [{"c": -3.0, "a": -1.0, "b": -2.0}, {"e": -9.0, "a": -1.0, "b": -2.0, "c": -3.0}],
        "text_offset": [0, 1],
    }
    assert list(vllm.completion_logprobs()["top_logprobs"][0]) == ["c", "a", "b"]


def test_an_engine_that_gives_more_than_asked_for_or_all_it_has_is_fine(vllm: Client) -> None:
    """Its batch may have asked for more; its vocabulary may have no more."""
    vllm.open(ResponseFormat.outputs(), ["r"], logprobs=2)
    vllm.feed(message(Row("r", [C], logprobs=[SAMPLED_IS_NONE_OF_THEM])))
    vllm.feed(message(Row("r", [A], LENGTH, logprobs=[[(A, -1.0), (A, -1.0)]])))
    assert isinstance(vllm.end, list)
    assert vllm.end[0].top_logprobs == [[(E, -9.0), (A, -1.0), (B, -2.0)], [(A, -1.0)]]


def test_tokens_behind_a_stop_string_have_no_logprobs(vllm: Client) -> None:
    vllm.open(ResponseFormat.outputs(), ["r"], logprobs=1, stop=["b"])
    vllm.feed(message(Row("r", [A, B, C], logprobs=[[(id, -1.0), (D, -2.0)] for id in (A, B, C)])))
    assert isinstance(vllm.end, list)
    (output,) = vllm.end
    assert output.logprobs is not None
    assert output.logprobs.tolist() == [-1.0, -1.0]
    assert output.top_logprobs == [[(A, -1.0), (D, -2.0)], [(B, -1.0), (D, -2.0)]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_sampled_token_alone_is_a_completions_top_logprobs(client: Client, stream: bool) -> None:
    """All that TokenSpeed gives."""
    client.open(FORMATS["completion", stream], ["r"], logprobs=0)
    client.feed(ticks.tick(ticks.Row("r", [A, B], "length", [-1.0, -2.0])))
    assert client.completion_logprobs()["top_logprobs"] == [{"a": -1.0}, {"b": -2.0}]


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, -10000.0, -3e38])
def test_a_logprob_that_json_or_openai_do_not_know_is_minus_9999(vllm: Client, value: float) -> None:
    vllm.open(FORMATS["completion", False], ["r"], logprobs=1, prompt_logprobs=1)
    columns = [[(A, value), (B, value)]]
    vllm.feed(message(Row("r", [A], LENGTH, logprobs=columns, prompt_logprobs=columns * 4)))
    assert vllm.completion_logprobs()["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]
    prompt = vllm.choices()[0]["prompt_logprobs"]
    assert [entry["logprob"] for entry in prompt[1].values()] == [-9999.0, -9999.0]


@pytest.mark.parametrize(("api", "stream"), FORMATS)
def test_a_character_in_parts_is_its_last_token(vllm: Client, api: str, stream: bool) -> None:
    """A token that ends within a character has no text; alternatives are seen behind the same tokens."""
    party = vllm.tokenizer.encode("🎉").tolist()
    assert len(party) == 4
    tokens = [A, *party, B]
    columns = [[(token, -1.0), (party[0], -2.0), (party[3], -3.0), (D, -4.0)] for token in tokens]
    vllm.open(FORMATS[api, stream], ["r"], logprobs=3)
    for position, token in enumerate(tokens):
        vllm.feed(message(Row("r", [token], LENGTH if token == B else None, logprobs=[columns[position]])))
    if api == "chat":
        content = chat_content(vllm)
        assert [entry["token"] for entry in content] == ["a", "", "", "", "🎉", "b"]
        assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
        assert [top["token"] for top in content[4]["top_logprobs"]] == ["🎉", "", "d"]
        return
    logprobs = vllm.completion_logprobs()
    assert logprobs["tokens"] == ["a", "", "", "", "🎉", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert logprobs["top_logprobs"][4] == {"🎉": -1.0, "": -2.0, "d": -4.0}
    # Two that are alike: the token itself stays, which comes first.
    assert logprobs["top_logprobs"][1] == {"": -1.0, "d": -4.0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_the_tokens_of_a_character_begin_where_the_first_does(tmp_path: Path, echo: bool, stream: bool) -> None:
    """A space that shares its token with the beginning of a character is settled text before the character is."""
    tokenizer = tokenizer_with(tmp_path, BYTE_LEVEL, ["a", "\u0120\u00f0\u0141", "\u0130", "\u012b"])
    ids = [0, 1, 2, 3, 0, 1, 0]
    assert tokenizer.decode(ids) == "a 🎉a \ufffda"
    client = Client(tokenizer, V0_32)
    prompt = Prompt(TokenIds(ids), echo=tokenizer.decode(ids) if echo else None)
    client.open(FORMATS["completion", stream], ["r"], prompt, logprobs=0, prompt_logprobs=0)
    of_prompt = [[(id, -1.0)] for id in ids[1:]]
    for position, id in enumerate(ids):
        finish = LENGTH if position == len(ids) - 1 else None
        client.feed(message(Row("r", [id], finish, logprobs=[[(id, -1.0)]], prompt_logprobs=of_prompt)))
        of_prompt = []
    tokens, offsets = ["a", "", "", " 🎉", "a", "", "a"], [0, 1, 1, 1, 3, 4, 6]
    logprobs = client.completion_logprobs()
    assert logprobs["tokens"] == (tokens * 2 if echo else tokens)
    assert logprobs["text_offset"] == ([*offsets, *(7 + offset for offset in offsets)] if echo else offsets)


def test_logprobs_asked_for_and_no_token_are_an_empty_list(vllm: Client) -> None:
    vllm.open(FORMATS["chat", False], ["r"], logprobs=1)
    vllm.feed(message(Row("r", [], ABORT)))
    assert vllm.choices()[0]["logprobs"]["content"] == []


@pytest.mark.parametrize(
    ("options", "row", "named"),
    [
        ({"logprobs": 0}, Row("r", [A], STOP), "logprobs"),
        ({"logprobs": 2}, Row("r", [A], STOP), "logprobs"),
        ({"logprobs": 2}, Row("r", [A], STOP, logprobs=[[(A, -1.0)]]), "top_logprobs"),
        ({"prompt_logprobs": 0}, Row("r", [A], STOP), "prompt_logprobs"),
        ({"prompt_logprobs": 0}, Row("r", [A], STOP, prompt_logprobs=[[(A, -1.0)]] * 3), "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stop": ["a"]}, Row("r", [A]), "prompt_logprobs"),
    ],
)
@pytest.mark.parametrize("format", [*FORMATS.values(), ResponseFormat.outputs()])
def test_what_was_asked_for_and_is_not_sent_is_a_failure(
    vllm: Client, format: ResponseFormat, options: dict[str, Any], row: Row, named: str
) -> None:
    vllm.open(format, ["r"], **options)
    vllm.feed(message(row))
    assert vllm.error is not None
    assert f" {named}" in vllm.error
    assert vllm.end is None
    assert vllm.raw == b""
    assert vllm.finished == ["r"]


def test_tokens_without_the_top_logprobs_leave_those_before_whole(vllm: Client) -> None:
    """The events before the failure are complete ones."""
    vllm.open(FORMATS["completion", True], ["r"], logprobs=1)
    vllm.feed(message(Row("r", [A], logprobs=[[(A, -1.0), (B, -2.0)]])))
    vllm.feed(message(Row("r", [B], logprobs=[[(B, -1.0)]])))
    assert vllm.error is not None
    assert {len(values) for values in vllm.completion_logprobs().values()} == {1}
    assert vllm.aborts == ["r"]


PROMPT = Prompt(TokenIds([A, B, C, D]))
OF_PROMPT = [[(B, -5.0), (A, -1.0), (D, -2.0)], [(C, -1.0), (C, -1.0), (A, -1.0)], [(D, -7.0), (A, -1.0), (D, -7.0)]]
RANKS = [40, 2, 2]


@pytest.mark.parametrize("parts", [[3], [1, 2], [2, 1], [1, 1, 1], [0, 3], [3, 3]])
def test_prompt_logprobs_are_those_of_every_token_but_the_first(vllm: Client, parts: list[int]) -> None:
    """They come at once or in parts, before or with the first token; what repeats them is no news."""
    vllm.open(ResponseFormat.outputs(), ["r"], PROMPT, prompt_logprobs=2)
    start = 0
    for position, size in enumerate(parts):
        columns, ranks = (OF_PROMPT * 2)[start : start + size], (RANKS * 2)[start : start + size]
        ids = [A] if position == len(parts) - 1 else []
        vllm.feed(message(Row("r", ids, prompt_logprobs=columns, prompt_ranks=ranks), inline=8))
        start += size
    vllm.feed(message(Row("r", [], LENGTH)))
    assert isinstance(vllm.end, list)
    assert vllm.end[0].prompt_logprobs == [
        None,
        [(B, -5.0, 40), (A, -1.0, 1), (D, -2.0, 2)],
        # Where the token is among the likeliest, its place there is its rank.
        [(C, -1.0, 1), (A, -1.0, 2)],
        [(D, -7.0, 2), (A, -1.0, 1)],
    ]


def test_prompt_logprobs_in_bodies(vllm: Client) -> None:
    shown = [
        None,
        {
            "65": {"logprob": -5.0, "rank": 40, "decoded_token": "b"},
            "64": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
        },
        {"66": {"logprob": -1.0, "rank": 1, "decoded_token": "c"}},
        {
            "67": {"logprob": -7.0, "rank": 3, "decoded_token": "d"},
            "64": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
        },
    ]
    row = Row("a", [E], LENGTH, prompt_logprobs=OF_PROMPT, prompt_ranks=[40, 1, 3])
    vllm.open(FORMATS["chat", False], ["a", "b"], PROMPT, prompt_logprobs=1)
    vllm.feed(message(row, row._replace(rid="b")))
    assert vllm.body["prompt_logprobs"] == shown
    assert "prompt_logprobs" not in vllm.choices()[0]
    vllm.raw = b""
    vllm.open(FORMATS["completion", False], ["a", "b"], PROMPT, prompt_logprobs=1)
    vllm.feed(message(row, row._replace(rid="b")))
    assert [choice["prompt_logprobs"] for choice in vllm.body["choices"]] == [shown, shown]
    assert "prompt_logprobs" not in vllm.body


def test_no_prompt_logprobs_unless_asked_for(vllm: Client) -> None:
    for api in ("chat", "completion"):
        vllm.open(FORMATS[api, False], ["r"], PROMPT)
        vllm.feed(message(Row("r", [E], LENGTH, prompt_logprobs=OF_PROMPT)))
        assert "prompt_logprobs" not in vllm.body | vllm.body["choices"][0]


def test_a_prompt_of_one_token_has_none(vllm: Client) -> None:
    vllm.open(FORMATS["completion", False], ["r"], Prompt(TokenIds([A])), prompt_logprobs=1)
    vllm.feed(message(Row("r", [B], LENGTH)))
    assert vllm.body["choices"][0]["prompt_logprobs"] == [None]


def test_a_character_in_parts_in_a_prompt(vllm: Client) -> None:
    party = vllm.tokenizer.encode("🎉").tolist()
    vllm.open(FORMATS["completion", False], ["r"], Prompt(TokenIds([A, *party])), prompt_logprobs=0)
    vllm.feed(message(Row("r", [B], LENGTH, prompt_logprobs=[[(token, -1.0)] for token in party])))
    prompt = vllm.body["choices"][0]["prompt_logprobs"]
    assert [entry["decoded_token"] for position in prompt[1:] for entry in position.values()] == ["", "", "", "🎉"]


@st.composite
def positions(draw: st.DrawFn) -> list[tuple[int, float]]:
    """The columns an engine would send: a sampled token, then four by their rank, it among them or not."""
    values = sorted(draw(st.lists(st.floats(-50, 0, width=32), min_size=4, max_size=4)), reverse=True)
    likeliest = list(zip(draw(st.permutations(range(60, 70)))[:4], values, strict=True))
    sampled = draw(st.sampled_from([*likeliest, (3, -60.0)]))
    return [sampled, *likeliest]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(positions(), min_size=1, max_size=8), st.integers(0, 4))
def test_streamed_and_whole_logprobs_are_the_same_however_ticks_are_split(
    tokenizer: Tokenizer, data: st.DataObject, columns: list[list[tuple[int, float]]], count: int
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(columns)))))
    bounds = list(itertools.pairwise([0, *cuts, len(columns)]))
    messages = [
        message(
            Row(
                "r",
                [position[0][0] for position in columns[start:end]],
                LENGTH if number == len(bounds) - 1 else None,
                logprobs=[position[: count + 1] for position in columns[start:end]],
            ),
            inline=data.draw(st.sampled_from([0, 32, 1000])),
        )
        for number, (start, end) in enumerate(bounds)
    ]
    seen = {}
    for key, format in FORMATS.items():
        client = Client(tokenizer, V0_32)
        client.open(format, ["r"], logprobs=count)
        for frames in messages:
            client.feed(frames)
        assert client.error is None
        seen[key] = chat_content(client) if key[0] == "chat" else client.completion_logprobs()
    assert seen["chat", True] == seen["chat", False]
    assert seen["completion", True] == seen["completion", False]
    client = Client(tokenizer, V0_32)
    client.open(ResponseFormat.outputs(), ["r"], logprobs=count)
    client.feed(*messages)
    assert isinstance(client.end, list)
    (output,) = client.end
    assert isinstance(output, Output)
    expected = [list(dict(position[: count + 1]).items()) for position in columns]
    assert output.top_logprobs == (expected if count else None)
    content = seen["chat", False]
    assert isinstance(content, list)
    assert [entry["logprob"] for entry in content] == [position[0][1] for position in columns]
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in content] == [
        [logprob for _, logprob in position][:count] for position in expected
    ]
