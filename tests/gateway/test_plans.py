"""What a request asks is worked out once for all that ask the same, and for nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.plans import Plans
from smg_fast.gateway.validation import AnyRequest

from .requests import TOKENIZER, chat, completion, terms


@pytest.fixture
def plans() -> Plans:
    return Plans(TOKENIZER, (0,))


def test_prompts_make_no_difference(plans: Plans) -> None:
    pairs: list[tuple[AnyRequest, AnyRequest]] = [
        (chat(stop="x"), chat(stop="x", messages=[{"role": "user", "content": "good morning"}])),
        (completion(prompt="a", top_p=0.5), completion(prompt=["b", "c"], top_p=0.5)),
        (chat(user="one", metadata={"a": 10**30}), chat(user="other", request_id="7")),
    ]
    for one, other in pairs:
        assert plans.plan(one, terms()) is plans.plan(other, terms())


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.5},
        {"temperature": 0},
        {"max_tokens": 7},
        {"seed": 1},
        {"stop": "x"},
        {"stop": ["x"]},
        {"logprobs": True},
        {"ignore_eos": True},
        {"skip_special_tokens": False},
        {"guided_regex": "a"},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"logit_bias": {"1": 1}},
    ],
    ids=str,
)
def test_every_parameter_makes_one(plans: Plans, body: dict[str, Any]) -> None:
    assert plans.plan(chat(**body), terms()) is not plans.plan(chat(), terms())
    assert plans.plan(chat(**body), terms()) is plans.plan(chat(**body), terms())


def test_endpoint_and_terms_make_one(plans: Plans) -> None:
    asked = plans.plan(chat(max_tokens=2), terms())
    limits = msgspec.structs.replace(terms().limits, max_model_len=50)
    assert plans.plan(completion(max_tokens=2), terms()) is not asked
    assert plans.plan(chat(max_tokens=2), terms(limits=limits)) is not asked


def test_refusals_are_repeated(plans: Plans) -> None:
    for _ in range(2):
        with pytest.raises(ApiError, match="temperature must be"):
            plans.plan(chat(temperature=3), terms())


def test_integers_beyond_any_bound_are_refused(plans: Plans) -> None:
    with pytest.raises(ApiError, match="seed must be"):
        plans.plan(chat(seed=10**30), terms())


def test_long_ones_are_not_kept(plans: Plans) -> None:
    long = chat(logit_bias={str(token): 1 for token in range(600)})
    assert plans.plan(long, terms()) is not plans.plan(long, terms())


def test_the_latest_are_kept(plans: Plans) -> None:
    first = plans.plan(chat(seed=0), terms())
    for seed in range(1, 256):
        plans.plan(chat(seed=seed), terms())
    assert plans.plan(chat(seed=0), terms()) is first
    second = plans.plan(chat(seed=1), terms())
    for seed in range(256, 511):
        plans.plan(chat(seed=seed), terms())
    assert plans.plan(chat(seed=1), terms()) is second
    assert plans.plan(chat(seed=0), terms()) is not first
