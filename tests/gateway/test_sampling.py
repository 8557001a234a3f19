"""What an engine is told of a request that passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from smg_fast.engines import SamplingParams
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.limits import MAX_PROMPT_LOGPROBS, MAX_REPEATED_BYTES, Limits, SamplingDefaults
from smg_fast.gateway.sampling import for_choice

from .requests import (
    TOKENIZER,
    TOKENSPEED,
    VOCABULARY,
    chat,
    completion,
    refused,
    sampling,
    sampling_of_prompts,
    terms,
)

INT64 = 2**63
DEFAULTS = SamplingDefaults(
    temperature=0.6,
    top_p=0.9,
    top_k=20,
    min_p=0.1,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    repetition_penalty=1.1,
    max_tokens=50,
)


def test_what_is_given_goes_to_the_engine_as_given() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "frequency_penalty": 1.5,
        "presence_penalty": -1.5,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "max_tokens": 9,
        "seed": 42,
        "ignore_eos": True,
        "prompt_logprobs": 2,
    }
    expected = SamplingParams(
        **given, stop_token_ids=(5, 6), logprobs=4, logit_bias={7: -1.5, 8: 100.0}, allowed_token_ids=(1, 2)
    )
    lists = {"stop_token_ids": [5, 6, 5], "logit_bias": {"7": -1.5, "8": 1e6}, "allowed_token_ids": [1, 2, 1]}
    assert sampling(chat(**given, **lists, logprobs=True, top_logprobs=4)) == expected
    assert sampling(completion(**given, **lists, logprobs=4)) == expected


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "n", "stop", "echo"]
)
def test_null_is_not_given(name: str) -> None:
    assert sampling(chat(**{name: None})) == sampling(chat())
    assert sampling(completion(**{name: None})) == sampling(completion())


class TestDefaults:
    def test_count_where_the_request_says_nothing(self) -> None:
        told = msgspec.structs.asdict(sampling(chat(), terms(defaults=DEFAULTS)))
        expected = msgspec.structs.asdict(DEFAULTS)
        assert {name: told[name] for name in expected} == expected

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", 0),
            ("temperature", 1),
            ("top_p", 1),
            ("top_k", 0),
            ("top_k", -1),
            ("min_p", 0),
            ("presence_penalty", 0),
            ("frequency_penalty", 0),
            ("repetition_penalty", 1),
            ("max_tokens", 70),
        ],
    )
    def test_give_way_to_the_request(self, name: str, value: float) -> None:
        assert getattr(sampling(chat(**{name: value}), terms(defaults=DEFAULTS)), name) == value

    def test_of_max_tokens_is_for_chats_and_within_the_context(self) -> None:
        against = terms(defaults=DEFAULTS)
        assert sampling(chat(), against, prompt_tokens=60).max_tokens == 40
        assert sampling(completion(), against).max_tokens == 16
        assert sampling(chat(), terms(limits=Limits(VOCABULARY, None), defaults=DEFAULTS)).max_tokens == 50


class TestMaxTokens:
    def test_of_a_chat_is_what_the_context_leaves(self) -> None:
        assert sampling(chat(), prompt_tokens=10).max_tokens == 90
        assert sampling(chat(), prompt_tokens=99).max_tokens == 1

    def test_of_a_completion_is_16_or_what_the_context_leaves(self) -> None:
        assert sampling(completion(), prompt_tokens=10).max_tokens == 16
        assert sampling(completion(), prompt_tokens=90).max_tokens == 10

    def test_is_never_more_than_the_context_leaves(self) -> None:
        for request in (chat(max_tokens=95), chat(max_completion_tokens=100), completion(max_tokens=91)):
            assert sampling(request, prompt_tokens=10).max_tokens == 90

    def test_max_completion_tokens_goes_first(self) -> None:
        assert sampling(chat(max_tokens=5, max_completion_tokens=6)).max_tokens == 6
        assert sampling(chat(max_tokens=0, max_completion_tokens=6)).max_tokens == 6

    def test_is_that_of_each_prompt(self) -> None:
        request = completion(prompt=["a", "b"], ignore_eos=True)
        told = sampling_of_prompts(request, [10, 90])
        assert [params.max_tokens for params in told] == [16, 10]


class TestSeeds:
    def test_every_choice_has_one_of_its_own(self) -> None:
        seeded = sampling(chat(seed=INT64 - 2))
        seeds = [for_choice(seeded, index).seed for index in range(4)]
        assert seeds == [INT64 - 2, INT64 - 1, -INT64, -INT64 + 1]
        assert for_choice(sampling(chat(seed=0)), 1).seed == 1
        assert for_choice(sampling(chat()), 3).seed is None

    def test_minus_one_is_none(self) -> None:
        assert sampling(chat(seed=-1)).seed is None


class TestStopTokens:
    TOKEN = " the"

    def test_a_stop_string_that_is_one_token_is_for_the_engine_too(self) -> None:
        (id,) = TOKENIZER.encode(self.TOKEN).tolist()
        for body in ({}, {"include_stop_str_in_output": True}, {"min_tokens": 0}, {"ignore_eos": True}):
            assert sampling(chat(stop=[self.TOKEN, "zq zq"], stop_token_ids=[5, id], **body)).stop_token_ids == (5, id)
        assert sampling(chat(stop=self.TOKEN)).stop_token_ids == (id,)

    def test_but_not_where_the_engine_would_not_sample_it(self) -> None:
        assert sampling(chat(stop=self.TOKEN, min_tokens=1)).stop_token_ids == ()

    def test_nor_where_a_constraint_may_need_it_as_text(self) -> None:
        """xgrammar takes stop tokens for the end of the text: a JSON object with the stop "}" could not be closed."""
        constrained = chat(stop=self.TOKEN, stop_token_ids=[7], response_format={"type": "json_object"})
        assert sampling(constrained).stop_token_ids == (7,)

    def test_one_of_several_tokens_is_not(self) -> None:
        assert len(TOKENIZER.encode("zq zq")) > 1
        assert sampling(chat(stop="zq zq")).stop_token_ids == ()


class TestBadWords:
    def test_are_tokens_at_the_beginning_and_after_a_space(self) -> None:
        first, inside = (tuple(TOKENIZER.encode(text)) for text in ("the", " the"))
        assert len(first) == len(inside) == 1
        assert sampling(chat(bad_words=["the"])).bad_words == (first, inside)
        assert sampling(chat(bad_words=["  the", "the"])).bad_words == (first, inside, first, inside)

    def test_a_form_that_ends_elsewhere_does_not_count(self) -> None:
        word = next(
            word
            for word in ("!", "a", "de", "ing", "xyzzy", "Paris", "tokens", "1")
            if len(TOKENIZER.encode(word)) != len(TOKENIZER.encode(f" {word}"))
        )
        assert sampling(chat(bad_words=[word])).bad_words == (tuple(TOKENIZER.encode(word)),)


class TestLogprobsOfThePrompt:
    def test_are_as_many_as_asked_for(self) -> None:
        assert sampling(chat(prompt_logprobs=3)).prompt_logprobs == 3
        assert sampling(chat(prompt_logprobs=0)).prompt_logprobs == 0
        assert sampling(chat(prompt_logprobs=0, stream=True)).prompt_logprobs is None
        assert sampling(chat()).prompt_logprobs is None

    def test_come_with_an_echo(self) -> None:
        assert sampling(completion(echo=True)).prompt_logprobs is None
        for stream in (False, True):
            assert sampling(completion(echo=True, logprobs=2, stream=stream)).prompt_logprobs == 2
        assert sampling(completion(echo=True, logprobs=2, prompt_logprobs=5)).prompt_logprobs == 5
        assert sampling(chat(echo=True)).prompt_logprobs == 0
        assert sampling(chat(echo=True, logprobs=True, top_logprobs=4)).prompt_logprobs == 4
        assert sampling(chat(echo=True, stream=True)).prompt_logprobs is None
        assert sampling(chat(echo=True), terms(TOKENSPEED)).prompt_logprobs is None


def test_top_k_beyond_the_vocabulary_is_all_of_it() -> None:
    assert sampling(chat(top_k=10**12)).top_k == VOCABULARY


class TestRepeatedBytes:
    """The message of every choice repeats the prompt, lists of token ids, and the constraint."""

    LONG = terms(limits=Limits(vocab_size=VOCABULARY, max_model_len=None))

    @pytest.mark.parametrize(
        ("body", "each"),
        [
            ({}, 0),
            ({"allowed_token_ids": list(range(50)), "stop_token_ids": [1, 2]}, 4 * 52),
            ({"logit_bias": {"1": 1, "2": 1}}, 12 * 2),
            ({"bad_words": ["the"]}, 4 * 2),
            ({"regex": "é" * 500}, 1000),
            ({"guided_choice": ["é", "yes"]}, 5),
        ],
    )
    def test_so_many_and_no_more(self, body: dict[str, Any], each: int) -> None:
        request = completion(**body, n=128, max_tokens=1)
        most = (MAX_REPEATED_BYTES // 128 - each) // 4
        sampling(request, self.LONG, prompt_tokens=most)
        with pytest.raises(ApiError, match=f"the limit is {MAX_REPEATED_BYTES}") as caught:
            sampling(request, self.LONG, prompt_tokens=most + 1)
        assert (caught.value.status, caught.value.detail.param) == (400, "n")
        assert f"128 choices, each with {each} bytes" in caught.value.detail.message

    def test_prompts_of_one_request_count_together(self) -> None:
        tokens = [MAX_REPEATED_BYTES // 16] * 4
        request = completion(max_tokens=1)
        sampling_of_prompts(request, tokens, self.LONG)
        with pytest.raises(ApiError) as caught:
            sampling_of_prompts(request, [*tokens, 1], self.LONG)
        assert caught.value.detail.param == "prompt"

    def test_bad_words_count_as_what_they_become(self) -> None:
        words = ["é🎉ß" * 330 + str(i) for i in range(64)]
        sampling(chat(max_tokens=1, bad_words=words), self.LONG)
        assert refused(self.LONG, max_tokens=1, bad_words=words, n=128).detail.param == "n"


class TestPromptLogprobs:
    """One body holds them all, and nothing else happens while it is written."""

    LONG = terms(limits=Limits(vocab_size=VOCABULARY, max_model_len=None))

    @pytest.mark.parametrize(
        ("body", "each", "param"),
        [
            ({"prompt_logprobs": 0}, 1, "prompt_logprobs"),
            ({"prompt_logprobs": 15, "n": 4, "temperature": 1}, 64, "prompt_logprobs"),
            ({"echo": True, "logprobs": 3}, 4, "echo"),
            ({"echo": True, "logprobs": 3, "stream": True}, 4, "echo"),
        ],
    )
    def test_so_many_and_no_more(self, body: dict[str, Any], each: int, param: str) -> None:
        request = completion(**body, max_tokens=1)
        most = MAX_PROMPT_LOGPROBS // each
        assert sampling(request, self.LONG, prompt_tokens=most).prompt_logprobs is not None
        with pytest.raises(ApiError, match=f"the limit is {MAX_PROMPT_LOGPROBS}") as caught:
            sampling(request, self.LONG, prompt_tokens=most + 1)
        assert (caught.value.status, caught.value.detail.param) == (400, param)

    def test_prompts_of_one_request_count_together(self) -> None:
        tokens = [MAX_PROMPT_LOGPROBS // 4 + 1] * 4
        with pytest.raises(ApiError):
            sampling_of_prompts(completion(prompt_logprobs=0, max_tokens=1), tokens, self.LONG)
        sampling_of_prompts(completion(max_tokens=1), tokens, self.LONG)

    def test_what_is_explicit_goes_before_what_an_echo_brings(self) -> None:
        for stream in (False, True):
            asked = completion(echo=True, logprobs=2, prompt_logprobs=0, stream=stream)
            assert sampling(asked).prompt_logprobs == 0
            assert sampling(completion(echo=True, logprobs=2, stream=stream)).prompt_logprobs == 2
        assert sampling(completion(prompt_logprobs=0, stream=True)).prompt_logprobs is None
        assert sampling(chat(prompt_logprobs=0, stream=True)).prompt_logprobs is None


@pytest.mark.parametrize("forbidding", [{"allowed_token_ids": [2]}, {"bad_words": ["a"]}])
def test_no_token_is_forbidden_beside_a_constraint(forbidding: dict[str, Any]) -> None:
    """With nothing left to say an engine fails the request."""
    error = refused(**forbidding, guided_regex="a")
    assert error.detail.param == next(iter(forbidding))
