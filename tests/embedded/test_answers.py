"""Recorded answers: which request gets which, and how much of it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from smg_fast.embedded.simulator.answers import Answers, NoAnswerError, Replay
from smg_fast.embedded.wire import Constraint, EngineRequest, LogprobRows, Sampling
from tests.embedded.gateway_side import Gateway, Simulator, pair
from tests.embedded.vllm_side import EOS, VLLM, Client

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = [1, 30, 3]
# As a file has it: values that take 53 bits to write and 32 to hold.
LOGPROBS: dict[str, Any] = {
    "token_ids": [[40, 40, 41], [42, 43, 44], [EOS, EOS, 5]],
    "values": [
        [-0.2692539393901825, -0.2692539393901825, -3.5],
        [-2.3885855674743652, -0.25, -1.125],
        [-0.5, -0.5, None],
    ],
}
PROMPT_LOGPROBS = {"token_ids": [[30, 9], [3, 3]], "values": [[-4.0, -0.125], [-0.5, -0.5]], "ranks": [77, 1]}
ANSWER = {
    "prompt_token_ids": PROMPT,
    "sampling": {"temperature": 0.0},
    "token_ids": [40, 42, EOS],
    "finish_reason": "stop",
    "logprobs": LOGPROBS,
    "prompt_logprobs": PROMPT_LOGPROBS,
}


def answers(tmp_path: Path, *recorded: dict[str, Any]) -> Answers:
    return Answers.load(file(tmp_path, *recorded))


def file(tmp_path: Path, *recorded: dict[str, Any]) -> Path:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"about": "made up", "answers": recorded}), encoding="utf-8")
    return path


def request(*, logprobs: int | None = None, prompt_logprobs: int | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        rid="r",
        prompt_ids=PROMPT,
        sampling=Sampling(**{"max_new_tokens": 9, "temperature": 0.0, "top_k": 0, **sampling}),
        logprobs=logprobs is not None,
        top_logprobs=logprobs or 0,
        prompt_logprobs=prompt_logprobs,
    )


def replay(tmp_path: Path, asked: EngineRequest, *changes: dict[str, Any], eos: tuple[int, ...] = (EOS,)) -> Replay:
    return answers(tmp_path, *({**ANSWER, **change} for change in changes or ({},))).find(asked, eos, 1000)


def test_an_answer_is_told_as_it_was_recorded(tmp_path: Path) -> None:
    told = replay(tmp_path, request(logprobs=2, prompt_logprobs=1))
    assert (told.token_ids, told.finish) == ([40, 42, EOS], "stop")
    assert told.logprobs is not None
    assert [*map(list, told.logprobs.token_ids)] == LOGPROBS["token_ids"]
    assert told.logprobs.values[:2] == LOGPROBS["values"][:2]
    assert told.logprobs.values[2][2] == -math.inf
    assert told.logprobs.ranks == [1, 3, 1]  # as the rows show: they were not recorded
    assert told.prompt_logprobs == LogprobRows([(30, 9), (3, 3)], [[-4.0, -0.125], [-0.5, -0.5]], (77, 1))


def test_a_request_gets_as_many_alternatives_as_it_asks_for(tmp_path: Path) -> None:
    told = replay(tmp_path, request(logprobs=0))
    assert told.logprobs is not None
    assert [*told.logprobs.token_ids] == [(40,), (42,), (EOS,)]
    assert told.logprobs.ranks == [1, 3, 1]
    assert replay(tmp_path, request()).logprobs is None


@pytest.mark.parametrize(
    ("sampling", "eos", "said", "finish"),
    [
        ({"max_new_tokens": 3}, (EOS,), [40, 42, EOS], "stop"),
        ({"max_new_tokens": 2}, (EOS,), [40, 42], "length"),
        ({"stop_token_ids": (42,)}, (EOS,), [40, 42], "stop"),
        ({"stop_token_ids": (EOS,)}, (), [40, 42, EOS], "stop"),
        ({"max_new_tokens": 3}, (), [40, 42, EOS], "length"),
    ],
)
def test_a_request_cuts_its_answer(
    tmp_path: Path, sampling: dict[str, Any], eos: tuple[int, ...], said: list[int], finish: str
) -> None:
    told = replay(tmp_path, request(**sampling), eos=eos)
    assert (told.token_ids, told.finish) == (said, finish)


def test_stops_do_not_count_before_min_tokens(tmp_path: Path) -> None:
    recorded = {"sampling": {"temperature": 0, "min_tokens": 2}}
    told = replay(tmp_path, request(min_new_tokens=2, stop_token_ids=(40,)), recorded)
    assert told.token_ids == [40, 42, EOS]


def test_an_end_of_the_engines_own_comes_after_the_last_token(tmp_path: Path) -> None:
    told = replay(tmp_path, request(), {"finish_reason": "repetition", "stop_reason": "why", "token_ids": [40] * 3,
                                        "logprobs": None})  # fmt: skip
    assert (told.token_ids, told.finish, told.stop_reason) == ([40] * 3, "repetition", "why")


def test_a_short_recording_is_told_and_then_fails(tmp_path: Path) -> None:
    recorded = {**ANSWER, "token_ids": [40, 42], "finish_reason": "length", "logprobs": None}
    assert not answers(tmp_path, recorded).find(request(max_new_tokens=2), (EOS,), 1000).short
    with pair(tmp_path, "--answers", str(file(tmp_path, recorded)), "--eos-token-id", EOS) as (gateway, _):
        gateway.add("enough", PROMPT, top_k=1, max_new_tokens=2)
        gateway.add("more", PROMPT, top_k=1, max_new_tokens=3)
        enough, more = gateway.answers("enough", "more")
        assert (enough.ids, enough.finish) == ([40, 42], "length")
        assert (more.ids, more.finish, more.rows[-1].ids) == ([40, 42], "error", [])


def test_of_two_the_longer_is_told(tmp_path: Path) -> None:
    short = {"token_ids": [40], "finish_reason": "length", "logprobs": None}
    assert len(replay(tmp_path, request(), short, {}).token_ids) == 3
    assert len(replay(tmp_path, request(), {}, short).token_ids) == 3


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.0}, {"seed": 5, "top_p": 0.5, "min_p": 0.1, "top_k": 9}),
    ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1, "seed": 0}),  # greedy as TokenSpeed's wire has it
    ({"top_k": -1}, {"temperature": 1.0, "top_k": 1 << 30}),
    ({"logit_bias": {"5": 1.0, "3": -2.0}}, {"temperature": 1.0, "logit_bias": {3: -2.0, 5: 1.0}}),
    ({"temperature": 0.8, "seed": 4}, {"temperature": 0.8, "seed": 4, "backend": "guidance"}),
    (
        {"constraint": {"kind": "json", "value": '{"a": 1, "b": 2}'}},
        {"temperature": 1.0, "constraints": (Constraint(kind="json", value='{"b":2,"a":1}'),)},
    ),
    (
        {"constraint": {"kind": "choice", "value": ["a", "b"]}},
        {"temperature": 1.0, "constraints": (Constraint(kind="choice", value=("a", "b")),)},
    ),
]


@pytest.mark.parametrize(("recorded", "asked"), SAME)
def test_what_decides_nothing_makes_no_difference(
    tmp_path: Path, recorded: dict[str, Any], asked: dict[str, Any]
) -> None:
    assert replay(tmp_path, request(**asked), {"sampling": recorded}).token_ids == [40, 42, EOS]


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"min_new_tokens": 1},
        {"ignore_eos": True},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": (1,)},
        {"bad_words": ((1,),)},
        {"constraints": (Constraint(kind="regex", value="a"),)},
    ],
)
def test_what_decides_the_tokens_makes_it_another_request(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(NoAnswerError, match="no recorded answer to this prompt"):
        replay(tmp_path, request(**asked))


def test_another_prompt_is_another_request(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match="no recorded answer to this prompt"):
        replay(tmp_path, msgspec.structs.replace(request(), prompt_ids=[*PROMPT, 3]))


@pytest.mark.parametrize(
    ("asked", "recorded", "clue"),
    [
        ({"logprobs": 3}, {}, "logprobs have 2 alternatives, and 3 are wanted"),
        ({"prompt_logprobs": 2}, {}, "prompt_logprobs have 1 alternatives, and 2"),
        ({"logprobs": 0}, {"logprobs": None}, "no logprobs"),
        ({}, {"eos": ()}, r"ends at \[7\], where this request does not stop"),
    ],
)
def test_what_was_not_recorded_is_refused(
    tmp_path: Path, asked: dict[str, Any], recorded: dict[str, Any], clue: str
) -> None:
    eos = recorded.pop("eos", (EOS,))
    with pytest.raises(NoAnswerError, match=clue):
        replay(tmp_path, request(**asked), recorded, eos=eos)


@pytest.mark.parametrize(
    ("change", "clue"),
    [
        ({"logprobs": {**LOGPROBS, "values": [[-1.0] * 3] * 2}}, "answer 0: its logprobs"),
        ({"token_ids": [40, 41, EOS]}, "answer 0: its logprobs"),
        ({"prompt_logprobs": {**PROMPT_LOGPROBS, "ranks": [1]}}, "answer 0: its prompt_logprobs"),
        ({"finish_reason": "stopped"}, "finish_reason"),
        ({"sampling": {"max_tokens": 5}}, "max_tokens"),
        ({"text": "a"}, "text"),
    ],
)
def test_a_file_that_is_not_in_the_format_is_refused(tmp_path: Path, change: dict[str, Any], clue: str) -> None:
    with pytest.raises(ValueError, match=clue):
        answers(tmp_path, {**ANSWER, **change})


def test_a_vllm_engine_replays(tmp_path: Path) -> None:
    path = file(tmp_path, ANSWER)
    with pair(tmp_path, *VLLM, "--answers", str(path), "--tokens-per-tick", 2, log=True) as (gateway, simulator):
        client = Client(gateway)
        client.add("a", PROMPT, temperature=0.0, logprobs=2, prompt_logprobs=1)
        client.add("cut", PROMPT, temperature=0.0, max_tokens=2)
        client.add("other", [1, 2], temperature=0.0)
        output = client.output("a")
        assert (output.token_ids.tolist(), output.finish_reason) == ([40, 42, EOS], "stop")
        assert output.logprobs is not None
        assert output.logprobs.tolist() == [-0.2692539393901825, -2.3885855674743652, -0.5]
        assert output.top_logprobs is not None
        assert output.top_logprobs[:2] == [
            [(40, -0.2692539393901825), (41, -3.5)],
            [(42, -2.3885855674743652), (43, -0.25), (44, -1.125)],
        ]
        assert output.prompt_logprobs is not None
        assert [position[0] for position in output.prompt_logprobs[1:] if position] == [(30, -4.0, 77), (3, -0.5, 1)]
        cut = client.output("cut")
        assert (cut.token_ids.tolist(), cut.finish_reason) == ([40, 42], "length")
        assert isinstance(client.result("other"), str)
        counters = simulator.stop()
        assert (counters.finished, counters.refused, counters.violations) == (2, 1, 0)
        assert simulator.process.stderr is not None
        assert b"request other refused: no recorded answer to this prompt" in simulator.process.stderr.read()


def test_a_tokenspeed_engine_replays(tmp_path: Path) -> None:
    with pair(tmp_path, "--eos-token-id", EOS, "--answers", str(file(tmp_path, ANSWER))) as (gateway, _):
        gateway.add("a", PROMPT, top_k=1, seed=0, logprobs=True)
        gateway.add("other", [1, 2])
        told, other = gateway.answers("a", "other")
        assert (told.ids, told.finish) == ([40, 42, EOS], "stop")
        assert told.logprobs == [-0.2692539393901825, -2.3885855674743652, -0.5]
        assert (other.ids, other.finish) == ([], "error: no recorded answer to this prompt with this sampling")


def test_answers_that_cannot_be_read_end_the_engine(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", file(tmp_path, {**ANSWER, "token_ids": [1]})):
        with Gateway(tmp_path) as gateway:
            simulator = Simulator(gateway.address, "--answers", str(path), log=False)
            with simulator:
                assert simulator.process.wait(60) == 1
