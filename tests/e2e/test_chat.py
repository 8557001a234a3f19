"""Chat completions, seen by the ``openai`` package."""

from __future__ import annotations

import math

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.engines import Capability

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello there, who are you?"}]
PIECES = ["plain words", "Ünïcödé é", "日本語 🎉👩‍👩‍👧 ok", 'quotes " and \\ and \t tabs\n\nlines', "<b>&amp;</b>"]


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="model", messages=HELLO, max_tokens=40)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == "model"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.needs(Capability.ECHO)
@pytest.mark.parametrize("text", PIECES)
@pytest.mark.parametrize("stream", [False, True])
def test_text_comes_back_as_it_went(client: openai.OpenAI, text: str, stream: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You are an echo."},
        {"role": "user", "content": text},
    ]
    if stream:
        events = client.chat.completions.create(model="model", messages=messages, stream=True)
        answer = "".join(event.choices[0].delta.content or "" for event in events)
    else:
        answer = client.chat.completions.create(model="model", messages=messages).choices[0].message.content or ""
    assert answer == text


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="model", messages=HELLO, max_tokens=30, temperature=0, seed=1)
    events = list(
        client.chat.completions.create(
            model="model",
            messages=HELLO,
            max_tokens=30,
            temperature=0,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *chunks, last = events
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == whole.choices[0].finish_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({event.id for event in events}) == 1


def test_max_tokens_is_an_exact_bound(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="model", messages=HELLO, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        texts = ["", "", ""]
        finishes: list[int] = []
        for event in client.chat.completions.create(model="model", messages=HELLO, n=3, max_tokens=10, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes += [choice.index] if choice.finish_reason else []
        assert sorted(finishes) == [0, 1, 2]
    else:
        answer = client.chat.completions.create(model="model", messages=HELLO, n=3, max_tokens=10)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content or "" for choice in answer.choices]
    assert all(texts)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_the_sampled_tokens(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        events = list(
            client.chat.completions.create(model="model", messages=HELLO, logprobs=True, max_tokens=8, stream=True)
        )
        text = "".join(event.choices[0].delta.content or "" for event in events)
        entries = [
            entry
            for event in events
            if (logprobs := event.choices[0].logprobs) is not None
            for entry in logprobs.content or []
        ]
    else:
        answer = client.chat.completions.create(model="model", messages=HELLO, logprobs=True, max_tokens=8)
        text = answer.choices[0].message.content or ""
        assert answer.choices[0].logprobs is not None
        entries = list(answer.choices[0].logprobs.content or [])
    assert 0 < len(entries) <= 8
    assert all(math.isfinite(entry.logprob) and entry.logprob <= 0 for entry in entries)
    joined = b"".join(bytes(entry.bytes or ()) for entry in entries).decode(errors="replace")
    assert joined.startswith(text), "the entries spell the text, and an end-of-sequence token at most"


@pytest.mark.needs(Capability.ECHO)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_text(client: openai.OpenAI, stream: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "one two three, then four and five"}]
    if stream:
        events = list(
            client.chat.completions.create(model="model", messages=messages, stop=["zzz", "ee, the"], stream=True)
        )
        text = "".join(event.choices[0].delta.content or "" for event in events)
        finish = events[-1].choices[0].finish_reason
    else:
        (choice,) = client.chat.completions.create(model="model", messages=messages, stop=["zzz", "ee, the"]).choices
        text, finish = choice.message.content or "", choice.finish_reason
    assert (text, finish) == ("one two thr", "stop")


def test_a_wrong_request_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="model", messages=HELLO, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=HELLO)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["model"]
    assert client.models.retrieve("model").id == "model"
