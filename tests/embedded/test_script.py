"""What the simulator says, and how it ends."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_fast.embedded.simulator import TurnMarkers, logprob_rows, token_logprobs
from smg_fast.embedded.simulator.script import last_turn, write_script
from smg_fast.embedded.wire import Sampling

START, END, NEWLINE = 100, 101, 10
MARKERS = TurnMarkers(START, END, (NEWLINE,))
EOS = (END,)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([START, 1, NEWLINE, 7, 8, END, NEWLINE, START, 2, NEWLINE], [7, 8]),
        (
            [START, 1, NEWLINE, 5, END, NEWLINE, START, 3, NEWLINE, 7, NEWLINE, 8, END, START, 2, NEWLINE],
            [7, NEWLINE, 8],
        ),
        ([START, 1, NEWLINE, END, NEWLINE, START, 2, NEWLINE], []),
        ([START, 7, 8, END, START], [7, 8]),
        ([7, NEWLINE, 8, END, 9], [8]),
        ([7, NEWLINE, 8], [7, NEWLINE, 8]),
        ([START, 2, NEWLINE], [START, 2, NEWLINE]),
    ],
    ids=["chat", "two turns", "empty turn", "no separator", "no start", "completion", "only the assistant's turn"],
)
def test_the_echo_is_the_last_finished_turn(prompt: list[int], said: list[int]) -> None:
    assert last_turn(prompt, MARKERS) == said


def test_without_markers_the_echo_is_the_prompt() -> None:
    prompt = [START, 1, NEWLINE, 7, 8, END]
    assert last_turn(prompt, None) == prompt


@pytest.mark.parametrize(
    ("source", "sampling", "script", "finish"),
    [
        ([7, 8], {}, [7, 8, END], "stop"),
        ([7, 8], {"max_new_tokens": 2}, [7, 8], "length"),
        ([7, 8], {"max_new_tokens": 3}, [7, 8, END], "stop"),
        ([7, 8], {"max_new_tokens": 0}, [], "length"),
        ([7, 8], {"max_new_tokens": 5, "ignore_eos": True}, [7, 8, 7, 8, 7], "length"),
        ([7, END, 8], {}, [7, END], "stop"),
        ([7, END, 8], {"max_new_tokens": 4, "ignore_eos": True}, [7, END, 8, 7], "length"),
        ([7, 8, 9], {"stop_token_ids": (8,)}, [7, 8], "stop"),
        ([7, 8, 9], {"stop_token_ids": (8,), "ignore_eos": True}, [7, 8], "stop"),
        ([7, 8, 9], {"stop_token_ids": (8,), "min_new_tokens": 3}, [7, 9, 7, 8], "stop"),
        ([7, 8], {"min_new_tokens": 3}, [7, 8, 7, 8, END], "stop"),
        ([7, 8], {"min_new_tokens": 9, "max_new_tokens": 4}, [7, 8, 7, 8], "length"),
        ([], {}, [END], "stop"),
        ([], {"ignore_eos": True, "max_new_tokens": 2}, [0, 0], "length"),
        ([END], {"min_new_tokens": 2}, [0, 0, END], "stop"),
        ([7], {"ignore_eos": True}, [7] * 20, "length"),
    ],
)
def test_scripts(source: list[int], sampling: dict[str, Any], script: list[int], finish: str) -> None:
    assert write_script(source, Sampling(**sampling), EOS, room=20) == (script, finish)


def test_without_an_eos_token_the_end_is_silent() -> None:
    assert write_script([7, 8], Sampling(), (), room=20) == ([7, 8], "stop")


@given(
    source=st.lists(st.integers(0, 4)),
    most=st.none() | st.integers(0, 30),
    least=st.integers(0, 30),
    stops=st.none() | st.lists(st.integers(0, 4)).map(tuple),
    eos=st.lists(st.integers(0, 4)).map(tuple),
    ignore_eos=st.booleans(),
)
def test_every_script_ends_as_an_engine_would(
    source: list[int],
    most: int | None,
    least: int,
    stops: tuple[int, ...] | None,
    eos: tuple[int, ...],
    ignore_eos: bool,
) -> None:
    sampling = Sampling(max_new_tokens=most, min_new_tokens=least, stop_token_ids=stops, ignore_eos=ignore_eos)
    script, finish = write_script(source, sampling, eos, room=25)
    all_stops = {*(stops or ()), *(() if ignore_eos else eos)}
    limit = 25 if most is None else min(most, 25)
    assert len(script) <= limit
    assert all_stops.isdisjoint(script[:-1])
    if finish == "length":
        assert len(script) == limit
        assert all_stops.isdisjoint(script)
    else:
        assert finish == "stop"
        assert not script or script[-1] in all_stops or not (eos or ignore_eos)
        assert len(script) >= least


def test_logprobs_depend_on_the_place_and_not_on_the_tick() -> None:
    ids = list(range(3000, 3100))
    whole = token_logprobs(ids, 0)
    assert [value for i in range(0, 100, 3) for value in token_logprobs(ids[i : i + 3], i)] == whole
    assert all(-9.2 < value < 0 for value in whole)
    assert token_logprobs([5, 5], 0)[0] != token_logprobs([5, 5], 0)[1]
    # No value survives a detour over 32 bits.
    assert all(struct.unpack("<f", struct.pack("<f", value))[0] != value for value in whole)


@pytest.mark.parametrize("vocab_size", [1 << 31, 9])
@pytest.mark.parametrize("alternatives", [0, 1, 5])
def test_logprob_rows_are_like_an_engines(alternatives: int, vocab_size: int) -> None:
    tokens = random.Random(1).choices(range(min(vocab_size, 1000)), k=500)
    rows = logprob_rows(tokens, 0, alternatives, vocab_size)
    outside = 0
    for token, ids, values, rank in zip(tokens, rows.token_ids, rows.values, rows.ranks, strict=True):
        (own, *others), (value, *likeliest) = ids, values
        assert own == token
        assert len(set(others)) == len(others) == len(likeliest) == alternatives
        assert all(0 <= other < vocab_size for other in others)
        assert likeliest == sorted(likeliest, reverse=True)
        assert sum(map(math.exp, likeliest)) < 1
        assert all(struct.unpack("<f", struct.pack("<f", each))[0] == each for each in values)
        if rank <= alternatives:
            assert (others[rank - 1], likeliest[rank - 1]) == (token, value)
        else:
            outside += 1
            assert token not in others
            assert all(value < other for other in likeliest)
    assert outside > 0
    assert alternatives in (0, 5) or outside < len(tokens)


def test_logprob_rows_depend_on_the_place_and_not_on_the_tick() -> None:
    whole = logprob_rows([5, 5, 6], 2, 3, 100)
    parts = [logprob_rows([5, 5], 2, 3, 100), logprob_rows([6], 4, 3, 100)]
    assert [row for part in parts for row in part.values] == whole.values
    assert whole.values[0] != whole.values[1]


def test_a_model_says_its_end_where_nothing_stops_at_it() -> None:
    said, finish = write_script([7, 8], Sampling(max_new_tokens=5), (), room=20, end=END)
    assert (said, finish) == ([7, 8, END, 7, 8], "length")
