"""How the families of ByteLevel BPE split a text before merging, by the name that a GGUF file gives them.

The patterns are those of the models' own ``tokenizer.json`` files; which name stands for which is llama.cpp's doing
(``src/llama-vocab.cpp``, b11549).
"""

from __future__ import annotations

from typing import Any

import msgspec


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """A text is split by each pattern in turn: what matches becomes a piece of its own, and so does what is between."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token stays whole, whatever the merges say."""
    nfc: bool = False
    """The text is brought to Unicode's normal form C first."""
    add_bos: bool = False
    """The sequence begins with the BOS token, unless the file says otherwise."""

    def steps(self) -> list[dict[str, Any]]:
        """As in a ``tokenizer.json``."""
        return [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_UP_TO_3_DIGITS = r"\p{N}{1,3}"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _BLANKS
)


def _tiktoken(digits: str, *, letter: str = r"\p{L}", other: str = r"[^\s\p{L}\p{N}]") -> str:
    """The pattern that began with cl100k: contractions, words, digits, punctuation, blanks."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?{other}+[\r\n]*|{_BLANKS}"


def _cased(digits: str, contraction: str) -> str:
    """The one that began with o200k: a word also ends where a capital follows a small letter."""
    before, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = rf"{before}{upper}*{lower}+{contraction}|{before}{upper}+{lower}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"


_GPT2_FAMILY = PreTokenizer(patterns=(_GPT2,))
_DIGITS_FAMILY = PreTokenizer(patterns=(_DIGIT, _GPT2))
_CL100K = PreTokenizer(patterns=(_tiktoken(_UP_TO_3_DIGITS),))
_LLAMA3 = PreTokenizer(patterns=_CL100K.patterns, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer(patterns=(_tiktoken(_DIGIT),), nfc=True)
_PLAIN_QWEN2 = PreTokenizer(patterns=_QWEN2.patterns)
_O200K = PreTokenizer(patterns=(_cased(_UP_TO_3_DIGITS, f"{_CONTRACTION}?"),), ignore_merges=True)
_DEEPSEEK3 = PreTokenizer(patterns=(_UP_TO_3_DIGITS, "[\u4e00-\u9fa5\u3040-\u30ff]+", _DEEPSEEK_V3))
# Files without a name, or with this one, were made before there were names; llama.cpp splits them like Falcon's.
_DEFAULT = PreTokenizer(patterns=(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2_FAMILY,
    "phi-2": _GPT2_FAMILY,
    "mpt": _GPT2_FAMILY,
    "olmo": _GPT2_FAMILY,
    "exaone4": _GPT2_FAMILY,
    "gigachat": _GPT2_FAMILY,
    "trillion": _GPT2_FAMILY,
    "granite-docling": _GPT2_FAMILY,
    "a.x-4.0": _GPT2_FAMILY,
    "mellum": _GPT2_FAMILY,
    "smollm": _DIGITS_FAMILY,
    "starcoder": _DIGITS_FAMILY,
    "refact": _DIGITS_FAMILY,
    "command-r": _DIGITS_FAMILY,
    "codeshell": _DIGITS_FAMILY,
    "exaone": _DIGITS_FAMILY,
    "minerva-7b": _DIGITS_FAMILY,
    "mellum2": _DIGITS_FAMILY,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "glm4": _CL100K,
    "chatglm-bpe": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _PLAIN_QWEN2,
    "megrez": _PLAIN_QWEN2,
    "stablelm2": _PLAIN_QWEN2,
    "hunyuan": _PLAIN_QWEN2,
    "solar-open": _PLAIN_QWEN2,
    "grok-2": _PLAIN_QWEN2,
    "qwen35": PreTokenizer(
        patterns=(_tiktoken(_DIGIT, letter=r"[\p{L}\p{M}]", other=r"[^\s\p{L}\p{M}\p{N}]"),), nfc=True
    ),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "kanana2": _O200K,
    "minimax-m2": _O200K,
    "tekken": PreTokenizer(patterns=(_cased(_DIGIT, ""),), ignore_merges=True, add_bos=True),
    "deepseek-coder": PreTokenizer(patterns=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    "deepseek-v3": _DEEPSEEK3,
    "hunyuan-dense": _DEEPSEEK3,
    "joyai-llm": _DEEPSEEK3,
}
