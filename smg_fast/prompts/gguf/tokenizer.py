"""A GGUF file's vocabulary as a ``tokenizer.json``, the format of the ``tokenizers`` crate."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec

from ..errors import ModelDirectoryError
from .metadata import Metadata
from .pre_tokenizers import PRE_TOKENIZERS

_SPACE = "▁"  # how SentencePiece writes one


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """The tokens of a file, by id.

    Raises ``ModelDirectoryError`` if there are none, or if one is there twice.
    """

    def __init__(self, metadata: Metadata) -> None:
        tokens = metadata.strings("tokenizer.ggml.tokens")
        if not tokens:
            raise ModelDirectoryError(f"{metadata.path}: there is no tokenizer in it")
        # As llama.cpp names them.
        self.tokens = [token or f"[EMPTY_{id}]" for id, token in enumerate(tokens)]
        self.ids = {token: id for id, token in enumerate(self.tokens)}
        if len(self.ids) != len(tokens):
            raise ModelDirectoryError(f"{metadata.path}: a token is twice in the vocabulary")
        self.types = metadata.integers("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
        if len(self.types) != len(tokens):
            raise ModelDirectoryError(f"{metadata.path}: {len(self.types)} token types for {len(tokens)} tokens")
        self._metadata = metadata

    def special(self, role: str) -> int | None:
        """The id that plays a role (``bos``, ``eos``, ``unknown``, ...), if the file names one and it exists."""
        id = self._metadata.integer(f"tokenizer.ggml.{role}_token_id")
        return id if id is not None and 0 <= id < len(self.tokens) else None

    def of_type(self, *types: TokenType) -> Iterator[int]:
        return (id for id, kind in enumerate(self.types) if kind in types)


def tokenizer_json(metadata: Metadata, vocabulary: Vocabulary) -> bytes:
    """The tokenizer.

    Raises
    ------
    ModelDirectoryError
        For a kind of vocabulary, or a pre-tokenizer, that is not known here; the message names it.
    """
    kind = metadata.string("tokenizer.ggml.model")
    if kind == "gpt2":
        parts = _byte_level(metadata, vocabulary)
    elif kind == "llama":
        parts = _sentence_piece(metadata, vocabulary)
    else:
        raise ModelDirectoryError(
            f"{metadata.path}: a vocabulary of kind {kind!r} cannot be read from a GGUF file; "
            "give the model's tokenizer with --tokenizer DIR"
        )
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": _added_tokens(vocabulary), **parts}
    return msgspec.json.encode(whole)


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    name = metadata.string("tokenizer.ggml.pre") or "default"
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise ModelDirectoryError(
            f"{metadata.path}: the pre-tokenizer {name!r} is not known here; "
            "give the model's tokenizer with --tokenizer DIR"
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # No byte is written as a space, and a merge may begin with one only where a token is that.
    merges = [_pair(merge) for merge in metadata.strings("tokenizer.ggml.merges") or ()]
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre.steps(), byte_level]},
        "post_processor": _post_processor(metadata, vocabulary, add_bos=pre.add_bos),
        "decoder": byte_level,
        "model": _bpe(vocabulary, merges, ignore_merges=pre.ignore_merges),
    }


def _sentence_piece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise ModelDirectoryError(f"{metadata.path}: a SentencePiece vocabulary without a score for each token")
    unknown = vocabulary.special("unknown")
    if unknown is None:
        unknown = next(vocabulary.of_type(TokenType.UNKNOWN), None)
    bytes_known = any(vocabulary.of_type(TokenType.BYTE))
    prefix = metadata.boolean("tokenizer.ggml.add_space_prefix") is not False

    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(metadata, vocabulary, add_bos=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            vocabulary,
            _merges_from_scores(vocabulary, scores),
            unknown=None if unknown is None else vocabulary.tokens[unknown],
            byte_fallback=bytes_known,
        ),
    }


def _merges_from_scores(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """The merges that do what SentencePiece's BPE does.

    It joins the neighbours that make the token with the best score, the leftmost first. So every way to make a token
    of two others is a merge, in the order of the made tokens' scores; of one token, those with the longer left part go
    first, for a run of one character is eaten from the left.
    """
    mergeable = set(vocabulary.of_type(TokenType.NORMAL, TokenType.UNUSED))
    parts = {vocabulary.tokens[id] for id in mergeable}
    merges: list[tuple[str, str]] = []
    for id in sorted(mergeable, key=lambda id: -scores[id]):
        token = vocabulary.tokens[id]
        merges += [
            (token[:at], token[at:])
            for at in range(len(token) - 1, 0, -1)
            if token[:at] in parts and token[at:] in parts
        ]
    return merges


def _bpe(
    vocabulary: Vocabulary,
    merges: list[tuple[str, str]],
    *,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        # Added tokens too: so their ids are the file's.
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens that are found in a text before anything is split; the special ones are no part of an answer's text."""
    return [
        {
            "id": id,
            "content": vocabulary.tokens[id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocabulary.types[id] != TokenType.USER_DEFINED,
        }
        for id in vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]


def _post_processor(metadata: Metadata, vocabulary: Vocabulary, *, add_bos: bool) -> dict[str, Any] | None:
    """Puts BOS and EOS around a text, where the file says so; ``add_bos`` stands in for a file that does not say."""
    said = metadata.boolean("tokenizer.ggml.add_bos_token")
    first = vocabulary.special("bos") if (add_bos if said is None else said) else None
    last = vocabulary.special("eos") if metadata.boolean("tokenizer.ggml.add_eos_token") else None
    if first is None and last is None:
        return None

    def template(*sequences: str) -> list[dict[str, Any]]:
        whole: list[dict[str, Any]] = []
        for type_id, sequence in enumerate(sequences):
            around = {id: {"SpecialToken": {"id": vocabulary.tokens[id], "type_id": type_id}} for id in tokens}
            whole += [around[first]] if first is not None else []
            whole.append({"Sequence": {"id": sequence, "type_id": type_id}})
            whole += [around[last]] if last is not None else []
        return whole

    tokens = [id for id in (first, last) if id is not None]
    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": {
            vocabulary.tokens[id]: {"id": vocabulary.tokens[id], "ids": [id], "tokens": [vocabulary.tokens[id]]}
            for id in tokens
        },
    }


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")
    return merge[0] + left, right
