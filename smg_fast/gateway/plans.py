"""Requests that ask the same of different prompts: what they ask is checked and translated once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from .._codec import TextOptions, Tokenizer
from ..engines import SamplingParams
from .constraints import NamedConstraint, constraint_of
from .limits import Terms
from .requests import ChatCompletionRequest
from .sampling import prompt_logprobs, sampled_logprobs, sampling_params
from .validation import AnyRequest, check, shows_prompt_only, stop_strings

#: Plans that are kept for a model, and bytes of a request, without its prompt, up to which it is.
_KEPT = 256
_MAX_SIZE = 4 << 10

_encode = msgspec.msgpack.Encoder().encode


class Plan(msgspec.Struct, frozen=True):
    """What a request asks, whatever its prompt: checked, but for its constraint, which has to compile."""

    constraint: NamedConstraint | None
    sampling: SamplingParams
    options: TextOptions


class Plans:
    """The plans of one model. ``eos_token_ids`` are its own."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._kept = functools.lru_cache(maxsize=_KEPT)(self._make)

    def plan(self, request: AnyRequest, terms: Terms) -> Plan:
        """Raises ``ApiError``, 400, as ``check``, ``constraint_of`` and ``sampling_params`` do."""
        asked = _Asked(_without_prompt(request), terms)
        return self._kept(asked) if len(asked.encoded) <= _MAX_SIZE else self._make(asked)

    def _make(self, asked: _Asked) -> Plan:
        request, terms = asked.request, asked.terms
        check(request, terms)
        named = constraint_of(request, terms.capabilities)
        constraint = None if named is None else named.constraint
        sampling = sampling_params(request, terms, self._tokenizer, constraint)
        return Plan(named, sampling, self._text_options(request, terms))

    def _text_options(self, request: AnyRequest, terms: Terms) -> TextOptions:
        return TextOptions(
            stop=stop_strings(request),
            stop_token_ids=request.stop_token_ids or (),
            # An engine told to go on after the end of the sequence does not stop at it.
            eos_token_ids=() if request.ignore_eos else self._eos_token_ids,
            include_stop_str=bool(request.include_stop_str_in_output),
            min_tokens=request.min_tokens or 0,
            skip_special_tokens=request.skip_special_tokens is not False,
            logprobs=sampled_logprobs(request, terms),
            prompt_logprobs=prompt_logprobs(request, terms),
            hide_output=shows_prompt_only(request),
        )


class _Asked:
    """A request without its prompt; equal to those that were written alike, and are held to the same."""

    __slots__ = ("encoded", "request", "terms")

    def __init__(self, request: AnyRequest, terms: Terms) -> None:
        self.encoded = _encode(request)
        self.request = request
        self.terms = terms

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Asked)
            and self.encoded == other.encoded
            and type(self.request) is type(other.request)
            and (self.terms is other.terms or self.terms == other.terms)
        )


def _without_prompt(request: AnyRequest) -> AnyRequest:
    if isinstance(request, ChatCompletionRequest):
        return msgspec.structs.replace(request, messages=[])
    return msgspec.structs.replace(request, prompt="")
