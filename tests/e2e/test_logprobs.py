"""How likely what was said was, and what else might have been said."""

from __future__ import annotations

import math
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from smg_fast._codec import Tokenizer
from smg_fast.prompts.model_directory import ModelDirectory
from tests.e2e.engines import Capability, Engine

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello there, who are you?"}]
PROMPT = "The quick brown fox jumps over the lazy dog"


def chat_logprobs(client: openai.OpenAI, stream: bool, **parameters: Any) -> list[ChatCompletionTokenLogprob]:
    asked = {"model": "model", "messages": HELLO, "logprobs": True, "max_tokens": 6, **parameters}
    if not stream:
        logprobs = client.chat.completions.create(**asked).choices[0].logprobs
        return list(logprobs.content or ()) if logprobs is not None else []
    return [
        entry
        for event in client.chat.completions.create(**asked, stream=True)
        if (logprobs := event.choices[0].logprobs) is not None
        for entry in logprobs.content or ()
    ]


@pytest.mark.needs(Capability.ALTERNATIVES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_shows_the_likeliest_alternatives(client: openai.OpenAI, stream: bool) -> None:
    entries = chat_logprobs(client, stream, top_logprobs=3)
    assert entries
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        tokens = [(alternative.token, tuple(alternative.bytes or ())) for alternative in entry.top_logprobs]
        assert len(set(tokens)) == 3, "none twice"
        assert all(math.isfinite(alternative.logprob) for alternative in entry.top_logprobs)


@pytest.mark.needs(Capability.ALTERNATIVES, Capability.SAMPLING)
def test_greedy_sampling_says_the_likeliest(client: openai.OpenAI) -> None:
    for entry in chat_logprobs(client, stream=False, top_logprobs=4, temperature=0):
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == entry.top_logprobs[0].logprob
        logprobs = [alternative.logprob for alternative in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1.001


@pytest.mark.needs(Capability.ALTERNATIVES)
def test_a_completion_shows_them_beside_what_it_says(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="model", prompt=PROMPT, max_tokens=5, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    for token, logprob, alternatives in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert alternatives[token] == logprob
        assert len(alternatives) in (2, 3)


@pytest.mark.needs(Capability.ALTERNATIVES)
def test_more_than_the_engine_gives_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="20") as refused:
        client.completions.create(model="model", prompt=PROMPT, logprobs=21)
    assert refused.value.param == "logprobs"


@pytest.mark.needs(Capability.PROMPT_LOGPROBS)
def test_an_echo_tells_how_likely_the_prompt_was(client: openai.OpenAI, engine: Engine) -> None:
    tokenizer = Tokenizer.from_file(str(ModelDirectory.load(engine.model).tokenizer_file))
    length = len(tokenizer.encode(PROMPT))
    answer = client.completions.create(model="model", prompt=PROMPT, max_tokens=3, logprobs=1, echo=True)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith(PROMPT)
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert answer.usage is not None
    assert "".join(logprobs.tokens[:length]) == PROMPT
    assert len(logprobs.tokens) == length + answer.usage.completion_tokens
    first, *others = cast("list[float | None]", logprobs.token_logprobs)
    assert first is None
    assert all(value is not None and math.isfinite(value) for value in others)


@pytest.mark.needs(Capability.PROMPT_LOGPROBS)
def test_prompt_logprobs_cover_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="model", prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 1})
    extra = answer.choices[0].model_extra or {}
    assert answer.usage is not None
    first, *others = extra["prompt_logprobs"]
    assert first is None
    assert len(others) == answer.usage.prompt_tokens - 1
    for position in others:
        assert all(entry["rank"] >= 1 and math.isfinite(entry["logprob"]) for entry in position.values())
