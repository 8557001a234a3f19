"""What engines are told of a checked request: its values, the model's defaults, and what follows from the prompt."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .._codec import Tokenizer
from ..engines import Constraint, SamplingParams
from .errors import invalid
from .limits import (
    COMPLETION_TOKENS,
    INT64,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_PROMPT_LOGPROBS,
    MAX_REPEATED_BYTES,
    Limits,
    Terms,
)
from .requests import ChatCompletionRequest, CompletionRequest
from .validation import (
    AnyRequest,
    max_tokens_of,
    shows_prompt_only,
    stop_strings,
    token_ids,
    wants_logprobs,
)

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
)


def sampling_params(
    request: AnyRequest, terms: Terms, tokenizer: Tokenizer, constraint: Constraint | None = None
) -> SamplingParams:
    """What the engine is told of a request, whatever its prompts; ``for_prompts`` says how many tokens to generate.

    Raises
    ------
    ApiError
        400, for bad words that are none to the tokenizer, and tokens forbidden beside a constraint.
    """
    given = terms.defaults.sampling()
    given |= {name: value for name in _PASSED if (value := getattr(request, name)) is not None}
    if "top_k" in given:
        # More than there are is all of them.
        given["top_k"] = min(given["top_k"], terms.limits.vocab_size)
    given["seed"] = None if request.seed == -1 else request.seed
    given["stop_token_ids"] = _stop_token_ids(request, terms.limits, tokenizer, has_constraint=constraint is not None)
    given["logprobs"] = sampled_logprobs(request, terms)
    given["prompt_logprobs"] = prompt_logprobs(request, terms)
    given["logit_bias"] = _logit_bias(request.logit_bias or {})
    if request.allowed_token_ids is not None:
        given["allowed_token_ids"] = tuple(dict.fromkeys(request.allowed_token_ids))
    given["bad_words"] = _bad_words(request.bad_words or (), terms.limits, tokenizer)
    given["constraint"] = constraint
    if constraint is not None:
        _check_constrained(request)
    return SamplingParams(max_tokens=1, **given)


def for_prompts(
    sampling: SamplingParams, request: AnyRequest, prompt_tokens: Sequence[int], terms: Terms
) -> list[SamplingParams]:
    """The same for each prompt, given the tokens in it.

    Raises
    ------
    ApiError
        400, for ``min_tokens`` that the context has no room for, and more logprobs of prompts, or more to repeat for
        every choice, than there may be.
    """
    _check_prompt_logprobs(request, prompt_tokens, sampling.prompt_logprobs)
    _check_repeated_bytes(request, prompt_tokens, sampling)
    return [
        msgspec.structs.replace(sampling, max_tokens=_max_tokens(request, tokens, terms)) for tokens in prompt_tokens
    ]


def for_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """The same for one choice of several: each has a seed of its own, derived from the given one."""
    if sampling.seed is None or index == 0:
        return sampling
    low, values = int(INT64.low), 2**64
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index - low) % values + low)


def sampled_logprobs(request: AnyRequest, terms: Terms) -> int | None:
    """Alternatives to get with each token of the answer; ``None``: no logprobs at all."""
    if not wants_logprobs(request):
        return None
    top = request.top_logprobs if isinstance(request, ChatCompletionRequest) else request.logprobs
    return min(top or 0, terms.capabilities.max_top_logprobs)


def prompt_logprobs(request: AnyRequest, terms: Terms) -> int | None:
    """Alternatives to get with each token of the prompt. As in vLLM, an echo comes with as many as the answer has."""
    if "prompt_logprobs" not in terms.capabilities.parameters:
        return None
    is_chat = isinstance(request, ChatCompletionRequest)
    echoed = sampled_logprobs(request, terms)
    if is_chat:
        echoed = echoed or 0
    if request.stream and (is_chat or not request.echo or echoed is None):
        return None  # a stream has a place for them in a completion's echo alone
    if request.prompt_logprobs is not None:
        return request.prompt_logprobs
    return echoed if request.echo else None


def _check_constrained(request: AnyRequest) -> None:
    """An engine that may say nothing of what the constraint allows fails the request."""
    for name in ("allowed_token_ids", "bad_words"):
        if getattr(request, name):
            raise invalid(name, f"{name} cannot be had together with a constraint on the answer")


def _check_prompt_logprobs(request: AnyRequest, prompt_tokens: Sequence[int], alternatives: int | None) -> None:
    if alternatives is None:
        return
    tokens, n = sum(prompt_tokens), request.n or 1
    count = tokens * (1 + alternatives) * n
    if count > MAX_PROMPT_LOGPROBS:
        name = "echo" if request.prompt_logprobs is None else "prompt_logprobs"
        raise invalid(
            name,
            f"{name}: {tokens} tokens of prompts, with {alternatives} alternatives each, for {n} choices make {count} "
            f"logprobs; the limit is {MAX_PROMPT_LOGPROBS}",
        )


def _check_repeated_bytes(request: AnyRequest, prompt_tokens: Sequence[int], sampling: SamplingParams) -> None:
    """What the message of every choice says again: 4 bytes a token id, 12 one with its bias, and the constraint."""
    ids = (*sampling.bad_words, sampling.stop_token_ids, sampling.allowed_token_ids or ())
    constraint = "" if sampling.constraint is None else sampling.constraint.value
    text = constraint if isinstance(constraint, str) else "".join(constraint)
    common = 4 * sum(map(len, ids)) + 12 * len(sampling.logit_bias) + len(text.encode())
    n, tokens = request.n or 1, sum(prompt_tokens)
    choices = n * len(prompt_tokens)
    size = choices * common + 4 * n * tokens
    if size > MAX_REPEATED_BYTES:
        prompt = "messages" if isinstance(request, ChatCompletionRequest) else "prompt"
        raise invalid(
            "n" if n > 1 else prompt,
            f"{choices} choices, each with {common} bytes of token ids and constraint, and prompts of {tokens} tokens "
            f"make {size} bytes for the engine; the limit is {MAX_REPEATED_BYTES}",
        )


def _stop_token_ids(
    request: AnyRequest, limits: Limits, tokenizer: Tokenizer, *, has_constraint: bool
) -> tuple[int, ...]:
    """Those given, and those that are a stop string each: the engine ends at them by itself, a step earlier.

    Not with ``min_tokens``: until then an engine samples none of them, where a stop string may well occur. Nor with a
    constraint: xgrammar takes a stop token for the end of its text, never for a part of it.
    """
    ids = list(request.stop_token_ids or ())
    if not request.min_tokens and not has_constraint:
        tokens = map(tokenizer.stop_token, stop_strings(request))
        ids += [token for token in tokens if token is not None and token < limits.vocab_size]
    return tuple(dict.fromkeys(ids))


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    return {int(token): min(MAX_BIAS, max(-MAX_BIAS, value)) for token, value in bias.items()}


def _bad_words(words: Sequence[str], limits: Limits, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word at the beginning of a text, and of the same inside it, after a space.

    Facts from vLLM 0.32 (``SamplingParams.update_from_tokenizer``): the second form counts if it has as many tokens
    and begins with another one.
    """
    sequences: list[tuple[int, ...]] = []
    for word in dict.fromkeys(words):
        first, inside = (tuple(tokenizer.encode(f"{space}{word.lstrip()}")) for space in ("", " "))
        if not first:
            raise invalid("bad_words", f"bad_words: {word!r} has no tokens")
        sequences.append(first)
        if inside and inside[0] != first[0] and len(inside) == len(first):
            sequences.append(inside)
    if len(sequences) > MAX_BAD_WORDS:
        raise invalid(
            "bad_words", f"bad_words can become at most {MAX_BAD_WORDS} sequences of tokens, got {len(sequences)}"
        )
    token_ids("bad_words", [token for sequence in sequences for token in sequence], limits)
    return tuple(sequences)


def _max_tokens(request: AnyRequest, prompt_tokens: int, terms: Terms) -> int:
    tokens = 1 if shows_prompt_only(request) else _tokens_in_context(request, prompt_tokens, terms)
    if request.min_tokens is not None and request.min_tokens > tokens:
        raise invalid("min_tokens", f"min_tokens must be at most max_tokens, {tokens}, got {request.min_tokens}")
    return tokens


def _tokens_in_context(request: AnyRequest, prompt_tokens: int, terms: Terms) -> int:
    name, asked = max_tokens_of(request)
    context = terms.limits.max_model_len
    if asked is None:
        asked = COMPLETION_TOKENS if isinstance(request, CompletionRequest) else terms.defaults.max_tokens
    if context is None:
        if asked is None:
            raise invalid(name, f"{name} is required: the length of the model's context is not known")
        return asked
    room = context - prompt_tokens
    return room if asked is None else min(asked, room)
