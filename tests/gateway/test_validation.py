"""Both sides of every limit. Nothing is sent: what is refused here never reaches an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from smg_fast._codec import TokenIds
from smg_fast.engines import Constraint, SamplingParams, TokenSpeed, family
from smg_fast.gateway.constraints import MAX_CONSTRAINT_SIZE
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.requests import ChatCompletionRequest, CompletionRequest, decode
from smg_fast.gateway.validation import (
    MAX_GENERATIONS,
    MAX_TOKENS,
    Limits,
    check,
    check_prompt,
    for_choice,
    given_prompts,
    sampling_params,
)

LIMITS = Limits(vocab_size=1000, max_model_len=100)
UNKNOWN = Limits(vocab_size=1000, max_model_len=None)
CAPABILITIES = family("tokenspeed").capabilities
INT64 = 2**63


def chat(**body: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    return decode(msgspec.json.Decoder(ChatCompletionRequest), msgspec.json.encode(body))


def completion(**body: Any) -> CompletionRequest:
    return decode(msgspec.json.Decoder(CompletionRequest), msgspec.json.encode({"prompt": "hi", **body}))


def sampling(
    request: ChatCompletionRequest | CompletionRequest, prompt_tokens: int = 10, limits: Limits = LIMITS
) -> SamplingParams:
    check(request, CAPABILITIES, limits)
    (params,) = sampling_params(request, [prompt_tokens], limits)
    return params


def refused(**body: Any) -> ApiError:
    model = completion if "prompt" in body else chat
    with pytest.raises(ApiError) as caught:
        sampling(model(**body))
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 2.0], [-0.01, 2.01]),
        ("top_p", [2.0**-126, 1], [0, 1.01, -1, 2.0**-127, 1e-300]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("frequency_penalty", [-2, 2], [-2.01, 2.01]),
        ("presence_penalty", [-2, 2], [-2.01, 2.01]),
        ("repetition_penalty", [2.0**-126, 100.0, 3.4e38], [0, -1, 2.0**-127, 1e-300, 3.5e38, 1e300]),
        ("top_k", [-1, 0, 1, 127], [-2, 128]),
        ("seed", [-INT64, INT64 - 1], [-INT64 - 1, INT64]),
        ("n", [1, 128], [0, 129, -1]),
        ("min_tokens", [0, 90], [-1]),
        ("max_tokens", [1, 90], [0, -5, 101, 10**30]),
        ("stop_token_ids", [[], [0, 999], list(range(256))], [[-1], [1000], [10**30], list(range(257)), [5] * 257]),
        (
            "stop",
            ["a", ["a", "b", "c", "d"], [], ["é" * 1024] * 4],
            ["", ["a", ""], list("abcde"), "é" * 1025, ["a", "b" * 1025]],
        ),
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
    assert refused(temperature=2.5).detail.message == "temperature must be at least 0 and at most 2, got 2.5"
    assert refused(top_k=500).detail.message == "top_k must be 0 or -1 (all), or 1 to 127, got 500"
    assert refused(n=129).detail.message == "n must be at least 1 and at most 128, got 129"
    assert "100" in refused(max_tokens=101).detail.message
    assert refused(stop=["a", "b" * 2000]).detail.message == (
        "a string of stop can have at most 1024 characters, got 2000"
    )
    assert refused(stop_token_ids=[1] * 300).detail.message == "stop_token_ids can have at most 256 ids, got 300"
    assert refused(repetition_penalty=1e300).detail.message == (
        "repetition_penalty must be at least 1.17549e-38 and at most 3.40282e+38, got 1e+300"
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
        "skip_special_tokens": False,
    }
    expected = SamplingParams(**given, stop_token_ids=(5, 6), logprobs=True)
    assert sampling(chat(**given, stop_token_ids=[5, 6], logprobs=True)) == expected
    assert sampling(completion(**given, stop_token_ids=[5, 6], logprobs=0)) == expected


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "n", "stop"])
def test_null_is_not_given(name: str) -> None:
    assert sampling(chat(**{name: None})) == sampling(chat())


class TestMaxTokens:
    def test_of_a_chat_is_what_the_context_leaves(self) -> None:
        assert sampling(chat(), prompt_tokens=10).max_tokens == 90
        assert sampling(chat(), prompt_tokens=99).max_tokens == 1

    def test_of_a_completion_is_16_or_what_the_context_leaves(self) -> None:
        assert sampling(completion(), prompt_tokens=10).max_tokens == 16
        assert sampling(completion(), prompt_tokens=90).max_tokens == 10

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_fits_into_the_context_beside_the_prompt(self, name: str) -> None:
        assert sampling(chat(**{name: 90})).max_tokens == 90
        error = refused(**{name: 91})
        assert error.detail.param == name
        for number in ("100", "10", "90", "91"):
            assert number in error.detail.message

    def test_max_completion_tokens_goes_first(self) -> None:
        assert sampling(chat(max_tokens=5, max_completion_tokens=6)).max_tokens == 6

    def test_is_needed_where_the_context_is_unknown(self) -> None:
        assert sampling(chat(max_tokens=10**6), limits=UNKNOWN).max_tokens == 10**6
        assert sampling(completion(), limits=UNKNOWN).max_tokens == 16
        with pytest.raises(ApiError, match="required"):
            sampling(chat(), limits=UNKNOWN)

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_is_bounded_where_the_context_is_unknown(self, name: str) -> None:
        assert sampling(chat(**{name: MAX_TOKENS}), limits=UNKNOWN).max_tokens == MAX_TOKENS
        with pytest.raises(ApiError, match=f"{name} must be at most {MAX_TOKENS}, got {MAX_TOKENS + 1}") as caught:
            sampling(chat(**{name: MAX_TOKENS + 1}), limits=UNKNOWN)
        assert (caught.value.status, caught.value.detail.param) == (400, name)

    def test_is_that_of_each_prompt(self) -> None:
        request = completion(prompt=["a", "b"], ignore_eos=True)
        assert [params.max_tokens for params in sampling_params(request, [10, 90], LIMITS)] == [16, 10]

    def test_is_not_below_min_tokens(self) -> None:
        assert sampling(chat(min_tokens=5, max_tokens=5)).min_tokens == 5
        assert refused(min_tokens=6, max_tokens=5).detail.param == "min_tokens"
        assert refused(prompt="hi", min_tokens=17).detail.param == "min_tokens"


class TestPrompts:
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
        check_prompt("messages", TokenIds([0, 999, 1]), LIMITS)
        with pytest.raises(ApiError, match="token id 1000 is outside the vocabulary of 1000 ids") as caught:
            check_prompt("messages", TokenIds([0, 1000, 1]), LIMITS)
        assert (caught.value.status, caught.value.detail.param) == (400, "messages")

    def test_token_ids_are_in_the_vocabulary(self) -> None:
        assert given_prompts(completion(prompt=[0, 999]), LIMITS) == [TokenIds([0, 999])]
        assert given_prompts(completion(prompt=[[0], [999]]), LIMITS) == [TokenIds([0]), TokenIds([999])]
        for prompt, param in (([1, 1000], "prompt"), ([-1], "prompt"), ([[1], [1, 99999999]], "prompt[1]")):
            with pytest.raises(ApiError) as caught:
                given_prompts(completion(prompt=prompt), LIMITS)
            assert caught.value.detail.param == param

    def test_shapes(self) -> None:
        assert given_prompts(completion(prompt=""), LIMITS) == [""]
        assert given_prompts(completion(prompt=["a", [1, 2]]), LIMITS) == ["a", TokenIds([1, 2])]
        for prompt in ([], [1, "a"], [1, [2]]):
            with pytest.raises(ApiError) as caught:
                given_prompts(completion(prompt=prompt), LIMITS)
            assert caught.value.detail.param == "prompt"

    def test_choices_of_all_prompts(self) -> None:
        assert len(given_prompts(completion(prompt=["a"] * (MAX_GENERATIONS // 128), n=128), LIMITS)) == 8
        with pytest.raises(ApiError, match=str(MAX_GENERATIONS)):
            given_prompts(completion(prompt=["a"] * (MAX_GENERATIONS // 128 + 1), n=128), LIMITS)


class TestLogprobs:
    def test_of_a_chat(self) -> None:
        assert not sampling(chat(logprobs=False)).logprobs
        assert sampling(chat(logprobs=True, top_logprobs=0)).logprobs
        assert refused(logprobs=True, top_logprobs=1).detail.param == "top_logprobs"
        assert refused(logprobs=True, top_logprobs=-1).detail.param == "top_logprobs"
        assert "logprobs to be true" in refused(top_logprobs=1).detail.message

    def test_of_a_completion(self) -> None:
        assert not sampling(completion()).logprobs
        assert sampling(completion(logprobs=0)).logprobs
        assert sampling(completion(logprobs=1)).logprobs
        assert refused(prompt="hi", logprobs=2).detail.param == "logprobs"
        assert refused(prompt="hi", logprobs=-1).detail.param == "logprobs"


def test_every_choice_has_a_seed_of_its_own() -> None:
    seeded = sampling(chat(seed=INT64 - 2))
    seeds = [for_choice(seeded, index).seed for index in range(4)]
    assert seeds == [INT64 - 2, INT64 - 1, -INT64, -INT64 + 1]
    assert for_choice(sampling(chat()), 3).seed is None


def test_stream_options_are_for_streams() -> None:
    sampling(chat(stream=True, stream_options={"include_usage": True}))
    sampling(chat(stream=True, stream_options={"include_obfuscation": False}))
    sampling(chat(stream_options=None))
    assert refused(stream_options={"include_usage": True}).detail.param == "stream_options"
    assert refused(stream=True, stream_options={"continuous_usage_stats": True}).detail.param == (
        "stream_options.continuous_usage_stats"
    )


def test_best_of_is_n() -> None:
    sampling(completion(best_of=1))
    sampling(completion(best_of=3, n=3))
    assert refused(prompt="hi", best_of=2).detail.param == "best_of"
    assert refused(prompt="hi", best_of=1, n=2).detail.param == "best_of"


CHAT_ONLY = {
    "tools": ([], [{"type": "function", "function": {"name": "f"}}]),
    "tool_choice": ("auto", "required"),
    "functions": ([], [{"name": "f"}]),
    "function_call": ("none", {"name": "f"}),
    "modalities": (["text"], ["text", "audio"]),
    "audio": (None, {"voice": "x"}),
    "continue_final_message": (False, True),
    "reasoning_effort": (None, "high"),
    "chat_template": (None, "{{ messages }}"),
    "documents": ([], [{"text": "x"}]),
    "prediction": (None, {"type": "content"}),
    "web_search_options": (None, {}),
    "include_reasoning": (True, False),
}
COMPLETION_ONLY = {"suffix": ("", "end"), "prompt_embeds": (None, "x")}
BOTH = {
    "echo": (False, True),
    "logit_bias": ({}, {"5": -100}),
    "prompt_logprobs": (None, 0),
    "use_beam_search": (False, True),
    "allowed_token_ids": (None, [1]),
    "bad_words": ([], ["x"]),
    "truncate_prompt_tokens": (None, 5),
    "return_token_ids": (False, True),
    "priority": (0, 1),
    "store": (False, True),
    "service_tier": ("auto", "flex"),
    "data_parallel_rank": (0, 1),
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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
CONSTRAINTS: list[tuple[dict[str, Any], Constraint]] = [
    ({"response_format": {"type": "json_object"}}, Constraint("json_schema", '{"type":"object"}')),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        Constraint("json_schema", SCHEMA_TEXT),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", SCHEMA_TEXT)),
    ({"structured_outputs": {"json": SCHEMA_TEXT}}, Constraint("json_schema", SCHEMA_TEXT)),
    ({"structured_outputs": {"json_object": True}}, Constraint("json_schema", '{"type":"object"}')),
    ({"structured_outputs": {"regex": "a|b"}}, Constraint("regex", "a|b")),
    ({"structured_outputs": {"choice": ["a.b", "c"]}}, Constraint("regex", r"a\.b|c")),
    ({"structured_outputs": {"grammar": 'root ::= "x"'}}, Constraint("grammar", 'root ::= "x"')),
    ({"structured_outputs": {"structural_tag": {"a": 1}}}, Constraint("structural_tag", '{"a":1}')),
    ({"guided_json": SCHEMA}, Constraint("json_schema", SCHEMA_TEXT)),
    ({"guided_regex": "a"}, Constraint("regex", "a")),
    ({"guided_choice": ["yes", "no"]}, Constraint("regex", "yes|no")),
    ({"guided_grammar": 'root ::= "x"'}, Constraint("grammar", 'root ::= "x"')),
    ({"json_schema": SCHEMA_TEXT}, Constraint("json_schema", SCHEMA_TEXT)),
    ({"regex": "a"}, Constraint("regex", "a")),
    ({"ebnf": 'root ::= "x"'}, Constraint("grammar", 'root ::= "x"')),
    ({"structural_tag": "{}"}, Constraint("structural_tag", "{}")),
]


@pytest.mark.parametrize("model", [chat, completion])
@pytest.mark.parametrize(("body", "expected"), CONSTRAINTS, ids=[str(body) for body, _ in CONSTRAINTS])
def test_a_constraint_has_many_names(model: Any, body: dict[str, Any], expected: Constraint) -> None:
    assert sampling(model(**body)).constraint == expected


def test_no_constraint_is_none() -> None:
    for body in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json_object": False}}):
        assert sampling(chat(**body)).constraint is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "no"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_json": '{"title": "\\ud800"}'}, "guided_json"),
        ({"guided_json": '{"minimum": NaN}'}, "guided_json"),
        ({"guided_json": '{"a":' * 5000}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_json": 5}, "guided_json"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ],
    ids=str,
)
def test_a_wrong_constraint_is_refused(body: dict[str, Any], param: str) -> None:
    assert refused(**body).detail.param == param


@pytest.mark.parametrize(
    ("name", "of_size"),
    [
        ("regex", lambda size: "é" * (size // 2) + "a" * (size % 2)),
        ("guided_json", lambda size: {"a": "x" * (size - 8)}),
        ("guided_choice", lambda size: ["a", "b" * (size - 2)]),
        ("structural_tag", lambda size: "x" * size),
    ],
)
def test_size_of_a_constraint(name: str, of_size: Callable[[int], Any]) -> None:
    assert sampling(chat(**{name: of_size(MAX_CONSTRAINT_SIZE)})).constraint
    error = refused(**{name: of_size(MAX_CONSTRAINT_SIZE + 1)}).detail
    assert (error.param, error.message) == (name, f"{name} can have at most 131072 bytes, got 131073")


@pytest.mark.parametrize("name", ["guided_json", "structural_tag"])
def test_a_constraint_may_be_nested_as_deeply_as_a_body_can_be_read(name: str) -> None:
    """Nothing between what is written on and what the body's reader refuses is an internal error."""
    seen = set()
    for depth in range(850, 1000):
        value = '{"a":' * depth + "1" + "}" * depth
        body = f'{{"messages":[],"{name}":{value}}}'
        try:
            sampling(decode(msgspec.json.Decoder(ChatCompletionRequest), body.encode()))
            seen.add("fine")
        except ApiError as error:
            seen.add(error.detail.param or "the body")
    assert seen == {"fine", name, "the body"}


def test_a_constraint_that_the_engine_does_not_have_is_refused() -> None:
    request = chat(response_format={"type": "json_object"})
    with pytest.raises(ApiError) as caught:
        check(request, TokenSpeed(form="tuple").capabilities, LIMITS)
    assert (caught.value.status, caught.value.detail.param) == (400, "response_format")


def test_labels_and_unknown_names_have_no_effect() -> None:
    assert sampling(chat(user="me", metadata={"a": "b"}, frobnicate=True)) == sampling(chat())
