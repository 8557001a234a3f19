"""How generations end over vLLM's wire, and what else its messages tell."""

from __future__ import annotations

from typing import Any

import pytest

from smg_fast._codec import Output, Protocol, ResponseFormat, Tokenizer, Wave
from tests.codec.client import Client
from tests.codec.vllm_ticks import ABORT, ERROR, LENGTH, REPETITION, STOP, Row, message

FORMATS = {
    f"{api}{' stream' * stream}": getattr(ResponseFormat, api)(id="i", model="m", created=0, stream=stream)
    for api in ("chat", "completion")
    for stream in (False, True)
}
CHAT, CHAT_STREAM = FORMATS["chat"], FORMATS["chat stream"]
A, B, C = 64, 65, 66


@pytest.fixture
def vllm(tokenizer: Tokenizer) -> Client:
    return Client(tokenizer, Protocol.vllm("0.32.0"))


def ending(client: Client, index: int = 0) -> tuple[str, str | int | None]:
    last = client.choices(index)[-1]
    return last["finish_reason"], last["stop_reason"]


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    ("finish", "reason", "shown"),
    [
        (STOP, None, ("stop", None)),
        (STOP, 7, ("stop", 7)),
        (LENGTH, None, ("length", None)),
        (ABORT, None, ("abort", None)),
        (REPETITION, "repetition_detected", ("repetition", "repetition_detected")),
    ],
)
@pytest.mark.parametrize("ids", [[], [A]])
def test_an_end_is_shown_as_vllms_own_server_does(
    vllm: Client,
    format: ResponseFormat,
    finish: int,
    reason: int | str | None,
    shown: tuple[str, str | int | None],
    ids: list[int],
) -> None:
    """An abort before any token too: to this engine it is no refusal."""
    vllm.open(format, ["r"])
    vllm.feed(message(Row("r", ids, finish, reason)))
    assert ending(vllm) == shown
    assert vllm.error is None


@pytest.mark.parametrize(
    ("options", "reason", "text", "stop_reason"),
    [
        # The engine looks for the end of sequence first, and then has no reason.
        ({"eos_token_ids": [B]}, None, "a", None),
        ({"eos_token_ids": [B], "stop_token_ids": [B]}, None, "a", None),
        # Further ends of sequence are stop tokens to it, and so shown.
        ({"eos_token_ids": [C, B]}, B, "a", B),
        ({"stop_token_ids": [B]}, B, "a", B),
        ({"stop_token_ids": [B], "include_stop_str": True}, B, "ab", B),
        # A single token in the place of a stop string is the string; unless the request names the token too.
        ({"stop": ["b"]}, B, "a", "b"),
        ({"stop": ["c", "ab"]}, B, "", "ab"),
        ({"stop": ["b"], "include_stop_str": True}, B, "ab", "b"),
        ({"stop": ["b"], "stop_token_ids": [B]}, B, "a", B),
    ],
)
@pytest.mark.parametrize("format", [*FORMATS.values(), ResponseFormat.outputs()], ids=[*FORMATS, "outputs"])
def test_what_the_engine_stopped_at(
    vllm: Client, format: ResponseFormat, options: dict[str, Any], reason: int | None, text: str, stop_reason: object
) -> None:
    vllm.open(format, ["r"], **options)
    vllm.feed(message(Row("r", [A])), message(Row("r", [B], STOP, reason)))
    if isinstance(vllm.end, list):
        (output,) = vllm.end
        assert isinstance(output, Output)
        assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", stop_reason)
        assert output.token_ids.tolist() == [A, B]
        return
    assert ending(vllm) == ("stop", stop_reason)
    assert vllm.text() == text
    assert vllm.aborts == [], "the engine has stopped by itself"


def test_a_stop_string_wins_over_the_end_of_the_room(vllm: Client) -> None:
    vllm.open(CHAT, ["r"], stop=["b"])
    vllm.feed(message(Row("r", [A, B], LENGTH)))
    assert ending(vllm) == ("stop", "b")


def test_of_stop_strings_that_end_together_the_first_is_taken(vllm: Client) -> None:
    vllm.open(CHAT, ["r"], stop=["b", "ab"])
    vllm.feed(message(Row("r", [A, B, C])))
    assert ending(vllm) == ("stop", "b")
    assert vllm.text() == "a"


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("reason", "cause"), [(None, ""), ("no memory", ": no memory")])
def test_an_error_is_a_failure_with_its_reason(
    vllm: Client, format: ResponseFormat, reason: str | None, cause: str
) -> None:
    vllm.open(format, ["r"])
    vllm.feed(message(Row("r", [A], ERROR, reason)))
    assert vllm.error == f"the engine failed the request{cause}"
    assert vllm.finished == ["r"]


def test_what_ends_without_a_word_fails_and_does_not_hang(vllm: Client) -> None:
    vllm.open(CHAT_STREAM, ["a", "b"])
    vllm.feed(message(Row("a", [A]), Row("b", [A])))
    vllm.feed(message(Row("a", [B]), finished_requests=["b", "stranger"]))
    assert vllm.error is not None
    assert "ended" in vllm.error
    assert vllm.text(0) == "ab"
    assert vllm.aborts == ["a"], "the other one is over"
    assert sorted(vllm.finished) == ["a", "b"]
    assert len(vllm.dispatcher) == 0


def test_the_list_of_finished_requests_repeats_what_rows_say(vllm: Client) -> None:
    vllm.open(CHAT, ["a", "b"])
    vllm.feed(message(Row("a", [A], LENGTH), Row("b", [A]), finished_requests=["a"]))
    assert vllm.error is None
    vllm.feed(message(Row("b", [B], STOP)), message(finished_requests=["a", "b"]))
    assert [ending(vllm, index) for index in range(2)] == [("length", None), ("stop", None)]


def test_an_engine_is_told_again_of_a_request_that_it_had_ended(vllm: Client) -> None:
    """What it listed as finished it has forgotten: a row after that is of a request that nobody here knows."""
    key = vllm.open(CHAT, ["r"])
    assert vllm.dispatcher.cancel(key) == ["r"]
    assert vllm.feed(message(Row("r", [A]))).aborts == []
    assert vllm.feed(message(finished_requests=["r"])).aborts == []
    assert vllm.feed(message(Row("r", [A]))).aborts == ["r"]


def test_waves_are_reported(vllm: Client) -> None:
    outcome = vllm.feed(
        message(engine_index=1, wave_complete=4),
        message(start_wave=5),
        message(),
        message(wave_complete=0, start_wave=0),
    )
    assert all(isinstance(wave, Wave) for wave in outcome.waves)
    assert [(wave.engine_index, wave.complete, wave.start) for wave in outcome.waves] == [
        (1, 4, None),
        (0, None, 5),
        (0, 0, 0),
    ]


def test_the_answer_of_a_utility_call_is_no_error(vllm: Client) -> None:
    for answer in ([1, None, None], [2, "it failed", None]):
        outcome = vllm.feed(message(utility_output=answer))
        assert [[utility.call_id, utility.failure] for utility in outcome.utilities] == [answer[:2]]
        assert (outcome.refused, outcome.chunks, outcome.ended, outcome.aborts) == (None, [], [], [])


def test_cached_tokens_come_with_the_first_row(vllm: Client) -> None:
    vllm.open(CHAT, ["a", "b"])
    vllm.feed(message(Row("a", [A], cached_tokens=3), Row("b", [A], cached_tokens=4)))
    vllm.feed(message(Row("a", [B], STOP), Row("b", [B], STOP)))
    assert vllm.body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}, "one prompt, counted once"
