"""Requests as clients write them, checked without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import Capabilities, Constraint, SamplingParams, family
from smg_fast.gateway.constraints import constraint_of
from smg_fast.gateway.decoding import decode
from smg_fast.gateway.errors import ApiError
from smg_fast.gateway.limits import Limits, SamplingDefaults, Terms
from smg_fast.gateway.requests import ChatCompletionRequest, CompletionRequest
from smg_fast.gateway.sampling import for_prompts, sampling_params
from smg_fast.gateway.validation import AnyRequest, check

TOKENIZER = Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))
VOCABULARY = TOKENIZER.vocab_size
LIMITS = Limits(vocab_size=VOCABULARY, max_model_len=100, engine_count=2)

VLLM = family("vllm").capabilities
TOKENSPEED = family("tokenspeed").capabilities


def terms(
    capabilities: Capabilities = VLLM, limits: Limits = LIMITS, defaults: SamplingDefaults | None = None
) -> Terms:
    return Terms(capabilities, limits, defaults or SamplingDefaults())


def chat(**body: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    return decode(msgspec.json.Decoder(ChatCompletionRequest), msgspec.json.encode(body))


def completion(**body: Any) -> CompletionRequest:
    return decode(msgspec.json.Decoder(CompletionRequest), msgspec.json.encode({"prompt": "hi", **body}))


def sampling(request: AnyRequest, checked_with: Terms | None = None, *, prompt_tokens: int = 10) -> SamplingParams:
    """What the engine is told of a request."""
    (params,) = sampling_of_prompts(request, [prompt_tokens], checked_with)
    return params


def sampling_of_prompts(
    request: AnyRequest, prompt_tokens: Sequence[int], checked_with: Terms | None = None
) -> list[SamplingParams]:
    """The same for each of several prompts."""
    against = checked_with or terms()
    check(request, against)
    named = constraint_of(request, against.capabilities)
    constraint = None if named is None else named.constraint
    return for_prompts(sampling_params(request, against, TOKENIZER, constraint), request, prompt_tokens, against)


def constraint(request: AnyRequest, checked_with: Terms | None = None) -> Constraint | None:
    return sampling(request, checked_with).constraint


def refused(checked_with: Terms | None = None, /, **body: Any) -> ApiError:
    """The refusal of a completion, if there is a ``prompt``, else of a chat."""
    model = completion if "prompt" in body else chat
    with pytest.raises(ApiError) as caught:
        sampling(model(**body), checked_with)
    assert caught.value.status == 400
    return caught.value
