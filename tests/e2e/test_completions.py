"""Completions, seen by the ``openai`` package."""

from __future__ import annotations

import openai
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.prompts.model_directory import ModelDirectory
from tests.e2e.engines import Capability, Engine

PROMPT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture
def tokenizer(engine: Engine) -> Tokenizer:
    return Tokenizer.from_file(str(ModelDirectory.load(engine.model).tokenizer_file))


def test_an_answer_has_sixteen_tokens_unless_told_otherwise(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="model", prompt=PROMPT, extra_body={"ignore_eos": True})
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.needs(Capability.ECHO)
def test_text_and_its_token_ids_are_the_same_prompt(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT).tolist()
    for prompt in (PROMPT, [PROMPT], ids, [ids]):
        answer = client.completions.create(model="model", prompt=prompt, max_tokens=len(ids))
        assert answer.choices[0].text == PROMPT
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids)


@pytest.mark.needs(Capability.ECHO)
@pytest.mark.parametrize("stream", [False, True])
def test_a_list_of_prompts_is_answered_in_order(client: openai.OpenAI, tokenizer: Tokenizer, stream: bool) -> None:
    prompts = ["first prompt", "and the second one", "third"]
    length = sum(len(tokenizer.encode(prompt)) for prompt in prompts)
    if stream:
        texts = [""] * 6
        events = client.completions.create(
            model="model", prompt=prompts, n=2, max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
        for event in events:
            for choice in event.choices:
                texts[choice.index] += choice.text
            usage = event.usage
    else:
        answer = client.completions.create(model="model", prompt=prompts, n=2, max_tokens=4)
        texts = [choice.text for choice in answer.choices]
        usage = answer.usage
    for index, text in enumerate(texts):
        assert text
        assert prompts[index // 2].startswith(text) or text.startswith(prompts[index // 2])
    assert usage is not None
    assert usage.prompt_tokens == length


def test_logprobs_align_with_the_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="model", prompt=PROMPT, max_tokens=6, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    text = answer.choices[0].text
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert text[offset:].startswith(token) or "\ufffd" in token or offset == len(text)
