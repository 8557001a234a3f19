"""Requests that ask the same of different prompts: what they ask is checked and translated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

#: What nothing depends on.
_LABELS = dict.fromkeys(("user", "metadata", "request_id", "safety_identifier", "prompt_cache_key"))

_encode = msgspec.json.Encoder().encode


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
        #: By what was asked, with what it was held to; the latest last.
        self._kept: dict[bytes, tuple[Terms, Plan]] = {}

    def plan(self, request: AnyRequest, terms: Terms) -> Plan:
        """Raises ``ApiError``, 400, as ``check``, ``constraint_of`` and ``sampling_params`` do."""
        asked = _asked(request)
        key = _key(asked)
        if key is None:
            return self._make(asked, terms)
        kept = self._kept.pop(key, None)
        if kept is None or not (kept[0] is terms or kept[0] == terms):
            kept = terms, self._make(asked, terms)
        self._kept[key] = kept
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

    def _make(self, request: AnyRequest, terms: Terms) -> Plan:
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


def _asked(request: AnyRequest) -> AnyRequest:
    """A request without its prompt, and without what is a client's own affair."""
    given: dict[str, Any] = {"messages": []} if isinstance(request, ChatCompletionRequest) else {"prompt": ""}
    return msgspec.structs.replace(request, **given, **_LABELS)


def _key(asked: AnyRequest) -> bytes | None:
    """The same for all that were written alike; ``None`` for what is too long to keep, or too deep to encode."""
    try:
        encoded = _encode(asked)
    except RecursionError:
        return None
    return encoded if len(encoded) <= _MAX_SIZE else None
