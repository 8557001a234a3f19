"""Both sides of every limit. Nothing is sent: what is refused here never reaches an engine."""

from __future__ import annotations

from typing import Any

import pytest

from smg_fast._codec import TokenIds
from smg_fast.engines import Capabilities
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.limits import MAX_GENERATIONS, MAX_TOKENS, Limits, SamplingDefaults
from smg_fast.gateway.validation import GivenPrompt, check_prompt, given_prompts

from .requests import LIMITS, TOKENSPEED, VLLM, VOCABULARY, chat, completion, refused, sampling, terms

UNKNOWN = Limits(vocab_size=VOCABULARY, max_model_len=None)
INT64 = 2**63
OUTSIDE = [-1, VOCABULARY, 10**30]


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 2.0], [-0.01, 2.01]),
        ("top_p", [2.0**-126, 1], [0, 1.01, -1, 2.0**-127, 1e-300]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("frequency_penalty", [-2, 2], [-2.01, 2.01]),
        ("presence_penalty", [-2, 2], [-2.01, 2.01]),
        ("repetition_penalty", [2.0**-126, 100.0, 3.4e38], [0, -1, 2.0**-127, 1e-300, 3.5e38, 1e300]),
        ("top_k", [-1, 0, 1, 10**6, INT64 - 1], [-2, INT64]),
        ("seed", [-INT64, -1, INT64 - 1], [-INT64 - 1, INT64]),
        ("priority", [-INT64, 0, INT64 - 1], [-INT64 - 1, INT64]),
        ("n", [1, 128], [0, 129, -1]),
        ("min_tokens", [0, 90], [-1]),
        ("max_tokens", [1, 100], [0, -5, 101, 10**30]),
        ("data_parallel_rank", [0, 1], [-1, 2, 10**30]),
        ("prompt_logprobs", [0, 20], [-1, 21, 10**30]),
        ("stop_token_ids", [[], [0, VOCABULARY - 1], list(range(256))], [*([id] for id in OUTSIDE), [5] * 257]),
        (
            "allowed_token_ids",
            [[0], [VOCABULARY - 1], [7] * 16384],
            [[], *([id] for id in OUTSIDE), [7] * 16385],
        ),
        (
            "logit_bias",
            [{}, {"0": -100, str(VOCABULARY - 1): 100}, {"5": 1e30}, {str(id): 1 for id in range(1024)}],
            [
                *({str(id): 1} for id in OUTSIDE),
                {"abc": 1},
                {"": 1},
                {"1.5": 1},
                {"5": 1, "05": 1},
                {"-0": 1},
                {" 5": 1},
                {"9" * 5000: 1},
                {str(id): 1 for id in range(1025)},
            ],
        ),
        (
            "bad_words",
            [[], ["a"], [f"word{i}" for i in range(64)], ["é" * 1024]],
            [[""], [" "], ["a", ""], [f"word{i}" for i in range(65)], ["a"] * 129, ["a" * 1025]],
        ),
        (
            "stop",
            ["a", ["a", "b", "c", "d"], [], ["é" * 1024] * 4],
            ["", ["a", ""], list("abcde"), "é" * 1025, ["a", "b" * 1025]],
        ),
        ("cache_salt", ["x", "é" * 128], ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b"]),
    ],
)
@pytest.mark.parametrize("model", [chat, completion])
def test_each_side_of_a_range(model: Any, name: str, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        sampling(model(**{"max_tokens": 90, name: value}))
    for value in outside:
        with pytest.raises(ApiError) as caught:
            sampling(model(**{name: value}))
        assert (caught.value.status, caught.value.detail.param) == (400, name), value


def test_a_refusal_tells_limit_and_value() -> None:
    for body, message in (
        ({"temperature": 2.5}, "temperature must be at least 0 and at most 2, got 2.5"),
        ({"top_k": -3}, "top_k must be 0 or -1 (all), or at least 1, got -3"),
        ({"n": 129}, "n must be at least 1 and at most 128, got 129"),
        ({"max_tokens": 101}, "max_tokens must be at most the model's context of 100 tokens, got 101"),
        ({"stop": ["a", "b" * 2000]}, "a string of stop can have at most 1024 characters, got 2000"),
        ({"stop_token_ids": [1] * 300}, "stop_token_ids can have at most 256 ids, got 300"),
        (
            {"repetition_penalty": 1e300},
            "repetition_penalty must be at least 1.17549e-38 and at most 3.40282e+38, got 1e+300",
        ),
        ({"data_parallel_rank": 2}, "data_parallel_rank must be 0 to 1, got 2"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be 0 to 20 with this engine, got 21"),
        (
            {"logit_bias": {"99999999": 1}},
            f"logit_bias: token id 99999999 is outside the vocabulary of {VOCABULARY} ids",
        ),
        ({"cache_salt": "x" * 129}, "cache_salt must have 1 to 128 characters, got 129"),
        ({"seed": INT64}, f"seed must be an integer of 64 bits, got {INT64}"),
    ):
        assert refused(**body).detail.message == message


class TestMaxTokens:
    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_is_within_the_context(self, name: str) -> None:
        assert sampling(chat(**{name: 90})).max_tokens == 90
        assert sampling(chat(**{name: 100})).max_tokens == 90
        for value in (101, 0):
            error = refused(**{name: value}).detail
            assert error.param == name
            assert str(value) in error.message

    def test_of_a_completion_is_0_only_with_echo(self) -> None:
        assert sampling(completion(max_tokens=0, echo=True)).max_tokens == 1
        assert refused(prompt="hi", max_tokens=0).detail.param == "max_tokens"
        assert refused(max_tokens=0, echo=True).detail.param == "max_tokens"

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_is_bounded_where_the_context_is_unknown(self, name: str) -> None:
        unknown = terms(limits=UNKNOWN)
        assert sampling(chat(**{name: MAX_TOKENS}), unknown).max_tokens == MAX_TOKENS
        error = refused(unknown, **{name: MAX_TOKENS + 1}).detail
        assert (error.param, error.message) == (name, f"{name} must be at most {MAX_TOKENS}, got {MAX_TOKENS + 1}")

    def test_is_needed_where_the_context_is_unknown(self) -> None:
        assert sampling(completion(), terms(limits=UNKNOWN)).max_tokens == 16
        assert "required" in refused(terms(limits=UNKNOWN)).detail.message

    def test_is_not_below_min_tokens(self) -> None:
        assert sampling(chat(min_tokens=5, max_tokens=5)).min_tokens == 5
        assert refused(min_tokens=6, max_tokens=5).detail.param == "min_tokens"
        assert sampling(chat(min_tokens=90)).min_tokens == 90
        assert refused(min_tokens=91).detail.param == "min_tokens"
        assert refused(min_tokens=91, max_tokens=100).detail.message == (
            "min_tokens must be at most max_tokens, 90, got 91"
        )


class TestPrompt:
    def test_length(self) -> None:
        check_prompt("prompt", TokenIds([1]), LIMITS)
        check_prompt("prompt", TokenIds([1] * 99), LIMITS)
        for length in (0, 100, 1000):
            with pytest.raises(ApiError) as caught:
                check_prompt("prompt", TokenIds([1] * length), LIMITS)
            assert (caught.value.status, caught.value.detail.param) == (400, "prompt")
        assert "1000 tokens" in caught.value.detail.message
        assert "100 tokens" in caught.value.detail.message

    def test_tokens_of_a_text_are_in_the_vocabulary(self) -> None:
        check_prompt("messages", TokenIds([0, VOCABULARY - 1, 1]), LIMITS)
        outside = f"token id {VOCABULARY} is outside the vocabulary of {VOCABULARY} ids"
        with pytest.raises(ApiError, match=outside) as caught:
            check_prompt("messages", TokenIds([0, VOCABULARY, 1]), LIMITS)
        assert (caught.value.status, caught.value.detail.param) == (400, "messages")

    def test_token_ids_are_in_the_vocabulary(self) -> None:
        last = VOCABULARY - 1
        assert given_prompts(completion(prompt=[0, last]), LIMITS) == [GivenPrompt("prompt", TokenIds([0, last]))]
        assert given_prompts(completion(prompt=[[0], [last]]), LIMITS) == [
            GivenPrompt("prompt[0]", TokenIds([0])),
            GivenPrompt("prompt[1]", TokenIds([last])),
        ]
        for prompt, param in (([1, last + 1], "prompt"), ([-1], "prompt"), ([[1], [1, 99999999]], "prompt[1]")):
            with pytest.raises(ApiError) as caught:
                given_prompts(completion(prompt=prompt), LIMITS)
            assert caught.value.detail.param == param

    def test_shapes(self) -> None:
        assert given_prompts(completion(prompt=""), LIMITS) == [GivenPrompt("prompt", "")]
        assert given_prompts(completion(prompt=["a", [1, 2]]), LIMITS) == [
            GivenPrompt("prompt[0]", "a"),
            GivenPrompt("prompt[1]", TokenIds([1, 2])),
        ]
        for prompt in ([], [1, "a"], [1, [2]]):
            with pytest.raises(ApiError) as caught:
                given_prompts(completion(prompt=prompt), LIMITS)
            assert caught.value.detail.param == "prompt"

    def test_choices_of_all_prompts(self) -> None:
        assert len(given_prompts(completion(prompt=["a"] * (MAX_GENERATIONS // 128), n=128), LIMITS)) == 8
        with pytest.raises(ApiError, match=str(MAX_GENERATIONS)):
            given_prompts(completion(prompt=["a"] * (MAX_GENERATIONS // 128 + 1), n=128), LIMITS)


class TestLogprobs:
    @pytest.mark.parametrize(("capabilities", "most"), [(VLLM, 20), (TOKENSPEED, 0)])
    def test_of_a_chat(self, capabilities: Capabilities, most: int) -> None:
        against = terms(capabilities)
        assert sampling(chat(logprobs=False), against).logprobs is None
        assert sampling(chat(logprobs=True, top_logprobs=0), against).logprobs == 0
        assert sampling(chat(logprobs=True, top_logprobs=most), against).logprobs == most
        for value in (-1, most + 1):
            assert refused(against, logprobs=True, top_logprobs=value).detail.param == "top_logprobs"

    def test_alternatives_need_logprobs(self) -> None:
        sampling(chat(top_logprobs=0))
        assert "logprobs to be true" in refused(top_logprobs=1).detail.message
        assert refused(top_logprobs=1, logprobs=False).detail.param == "top_logprobs"

    @pytest.mark.parametrize(("capabilities", "most"), [(VLLM, 20), (TOKENSPEED, 1)])
    def test_of_a_completion(self, capabilities: Capabilities, most: int) -> None:
        against = terms(capabilities)
        assert sampling(completion(), against).logprobs is None
        assert sampling(completion(logprobs=0), against).logprobs == 0
        assert sampling(completion(logprobs=most), against).logprobs == min(most, capabilities.max_top_logprobs)
        for value in (-1, most + 1):
            assert refused(against, prompt="hi", logprobs=value).detail.param == "logprobs"

    def test_of_a_prompt_are_not_for_streams(self) -> None:
        sampling(chat(stream=True, prompt_logprobs=0))
        error = refused(stream=True, prompt_logprobs=1).detail
        assert (error.param, error.message) == ("prompt_logprobs", "prompt_logprobs must be 0 in a stream, got 1")

    def test_of_an_echo_are_those_of_the_prompt(self) -> None:
        sampling(completion(echo=True, logprobs=1))
        sampling(completion(echo=True), terms(TOKENSPEED))
        sampling(chat(echo=True, logprobs=True), terms(TOKENSPEED))
        assert refused(terms(TOKENSPEED), prompt="hi", echo=True, logprobs=1).detail.param == "echo"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"5": 1}),
        ("allowed_token_ids", [5]),
        ("bad_words", ["x"]),
        ("cache_salt", "x"),
        ("priority", 1),
        ("prompt_logprobs", 0),
    ],
)
def test_what_a_family_has_no_room_for_is_refused(name: str, value: Any) -> None:
    sampling(chat(**{name: value}))
    error = refused(terms(TOKENSPEED), **{name: value}).detail
    assert (error.param, error.message) == (name, f"{name} is not supported by the engine")


def test_what_asks_for_nothing_needs_no_room() -> None:
    bodies: list[dict[str, Any]] = [{"logit_bias": {}}, {"bad_words": []}, {"priority": 0}, {"data_parallel_rank": 0}]
    for body in bodies:
        assert sampling(chat(**body), terms(TOKENSPEED)) == sampling(chat(), terms(TOKENSPEED))


def test_tokenspeed_takes_top_k_to_127() -> None:
    against = terms(TOKENSPEED)
    for value in (-1, 0, 1, 127):
        assert sampling(chat(top_k=value), against).top_k == value
    assert refused(against, top_k=128).detail.message == "top_k must be 0 or -1 (all), or 1 to 127, got 128"


def test_one_engine_is_rank_0() -> None:
    alone = terms(limits=Limits(VOCABULARY, 100))
    sampling(chat(data_parallel_rank=0), alone)
    assert refused(alone, data_parallel_rank=1).detail.param == "data_parallel_rank"


def test_greedy_choices_would_all_be_the_same() -> None:
    sampling(chat(n=1, temperature=0))
    sampling(chat(n=2, temperature=0.001))
    sampling(chat(n=2))
    assert refused(n=2, temperature=0).detail.param == "n"
    greedy = terms(defaults=SamplingDefaults(temperature=0))
    sampling(chat(n=2, temperature=1), greedy)
    assert refused(greedy, n=2).detail.param == "n"


def test_stream_options_are_for_streams() -> None:
    sampling(chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    sampling(chat(stream=True, stream_options={"include_obfuscation": False}))
    sampling(chat(stream_options=None))
    sampling(chat(stream_options={}))
    assert refused(stream_options={"include_usage": True}).detail.param == "stream_options"
    assert refused(stream=True, stream_options={"include_obfuscation": True}).detail.param == (
        "stream_options.include_obfuscation"
    )


def test_best_of_is_n() -> None:
    sampling(completion(best_of=1))
    sampling(completion(best_of=3, n=3))
    assert refused(prompt="hi", best_of=2).detail.param == "best_of"
    assert refused(prompt="hi", best_of=1, n=2).detail.param == "best_of"


def test_a_message_is_continued_or_another_one_begun() -> None:
    sampling(chat(continue_final_message=True, add_generation_prompt=False))
    sampling(chat(continue_final_message=False, add_generation_prompt=True))
    for body in ({}, {"add_generation_prompt": True}):
        assert refused(continue_final_message=True, **body).detail.param == "continue_final_message"


CHAT_ONLY = {
    "tools": ([], [{"type": "function", "function": {"name": "f"}}]),
    "tool_choice": ("auto", "required"),
    "functions": ([], [{"name": "f"}]),
    "function_call": ("none", {"name": "f"}),
    "modalities": (["text"], ["text", "audio"]),
    "audio": (None, {"voice": "x"}),
    "reasoning_effort": (None, "high"),
    "chat_template": (None, "{{ messages }}"),
    "prediction": (None, {"type": "content"}),
    "web_search_options": (None, {}),
    "include_reasoning": (True, False),
    "return_prompt_text": (False, True),
}
COMPLETION_ONLY = {"suffix": ("", "end"), "prompt_embeds": (None, "x")}
BOTH = {
    "use_beam_search": (False, 1),
    "truncate_prompt_tokens": (None, 5),
    "return_token_ids": (False, True),
    "repetition_detection": (None, {"max_pattern_size": 2}),
    "routed_experts_prompt_start": (0, False),
    "store": (False, True),
    "service_tier": ("auto", "flex"),
    "thinking_token_budget": (-1, 5),
}


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(chat, CHAT_ONLY | BOTH), (completion, COMPLETION_ONLY | BOTH)],
    ids=["chat", "completion"],
)
def test_what_cannot_be_honoured_is_refused_when_it_is_asked_for(model: Any, parameters: dict[str, Any]) -> None:
    for name, (nothing, something) in parameters.items():
        assert sampling(model(**{name: nothing})) == sampling(model()), name
        assert sampling(model(**{name: None})) == sampling(model()), name
        with pytest.raises(ApiError) as caught:
            sampling(model(**{name: something}))
        assert (caught.value.status, caught.value.detail.param) == (400, name)
        assert name in caught.value.detail.message


def test_a_refusal_of_tools_says_so() -> None:
    for name in ("tools", "functions"):
        assert refused(**{name: [{}]}).detail.message == f"{name}: tool calls are not supported"
    for name in ("tool_choice", "function_call"):
        assert refused(**{name: {"name": "f"}}).detail.message == f"{name}: tool calls are not supported"


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("whitespace_pattern", None, " "),
        ("disable_any_whitespace", False, True),
        ("disable_additional_properties", False, True),
        ("disable_fallback", True, "yes"),
    ],
)
def test_how_a_constraint_is_enforced_is_not_for_requests_to_say(name: str, nothing: Any, something: Any) -> None:
    given = {"json_object": True}
    assert sampling(chat(structured_outputs={**given, name: nothing})) == sampling(chat(structured_outputs=given))
    error = refused(structured_outputs={**given, name: something}).detail
    path = f"structured_outputs.{name}"
    assert (error.param, error.message) == (path, f"{path} is not supported")


def test_labels_and_unknown_names_have_no_effect() -> None:
    labelled = chat(user="me", metadata={"a": "b"}, request_id="r", safety_identifier="s", prompt_cache_key="k")
    assert sampling(labelled) == sampling(chat(frobnicate=True)) == sampling(chat())
