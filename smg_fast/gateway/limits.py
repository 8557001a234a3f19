"""What a request is held to: the bounds of every gateway, those of the engine at hand, and the model's defaults."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..engines import Capabilities

MAX_N = 128
#: Choices of all prompts of one request together.
MAX_GENERATIONS = 1024
#: Bytes that the messages of all choices of a request are made of: token ids of the prompt, of bad words and of the
#: lists below, and the constraint, which each of them repeats. 128 choices of a prompt of 128k tokens fit in.
MAX_REPEATED_BYTES = 64 << 20
#: Logprobs of the prompts of one request, those of every choice counted: they are one object of a body, and nothing
#: else happens while it is written, which takes 1.5 us for each.
MAX_PROMPT_LOGPROBS = 1 << 18
MAX_STOP_STRINGS = 4
#: Characters of one stop string: all of them are looked for in every piece of text.
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1 << 14
#: Bad words, and the sequences of tokens that they become.
MAX_BAD_WORDS = 128
#: Characters of one bad word.
MAX_BAD_WORD_LENGTH = 1024
#: Token ids that are one text: far more than any context, and decoded within 0.2 s.
MAX_DETOKENIZED = 1 << 20
#: What a bias beyond it counts as: with this one a token is certain already, or impossible.
MAX_BIAS = 100.0
#: What vLLM allows in a salt, which ends up in the keys of caches outside of it.
MAX_CACHE_SALT_LENGTH = 128
CACHE_SALT_FORBIDDEN = "@/\\\0"
#: Tokens of an answer, whatever the context: engines count them in 32 bits.
MAX_TOKENS = 2**31 - 1
#: Tokens of a completion whose request does not say.
COMPLETION_TOKENS = 16


class Range(msgspec.Struct, frozen=True):
    """The values a number may have, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        low = f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"


INT64 = Range(-(2**63), 2**63 - 1)
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


class Limits(msgspec.Struct, frozen=True):
    """What the engines at hand can take. ``None``: they did not say, and neither does the model's directory.

    ``shared_out``: some of them serve another gateway process, and not this one.
    """

    vocab_size: int
    max_model_len: int | None
    engine_count: int = 1
    shared_out: bool = False


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What counts where a request does not say; ``None``: what counts for every model."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def sampling(self) -> dict[str, Any]:
        """Those that are there, but for ``max_tokens``, by their names in ``SamplingParams``."""
        values = {field: getattr(self, field) for field in self.__struct_fields__ if field != "max_tokens"}
        return {name: value for name, value in values.items() if value is not None}


class Terms(msgspec.Struct, frozen=True):
    """All that a request is checked against."""

    capabilities: Capabilities
    limits: Limits
    defaults: SamplingDefaults = SamplingDefaults()
