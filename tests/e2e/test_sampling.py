"""What takes a model: sampling, an end of its own, answers that must have a form."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.engines import Capability

STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about a fox."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["fox", "bear"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def text(client: openai.OpenAI, **parameters: Any) -> str:
    answer = client.chat.completions.create(**{"model": "model", "messages": STORY, "max_tokens": 96, **parameters})
    return answer.choices[0].message.content or ""


def check_person(content: str) -> None:
    person = json.loads(content)
    assert person.keys() == {"name", "age", "kind"}
    assert isinstance(person["name"], str)
    assert 0 <= person["age"] <= 150
    assert person["kind"] in ("fox", "bear")


@pytest.mark.needs(Capability.SAMPLING)
def test_a_turn_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="model", messages=[{"role": "user", "content": "Say only: yes."}], temperature=0, max_tokens=200
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content
    assert "<|" not in answer.choices[0].message.content


@pytest.mark.needs(Capability.SAMPLING)
def test_a_seed_repeats_itself(client: openai.OpenAI) -> None:
    def sampled(seed: int) -> str:
        return text(client, seed=seed, temperature=1.0, max_tokens=12)

    assert sampled(7) == sampled(7)
    assert len({sampled(seed) for seed in range(4)}) > 1
    greedy = {text(client, temperature=0, max_tokens=12, seed=seed) for seed in (None, 1)}
    assert len(greedy) == 1


@pytest.mark.needs(Capability.SAMPLING)
def test_several_choices_differ(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="model", messages=STORY, n=3, seed=1, temperature=1.0, max_tokens=12)
    assert len({choice.message.content for choice in answer.choices}) > 1


@pytest.mark.needs(Capability.SAMPLING)
def test_a_stop_string_ends_the_text(client: openai.OpenAI) -> None:
    whole = text(client, temperature=0, max_tokens=24)
    stop = whole[len(whole) // 2 :][:4]
    answer = client.chat.completions.create(
        model="model", messages=STORY, temperature=0, max_tokens=24, stop=[stop], stream=False
    )
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.needs(Capability.CONSTRAINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_yields_json_that_validates(client: openai.OpenAI, stream: bool) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    for temperature in (0.0, 1.0):
        parameters: dict[str, Any] = {"response_format": form, "temperature": temperature, "seed": 1}
        if stream:
            events = client.chat.completions.create(
                model="model", messages=STORY, max_tokens=96, stream=True, **parameters
            )
            check_person("".join(event.choices[0].delta.content or "" for event in events))
        else:
            check_person(text(client, **parameters))


@pytest.mark.needs(Capability.CONSTRAINTS)
def test_a_regular_expression_a_choice_and_a_grammar_are_obeyed(client: openai.OpenAI) -> None:
    number = text(client, extra_body={"structured_outputs": {"regex": r"\d{3}-\d{4}"}})
    assert re.fullmatch(r"\d{3}-\d{4}", number)
    assert text(client, extra_body={"structured_outputs": {"choice": ["a.b", "c (d)"]}}) in ("a.b", "c (d)")
    assert text(client, extra_body={"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}})[:1] == "x"


@pytest.mark.needs(Capability.CONSTRAINTS)
def test_a_constraint_that_cannot_be_honoured_is_an_error_that_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"structured_outputs\.regex"):
        text(client, extra_body={"structured_outputs": {"regex": "(?=a)b"}})
    # Whether a schema can be honoured is for the engine to say, where the gateway does not know how it does it.
    with pytest.raises((openai.BadRequestError, openai.InternalServerError), match="nonsense"):
        text(client, extra_body={"structured_outputs": {"json": {"type": "nonsense"}}})
