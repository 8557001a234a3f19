"""The one pass over a request before anything of it is sent to an engine, which checks almost nothing itself.

Ranges, what the engine family can do, and the limits of the engine at hand. What passes cannot harm an engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from .._codec import TokenIds
from ..engines import Capabilities, SamplingParams
from .constraints import check_constraint, constraint_of
from .errors import ApiError, invalid
from .requests import ChatCompletionRequest, CompletionRequest, GenerateRequest, asked_in_vain

MAX_N = 128
#: Choices of all prompts of one request together.
MAX_GENERATIONS = 1024
MAX_STOP_STRINGS = 4
#: Characters of one stop string: all of them are looked for in every piece of text.
MAX_STOP_LENGTH = 1024
#: Each choice's message to the engine repeats them.
MAX_STOP_TOKEN_IDS = 256
#: Tokens of an answer, whatever the context: engines count them in 32 bits.
MAX_TOKENS = 2**31 - 1
#: Tokens of a completion whose request does not say.
COMPLETION_TOKENS = 16


class Limits(msgspec.Struct, frozen=True):
    """What the engine at hand can take. ``None``: it did not say, and neither does the model's directory."""

    vocab_size: int
    max_model_len: int | None


class Range(msgspec.Struct, frozen=True):
    """The values a number may have, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        low = f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"


_INT64 = 2**63
#: Engines compute with floats of 32 bits. Below the least normal one is what they may take for 0.
_FLOAT32_MIN = 2.0**-126
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127

RANGES: dict[str, Range] = {
    "temperature": Range(0.0, 2.0),
    "top_p": Range(_FLOAT32_MIN, 1.0),
    "min_p": Range(0.0, 1.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "presence_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(_FLOAT32_MIN, _FLOAT32_MAX),
    "min_tokens": Range(0, math.inf),
    "n": Range(1, MAX_N),
}

#: Parameters that go to the engine as they are, where they are given.
_PASSED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)


def check(request: ChatCompletionRequest | CompletionRequest, capabilities: Capabilities, limits: Limits) -> None:
    """Refuse what can be refused without knowing the prompt.

    Raises
    ------
    ApiError
        400, naming the parameter and, for a limit, the limit and the value.
    """
    for name in asked_in_vain(request):
        raise invalid(name, f"{name} is not supported")
    for name, allowed in RANGES.items():
        value = getattr(request, name)
        if value is not None and value not in allowed:
            raise invalid(name, f"{name} must be {allowed}, got {value}")
    _check_top_k(request.top_k, capabilities)
    _check_seed(request.seed)
    if request.best_of not in (None, 1 if request.n is None else request.n):
        raise invalid("best_of", f"best_of other than n is not supported, got {request.best_of}")
    _check_stop(request)
    _check_stop_token_ids(request.stop_token_ids or (), limits)
    _check_stream_options(request)
    _check_logprobs(request, capabilities)
    _check_max_tokens(request, limits)
    check_constraint(request, capabilities)


def check_prompt(param: str, prompt: TokenIds, limits: Limits) -> None:
    """Refuse a prompt that would end an engine's life.

    It has no token, or no room for another one after it, or one that only the tokenizer knows.
    """
    highest = prompt.max()
    if highest is None:
        raise invalid(param, f"{param} is empty: it has no tokens")
    if highest >= limits.vocab_size:
        raise _outside_vocabulary(param, highest, limits)
    _check_length(param, len(prompt), limits)


def _check_length(param: str, tokens: int, limits: Limits) -> None:
    context = limits.max_model_len
    if context is not None and tokens >= context:
        raise invalid(
            param,
            f"The prompt has {tokens} tokens, which leaves no room for an answer in the model's context of "
            f"{context} tokens",
        )


def given_prompts(request: CompletionRequest, limits: Limits) -> list[str | TokenIds]:
    """The prompts of a completion one by one: texts, or token ids that are in the vocabulary."""
    given = request.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid("prompt", "prompt is empty")
    if isinstance(given[0], int):
        _check_length("prompt", len(given), limits)  # before a look at each of what may be millions
    if all(isinstance(item, int) for item in given):
        return [_token_ids("prompt", given, limits)]
    if any(isinstance(item, int) for item in given):
        raise invalid("prompt", "prompt mixes token ids with whole prompts")
    choices = len(given) * (request.n or 1)
    if choices > MAX_GENERATIONS:
        raise invalid("prompt", f"{len(given)} prompts make {choices} choices; the limit is {MAX_GENERATIONS}")
    return [
        item if isinstance(item, str) else _token_ids(f"prompt[{index}]", item, limits)
        for index, item in enumerate(given)
    ]


def sampling_params(
    request: ChatCompletionRequest | CompletionRequest, prompt_tokens: Sequence[int], limits: Limits
) -> list[SamplingParams]:
    """What the engine is told for each prompt, given the tokens in it; unset ``max_tokens`` gets its value here.

    Raises
    ------
    ApiError
        400, if prompt and output together do not fit into the model's context.
    """
    given: dict[str, Any] = {name: value for name in _PASSED if (value := getattr(request, name)) is not None}
    given["seed"] = request.seed
    given["stop_token_ids"] = tuple(request.stop_token_ids or ())
    given["logprobs"] = wants_logprobs(request)
    given["constraint"] = constraint_of(request)
    return [SamplingParams(max_tokens=_max_tokens(request, tokens, limits), **given) for tokens in prompt_tokens]


def for_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """The same for one choice of several: each has a seed of its own, derived from the given one."""
    if sampling.seed is None or index == 0:
        return sampling
    seed = (sampling.seed + index + _INT64) % (2 * _INT64) - _INT64
    return msgspec.structs.replace(sampling, seed=seed)


def stop_strings(request: GenerateRequest) -> tuple[str, ...]:
    stop = request.stop
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def wants_logprobs(request: ChatCompletionRequest | CompletionRequest) -> bool:
    # A completion's logprobs is a number of alternatives, and 0 asks for the sampled token's.
    return request.logprobs is not None and request.logprobs is not False


def _check_top_k(top_k: int | None, capabilities: Capabilities) -> None:
    if top_k is None or top_k in (0, -1):
        return
    if not 1 <= top_k <= capabilities.max_top_k:
        raise invalid("top_k", f"top_k must be 0 or -1 (all), or 1 to {capabilities.max_top_k}, got {top_k}")


def _check_seed(seed: int | None) -> None:
    if seed is not None and not -_INT64 <= seed < _INT64:
        raise invalid("seed", f"seed must be an integer of 64 bits, got {seed}")


def _check_stop(request: GenerateRequest) -> None:
    strings = stop_strings(request)
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid("stop", f"stop can have at most {MAX_STOP_STRINGS} strings, got {len(strings)}")
    if "" in strings:
        raise invalid("stop", "a stop string is empty")
    longest = max(map(len, strings), default=0)
    if longest > MAX_STOP_LENGTH:
        raise invalid("stop", f"a string of stop can have at most {MAX_STOP_LENGTH} characters, got {longest}")


def _check_stop_token_ids(ids: Sequence[int], limits: Limits) -> None:
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"stop_token_ids can have at most {MAX_STOP_TOKEN_IDS} ids, got {len(ids)}")
    _check_vocabulary("stop_token_ids", ids, limits)


def _check_stream_options(request: GenerateRequest) -> None:
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise invalid("stream_options", "stream_options is for streams only: stream is not true")
    for name in ("continuous_usage_stats", "include_obfuscation"):
        if getattr(options, name):
            raise invalid(f"stream_options.{name}", f"stream_options.{name} is not supported")


def _check_logprobs(request: ChatCompletionRequest | CompletionRequest, capabilities: Capabilities) -> None:
    if isinstance(request, ChatCompletionRequest):
        name, top = "top_logprobs", request.top_logprobs or 0
        if top and not request.logprobs:
            raise invalid(name, "top_logprobs needs logprobs to be true")
        most = capabilities.max_top_logprobs
    else:
        name, top = "logprobs", request.logprobs or 0
        # The sampled token alone is what logprobs 0 and 1 of a completion get from every engine.
        most = max(1, capabilities.max_top_logprobs)
    if not 0 <= top <= most:
        raise invalid(name, f"{name} must be 0 to {most} with this engine, got {top}")


def _check_max_tokens(request: ChatCompletionRequest | CompletionRequest, limits: Limits) -> None:
    names = ["max_tokens"]
    if isinstance(request, ChatCompletionRequest):
        names.append("max_completion_tokens")
    for name in names:
        value = getattr(request, name)
        if value is None:
            continue
        if value < 1:
            raise invalid(name, f"{name} must be at least 1, got {value}")
        if limits.max_model_len is None and value > MAX_TOKENS:
            raise invalid(name, f"{name} must be at most {MAX_TOKENS}, got {value}")
        if limits.max_model_len is not None and value > limits.max_model_len:
            raise invalid(
                name, f"{name} must be at most the model's context of {limits.max_model_len} tokens, got {value}"
            )


def _max_tokens(request: ChatCompletionRequest | CompletionRequest, prompt_tokens: int, limits: Limits) -> int:
    tokens = _max_tokens_in_context(request, prompt_tokens, limits)
    if request.min_tokens is not None and request.min_tokens > tokens:
        raise invalid("min_tokens", f"min_tokens must be at most max_tokens, {tokens}, got {request.min_tokens}")
    return tokens


def _max_tokens_in_context(
    request: ChatCompletionRequest | CompletionRequest, prompt_tokens: int, limits: Limits
) -> int:
    name, asked, default = "max_tokens", request.max_tokens, None
    if isinstance(request, CompletionRequest):
        default = COMPLETION_TOKENS
    elif request.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", request.max_completion_tokens
    if limits.max_model_len is None:
        tokens = asked or default
        if tokens is None:
            raise invalid(name, f"{name} is required: the length of the model's context is not known")
        return tokens
    room = limits.max_model_len - prompt_tokens
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise invalid(
            name,
            f"The model's context is {limits.max_model_len} tokens: after a prompt of {prompt_tokens} tokens {name} "
            f"can be at most {room}, got {asked}",
        )
    return asked


def _token_ids(param: str, ids: Any, limits: Limits) -> TokenIds:
    _check_length(param, len(ids), limits)
    _check_vocabulary(param, ids, limits)
    return TokenIds(ids)


def _check_vocabulary(param: str, ids: Sequence[int], limits: Limits) -> None:
    if ids and (min(ids) < 0 or max(ids) >= limits.vocab_size):
        raise _outside_vocabulary(param, next(id for id in ids if not 0 <= id < limits.vocab_size), limits)


def _outside_vocabulary(param: str, id: int, limits: Limits) -> ApiError:
    return invalid(param, f"{param}: token id {id} is outside the vocabulary of {limits.vocab_size} ids")
