"""What an engine expects of its frontend: every rule, on both sides of its limit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from smg_fast.embedded.simulator.rules import Limits, Runtime, broken_rule
from smg_fast.embedded.wire import Constraint, EngineRequest, Sampling

LIMITS = Limits(max_model_len=100, vocab_size=50, max_logprobs=5, engine_index=1)
BOTH: tuple[Runtime, ...] = ("tokenspeed", "vllm")
SEED = 1 << 63


def request(runtime: Runtime, **changes: Any) -> EngineRequest:
    """A request that breaks no rule, but for these changes. Those of sampling are told by their names."""
    sampling: dict[str, Any] = {"max_new_tokens": 10}
    whole: dict[str, Any] = {"prompt_ids": [1, 2]}
    if runtime == "vllm":
        sampling |= {"top_k": 0, "backend": "guidance"}
        whole |= {"eos_token_ids": (7,), "all_stop_token_ids": (7,)}
    for name, value in changes.items():
        (sampling if name in Sampling.__struct_fields__ else whole)[name] = value
    return EngineRequest(rid="r", sampling=Sampling(**sampling), **whole)


@pytest.mark.parametrize("runtime", BOTH)
@pytest.mark.parametrize(
    ("good", "bad", "clue"),
    [
        ({"prompt_ids": [1] * 99}, {"prompt_ids": [1] * 100}, "a prompt of 100 tokens where 1 to 99 fit"),
        ({"prompt_ids": [1]}, {"prompt_ids": []}, "a prompt of 0 tokens"),
        ({"max_new_tokens": 1}, {"max_new_tokens": 0}, "max_tokens = 0"),
        ({"min_new_tokens": 0}, {"min_new_tokens": -1}, "min_tokens = -1"),
        (
            {"min_new_tokens": 10, "all_stop_token_ids": (7,)},
            {"min_new_tokens": 11},
            "min_tokens = 11 where max_tokens = 10",
        ),
        ({"n": 1}, {"n": 2}, "n = 2"),
        ({"temperature": 2.0}, {"temperature": 2.1}, "temperature = 2.1"),
        ({"temperature": 0.0}, {"temperature": -0.1}, "temperature"),
        ({}, {"temperature": math.nan}, "temperature = nan"),
        ({}, {"temperature": math.inf}, "temperature = inf"),
        ({"top_p": 1.0}, {"top_p": 1.01}, "top_p"),
        ({"top_p": 1e-9}, {"top_p": 0.0}, "top_p"),
        ({"min_p": 1.0}, {"min_p": 1.1}, "min_p"),
        ({"min_p": 0.0}, {"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.0}, {"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.0}, {"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 1e-9}, {"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e9}, {"repetition_penalty": math.inf}, "repetition_penalty"),
        ({"seed": SEED - 1}, {"seed": SEED}, "seed"),
        ({"seed": -SEED}, {"seed": -SEED - 1}, "seed"),
        ({"prompt_ids": [49]}, {"prompt_ids": [50]}, "prompt: token id 50 where 0 to 49 exist"),
        ({"prompt_ids": [0]}, {"prompt_ids": [-1]}, "prompt"),
        ({"stop_token_ids": (49,)}, {"stop_token_ids": (1, 50)}, "stop_token_ids"),
        ({}, {"constraints": (Constraint(kind="regex", value="a"),) * 2}, "2 constraints"),
        ({}, {"constraints": (Constraint(kind="json", value="{"),)}, "json: "),
        ({}, {"constraints": (Constraint(kind="structural_tag", value="x"),)}, "structural_tag: "),
        ({}, {"constraints": (Constraint(kind="regex", value="("),)}, "regex: "),
        ({}, {"constraints": (Constraint(kind="grammar", value=""),)}, "grammar: nothing"),
        ({}, {"constraints": (Constraint(kind="choice", value=()),)}, "choice: nothing"),
        ({"constraints": (Constraint(kind="regex", value=""),)}, {"constraints": (Constraint(kind="json"),)}, "json: "),
    ],
)
def test_rules_of_both(runtime: Runtime, good: dict[str, Any], bad: dict[str, Any], clue: str) -> None:
    assert broken_rule(request(runtime, **good), runtime, LIMITS) is None
    broken = broken_rule(request(runtime, **bad), runtime, LIMITS)
    assert broken is not None
    assert clue in broken


@pytest.mark.parametrize(
    ("good", "bad", "clue"),
    [
        ({"max_new_tokens": 100}, {"max_new_tokens": 101}, "max_tokens = 101 where 100 is the most"),
        ({}, {"max_new_tokens": None}, "max_tokens = None"),
        ({"top_k": -1}, {"top_k": -2}, "top_k = -2"),
        ({"top_k": 1 << 40}, {}, ""),
        ({"top_logprobs": 5}, {"top_logprobs": 6}, "logprobs = 6 where 5 is the most"),
        ({"top_logprobs": 0}, {"top_logprobs": -1}, "logprobs = -1"),
        (
            {"prompt_logprobs": 5, "skip_prefix_cache": True},
            {"prompt_logprobs": 6, "skip_prefix_cache": True},
            "prompt_logprobs = 6",
        ),
        ({"skip_prefix_cache": True}, {"prompt_logprobs": 0}, "prefix cache"),
        ({"logit_bias": {49: -100.0}}, {"logit_bias": {50: 1.0}}, "logit_bias: token id 50"),
        ({"logit_bias": {1: 1e30}}, {"logit_bias": {1: math.nan}}, "not finite"),
        ({"allowed_token_ids": (49,)}, {"allowed_token_ids": (50,)}, "allowed_token_ids: token id 50"),
        ({"allowed_token_ids": None}, {"allowed_token_ids": ()}, "allowed_token_ids: none"),
        ({"bad_words": ((1, 49),)}, {"bad_words": ((1, 50),)}, "bad_words: token id 50"),
        ({"bad_words": ()}, {"bad_words": ((),)}, "bad_words: one without a token"),
        (
            {"constraints": (Constraint(kind="json_object"),)},
            {"constraints": (Constraint(kind="json_object"),), "backend": None},
            "json_object: no _backend",
        ),
        ({"backend": None}, {}, ""),
        ({"constraints": (Constraint(kind="regex", value=r"\p{L}+\PN"),)}, {}, ""),
        ({"constraints": (Constraint(kind="choice", value=("a", "b")),)}, {}, ""),
        (
            {"eos_token_ids": (49,), "all_stop_token_ids": (49,)},
            {"eos_token_ids": (50,), "all_stop_token_ids": (50,)},
            "_eos_token_id: token id 50",
        ),
        ({}, {"all_stop_token_ids": (7, 50)}, "_all_stop_token_ids: token id 50"),
        ({"all_stop_token_ids": (7, 8)}, {"all_stop_token_ids": ()}, "_all_stop_token_ids = [] where [7] are stops"),
        (
            {"min_new_tokens": 1, "stop_token_ids": (3,), "all_stop_token_ids": (3, 7)},
            {"min_new_tokens": 1, "stop_token_ids": (3,)},
            "_all_stop_token_ids = [7] where [3, 7] are stops",
        ),
        ({"ignore_eos": True, "eos_token_ids": ()}, {"ignore_eos": True}, "ignore_eos"),
        ({"delta": True}, {"delta": False}, "output_kind"),
        ({"data_parallel_rank": 1}, {"data_parallel_rank": 0}, "data_parallel_rank = 0 at the engine 1"),
    ],
)
def test_rules_of_vllm(good: dict[str, Any], bad: dict[str, Any], clue: str) -> None:
    assert broken_rule(request("vllm", **good), "vllm", LIMITS) is None
    if bad:
        broken = broken_rule(request("vllm", **bad), "vllm", LIMITS)
        assert broken is not None
        assert clue in broken


@pytest.mark.parametrize(
    ("good", "bad", "clue"),
    [
        ({"top_k": 127}, {"top_k": 128}, "top_k = 128"),
        ({"top_k": 1 << 30}, {"top_k": (1 << 30) + 1}, "top_k"),
        ({"top_k": 1}, {"top_k": 0}, "top_k = 0"),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}, "logprobs"),
        ({}, {"prompt_logprobs": 0}, "logprobs"),
        ({"logit_bias": {}}, {"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"max_new_tokens": None}, {}, ""),
        ({"max_new_tokens": 1000}, {}, ""),
    ],
)
def test_rules_of_tokenspeed(good: dict[str, Any], bad: dict[str, Any], clue: str) -> None:
    assert broken_rule(request("tokenspeed", **good), "tokenspeed", LIMITS) is None
    if bad:
        broken = broken_rule(request("tokenspeed", **bad), "tokenspeed", LIMITS)
        assert broken is not None
        assert clue in broken
