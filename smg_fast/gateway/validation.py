"""The one pass over a request before anything of it is sent to an engine, which checks almost nothing itself.

Ranges, what the engine family can do, and the limits of the engine at hand. What passes cannot harm an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .._codec import TokenIds
from ..engines import Capabilities
from .errors import ApiError, invalid
from .limits import (
    CACHE_SALT_FORBIDDEN,
    INT64,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_CACHE_SALT_LENGTH,
    MAX_GENERATIONS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
    RANGES,
    Limits,
    Terms,
)
from .refusals import refuse_what_is_not_honoured
from .requests import ChatCompletionRequest, CompletionRequest, GenerateRequest

AnyRequest = ChatCompletionRequest | CompletionRequest

#: As JSON has integers: of several ways to write one, only one is a key.
_TOKEN_ID = re.compile(r"0|-?[1-9][0-9]{0,19}")


def check(request: AnyRequest, terms: Terms) -> None:
    """Refuse what can be refused without knowing the prompt, but for constraints (see there).

    Raises
    ------
    ApiError
        400, naming the parameter and, for a limit, the limit and the value.
    """
    limits = terms.limits
    refuse_what_is_not_honoured(request)
    if request.structured_outputs is not None:
        refuse_what_is_not_honoured(request.structured_outputs, "structured_outputs.")
    for name in _asked_of_the_engine(request):
        if name not in terms.capabilities.parameters:
            raise invalid(name, f"{name} is not supported by the engine")
    for name, allowed in RANGES.items():
        value = getattr(request, name)
        if value is not None and value not in allowed:
            raise invalid(name, f"{name} must be {allowed}, got {value}")
    _check_top_k(request.top_k, terms.capabilities)
    for name in ("seed", "priority"):
        value = getattr(request, name)
        if value is not None and value not in INT64:
            raise invalid(name, f"{name} must be an integer of 64 bits, got {value}")
    _check_choices(request, terms)
    _check_stop(request)
    check_count("stop_token_ids", "ids", request.stop_token_ids or (), MAX_STOP_TOKEN_IDS)
    _check_vocabulary("stop_token_ids", request.stop_token_ids or (), limits)
    _check_logit_bias(request.logit_bias or {}, limits)
    _check_allowed_token_ids(request.allowed_token_ids, limits)
    _check_bad_words(request.bad_words or ())
    _check_cache_salt(request.cache_salt)
    _check_data_parallel_rank(request.data_parallel_rank, limits)
    _check_stream_options(request)
    _check_logprobs(request, terms.capabilities, limits)
    _check_max_tokens(request, limits)
    # It is true where it is not given.
    if isinstance(request, ChatCompletionRequest) and request.continue_final_message:
        check_continuation(request.add_generation_prompt)


def check_continuation(add_generation_prompt: bool | None) -> None:
    """Refuse to begin an answer and to go on with the last message at once."""
    if add_generation_prompt is not False:
        name = "continue_final_message"
        raise invalid(name, f"{name} needs add_generation_prompt to be false, or a new message would begin")


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


class GivenPrompt(msgspec.Struct, frozen=True):
    """One prompt of a completion. ``param`` is its path in the request."""

    param: str
    value: str | TokenIds


def given_prompts(request: CompletionRequest, limits: Limits) -> list[GivenPrompt]:
    """The prompts of a completion one by one: texts, or token ids that are in the vocabulary."""
    given = request.prompt
    if isinstance(given, str):
        return [GivenPrompt("prompt", given)]
    if not given:
        raise invalid("prompt", "prompt is empty")
    if isinstance(given[0], int):
        _check_length("prompt", len(given), limits)  # before a look at each of what may be millions
    if all(isinstance(item, int) for item in given):
        return [GivenPrompt("prompt", _token_ids("prompt", given, limits))]
    if any(isinstance(item, int) for item in given):
        raise invalid("prompt", "prompt mixes token ids with whole prompts")
    choices = len(given) * (request.n or 1)
    if choices > MAX_GENERATIONS:
        raise invalid("prompt", f"{len(given)} prompts make {choices} choices; the limit is {MAX_GENERATIONS}")
    paths = [f"prompt[{index}]" for index in range(len(given))]
    return [
        GivenPrompt(path, item if isinstance(item, str) else _token_ids(path, item, limits))
        for path, item in zip(paths, given, strict=True)
    ]


def token_ids(param: str, ids: Sequence[int], limits: Limits) -> TokenIds:
    """Raises ``ApiError``, 400, for one that is outside the vocabulary."""
    _check_vocabulary(param, ids, limits)
    return TokenIds(ids)


def check_count(param: str, what: str, given: Any, most: int) -> None:
    """Raises ``ApiError``, 400, where more are given than there may be."""
    if len(given) > most:
        raise invalid(param, f"{param} can have at most {most} {what}, got {len(given)}")


def stop_strings(request: GenerateRequest) -> tuple[str, ...]:
    stop = request.stop
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def wants_logprobs(request: AnyRequest) -> bool:
    # A completion's logprobs is a number of alternatives, and 0 asks for the sampled token's.
    return request.logprobs is not None and request.logprobs is not False


def _asked_of_the_engine(request: AnyRequest) -> Iterator[str]:
    """What some engine families have no room for, where it asks for something."""
    for name in ("logit_bias", "bad_words", "priority"):
        if getattr(request, name):
            yield name
    for name in ("allowed_token_ids", "cache_salt", "prompt_logprobs"):
        if getattr(request, name) is not None:
            yield name


def _check_top_k(top_k: int | None, capabilities: Capabilities) -> None:
    if top_k is None or top_k in (0, -1):
        return
    most = capabilities.max_top_k
    if top_k < 1 or (most is not None and top_k > most) or top_k not in INT64:
        selecting = "at least 1" if most is None else f"1 to {most}"
        raise invalid("top_k", f"top_k must be 0 or -1 (all), or {selecting}, got {top_k}")


def _check_choices(request: AnyRequest, terms: Terms) -> None:
    n = 1 if request.n is None else request.n
    if request.best_of not in (None, n):
        raise invalid("best_of", f"best_of other than n is not supported, got {request.best_of}")
    temperature = terms.defaults.temperature if request.temperature is None else request.temperature
    if n > 1 and temperature == 0:
        raise invalid("n", f"n must be 1 with temperature 0, where all choices are the same, got {n}")


def _check_stop(request: GenerateRequest) -> None:
    strings = stop_strings(request)
    check_count("stop", "strings", strings, MAX_STOP_STRINGS)
    if "" in strings:
        raise invalid("stop", "a stop string is empty")
    _check_longest("stop", strings, MAX_STOP_LENGTH)


def _check_logit_bias(bias: dict[str, float], limits: Limits) -> None:
    check_count("logit_bias", "tokens", bias, MAX_BIASED_TOKENS)
    for key in bias:
        if not _TOKEN_ID.fullmatch(key):
            raise invalid("logit_bias", f"logit_bias goes by token ids, got {key!r}")
    _check_vocabulary("logit_bias", [int(key) for key in bias], limits)


def _check_allowed_token_ids(ids: Sequence[int] | None, limits: Limits) -> None:
    if ids is None:
        return
    if not ids:
        raise invalid("allowed_token_ids", "allowed_token_ids is empty: nothing could be generated")
    check_count("allowed_token_ids", "ids", ids, MAX_ALLOWED_TOKENS)
    _check_vocabulary("allowed_token_ids", ids, limits)


def _check_bad_words(words: Sequence[str]) -> None:
    check_count("bad_words", "words", words, MAX_BAD_WORDS)
    if "" in words:
        raise invalid("bad_words", "a bad word is empty")
    _check_longest("bad_words", words, MAX_BAD_WORD_LENGTH)


def _check_cache_salt(salt: str | None) -> None:
    if salt is None:
        return
    if not 1 <= len(salt) <= MAX_CACHE_SALT_LENGTH:
        raise invalid("cache_salt", f"cache_salt must have 1 to {MAX_CACHE_SALT_LENGTH} characters, got {len(salt)}")
    found = next((character for character in salt if character in CACHE_SALT_FORBIDDEN), None)
    if found is not None:
        raise invalid("cache_salt", f"cache_salt must be without '@', '/', '\\' and NUL, got {found!r}")


def _check_data_parallel_rank(rank: int | None, limits: Limits) -> None:
    if rank is None:
        return
    if limits.shared_out:
        raise invalid(
            "data_parallel_rank",
            "data_parallel_rank: the engines are shared out among several gateway processes, and a request may have "
            "come to another than its engine's; with --gateway-processes 1 it can be chosen",
        )
    if not 0 <= rank < limits.engine_count:
        raise invalid("data_parallel_rank", f"data_parallel_rank must be 0 to {limits.engine_count - 1}, got {rank}")


def _check_stream_options(request: GenerateRequest) -> None:
    options = request.stream_options
    if options is None or not any(getattr(options, name) is not None for name in options.__struct_fields__):
        return
    if not request.stream:
        raise invalid("stream_options", "stream_options is for streams only: stream is not true")
    if options.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise invalid(name, f"{name} is not supported")


def _check_logprobs(request: AnyRequest, capabilities: Capabilities, limits: Limits) -> None:
    most = of_prompt = min(capabilities.max_top_logprobs, limits.vocab_size)
    if isinstance(request, ChatCompletionRequest):
        name, top = "top_logprobs", request.top_logprobs or 0
        if top and not request.logprobs:
            raise invalid(name, "top_logprobs needs logprobs to be true")
    else:
        name, top = "logprobs", request.logprobs or 0
        if request.echo and request.logprobs is not None and "prompt_logprobs" not in capabilities.parameters:
            raise invalid("echo", "echo with logprobs is not supported by the engine: it gives none of the prompt")
        # The sampled token alone is what logprobs 0 and 1 of a completion get from every engine.
        most = max(1, most)
    _check_alternatives(name, top, most)
    if request.prompt_logprobs is not None:
        _check_alternatives("prompt_logprobs", request.prompt_logprobs, of_prompt)
        if request.stream and request.prompt_logprobs:
            raise invalid("prompt_logprobs", f"prompt_logprobs must be 0 in a stream, got {request.prompt_logprobs}")


def _check_alternatives(name: str, asked: int, most: int) -> None:
    if not 0 <= asked <= most:
        raise invalid(name, f"{name} must be 0 to {most} with this engine, got {asked}")


def max_tokens_of(request: AnyRequest) -> tuple[str, int | None]:
    """The parameter that bounds the answer, and its value."""
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        return "max_completion_tokens", request.max_completion_tokens
    return "max_tokens", request.max_tokens


def shows_prompt_only(request: AnyRequest) -> bool:
    """Whether a completion asks for its prompt back, and for nothing more."""
    return isinstance(request, CompletionRequest) and bool(request.echo) and request.max_tokens == 0


def _check_max_tokens(request: AnyRequest, limits: Limits) -> None:
    name, value = max_tokens_of(request)
    if value is None or shows_prompt_only(request):
        return
    if value < 1:
        raise invalid(name, f"{name} must be at least 1, got {value}")
    if limits.max_model_len is None and value > MAX_TOKENS:
        raise invalid(name, f"{name} must be at most {MAX_TOKENS}, got {value}")
    if limits.max_model_len is not None and value > limits.max_model_len:
        raise invalid(name, f"{name} must be at most the model's context of {limits.max_model_len} tokens, got {value}")


def _check_length(param: str, tokens: int, limits: Limits) -> None:
    context = limits.max_model_len
    if context is not None and tokens >= context:
        raise invalid(
            param,
            f"The prompt has {tokens} tokens, which leaves no room for an answer in the model's context of "
            f"{context} tokens",
        )


def _check_longest(param: str, strings: Sequence[str], most: int) -> None:
    longest = max(map(len, strings), default=0)
    if longest > most:
        raise invalid(param, f"a string of {param} can have at most {most} characters, got {longest}")


def _token_ids(param: str, ids: Any, limits: Limits) -> TokenIds:
    _check_length(param, len(ids), limits)
    return token_ids(param, ids, limits)


def _check_vocabulary(param: str, ids: Sequence[int], limits: Limits) -> None:
    if ids and (min(ids) < 0 or max(ids) >= limits.vocab_size):
        raise _outside_vocabulary(param, next(id for id in ids if not 0 <= id < limits.vocab_size), limits)


def _outside_vocabulary(param: str, id: int, limits: Limits) -> ApiError:
    return invalid(param, f"{param}: token id {id} is outside the vocabulary of {limits.vocab_size} ids")
