"""Streamed text, joined, is the decoding of all ids at once: for every kind of decoder, however the ids are split."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_fast._codec import Detokenizer, Tokenizer

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"

TEXTS = [
    "",
    " ",
    "Hello, world! It's 3.14 o'clock; isn't it?",
    "  leading and trailing spaces  \n\n\ttabs\r\n",
    "Emoji: 🎉 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽 and text",
    "漢字かな交じり文。한국어도. 中文，标点。𠮷野家",
    "combining: e\u0301 n\u0303 Z\u0351\u036b\u0343 \u0915\u094d\u0937\u093f",
    "عربي עברית ไทย မြန်မာ አማርኛ",
    "control \x00 \x01 \x07 \x1b[31m \x7f \u200b \u200e \ufeff \u2028 end",
    "specials <|im_start|>user\nhi<|im_end|>\n<|endoftext|> and <|unknown|> ones",
    "<|channel|>analysis<|message|>hm<|end|><|return|>",
    "\ufffd is itself, \U0010ffff too; \ue000",
    "def f(x):\n    return {'a': [1, 2, 3]}  # π ≈ 3.14159\n",
    "¡²³¤€¼½¾‘’¥×äåé®þüúíóö«»¬ Ġ Ċ ġ",
]


def streamed(tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool) -> str:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(detokenizer.push(ids[start : start + size]))
        start += size
    pieces.append(detokenizer.push(ids[start:]))
    pieces.append(detokenizer.finish())
    return "".join(pieces)


def check(tokenizer: Tokenizer, ids: list[int]) -> None:
    for skip in (True, False):
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        assert streamed(tokenizer, ids, [1] * len(ids), skip) == whole
        for split in range(len(ids) + 1):
            assert streamed(tokenizer, ids, [split], skip) == whole


@pytest.fixture(scope="module", params=["package", "qwen3", "gpt-oss", "smollm2-135m-instruct"])
def byte_level(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Tokenizer:
    if request.param == "package":
        return tokenizer
    path = MODELS / request.param / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"{request.param}'s tokenizer is not here (it lies beside the repository, in shared/models)")
    return Tokenizer.from_file(str(path))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_split_at_every_token(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text).tolist()
    assert byte_level.decode(ids, skip_special_tokens=False) == byte_level.decode(
        byte_level.encode(byte_level.decode(ids, skip_special_tokens=False)), skip_special_tokens=False
    )
    check(byte_level, ids)


def test_any_ids_at_all(byte_level: Tokenizer) -> None:
    """What a model may sample: bytes that are no text, ids that do not exist."""
    rng = random.Random(0)
    for _ in range(300):
        check(byte_level, [rng.randrange(byte_level.vocab_size + 10) for _ in range(rng.randrange(1, 12))])


def test_an_unfinished_character_is_held_and_a_finished_one_is_not(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = [tokenizer.encode(char).tolist() for char in ("a", "\U0001f9a5")]
    assert detokenizer.push(ids[0]) == "a"
    assert len(ids[1]) > 1, "the character must take several tokens for this test"
    assert [detokenizer.push([token]) for token in ids[1]] == [""] * (len(ids[1]) - 1) + ["\U0001f9a5"]
    detokenizer.push(ids[1][:-1])
    assert detokenizer.finish() == "\ufffd"


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁a", "a", "▁the", "b▁", "▁▁", "é", "日", "▁.", "'", "##ing", "</w>", "x</w>"]


def tokenizer_with(tmp_path: Path, decoder: dict[str, Any] | None, tokens: list[str]) -> Tokenizer:
    """A word-level vocabulary behind any decoder; its last token is special."""
    special = "<special>"
    vocabulary = {token: id for id, token in enumerate([*tokens, special])}
    added = {
        "id": len(tokens),
        "content": special,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": special},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(definition))
    return Tokenizer.from_file(str(path))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
GEMMA = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
LLAMA = {"type": "Sequence", "decoders": [*GEMMA, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
DECODERS: dict[str, dict[str, Any] | None] = {
    "llama": LLAMA,
    "gemma": {"type": "Sequence", "decoders": GEMMA},
    "metaspace": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    "wordpiece": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "bpe": {"type": "BPEDecoder", "suffix": "</w>"},
    "none": None,
    "byte level in a sequence": {"type": "Sequence", "decoders": [BYTE_LEVEL, {"type": "Fuse"}]},
}


@pytest.mark.parametrize("decoder", DECODERS)
def test_other_decoders_over_any_ids(tmp_path: Path, decoder: str) -> None:
    letters = ["\u0120a", "\u00e6", "\u0139", "\u00a5", "b", "\u00f0\u0141"]
    tokens = letters if "byte level" in decoder else [*BYTE_TOKENS, *WORDS]
    tokenizer = tokenizer_with(tmp_path, DECODERS[decoder], tokens)
    rng = random.Random(1)
    pool = [*range(max(0, len(tokens) - len(WORDS)), len(tokens) + 2)]
    multi = [byte for char in "é日🎉" for byte in char.encode()] if "byte level" not in decoder else []
    for _ in range(400):
        ids: list[int] = []
        for _ in range(rng.randrange(1, 8)):
            kind = rng.random()
            if multi and kind < 0.3:
                ids += rng.choice(["é", "日", "🎉"]).encode()
            elif multi and kind < 0.45:
                ids.append(rng.randrange(256))
            else:
                ids.append(rng.choice(pool))
        check(tokenizer, ids)


def test_a_sentencepiece_space_is_kept_between_words_and_dropped_at_the_start(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, LLAMA, [*BYTE_TOKENS, *WORDS])
    detokenizer = Detokenizer(tokenizer)
    the = tokenizer.token_to_id("\u2581the")
    assert the is not None
    assert [detokenizer.push([the]), detokenizer.push([the])] == ["the", " the"]


def test_a_run_of_byte_tokens_is_settled_by_its_end(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, LLAMA, [*BYTE_TOKENS, *WORDS])
    detokenizer = Detokenizer(tokenizer)
    a = tokenizer.token_to_id("a")
    assert a is not None
    assert [detokenizer.push([byte]) for byte in "日".encode()] == ["", "", ""]
    assert detokenizer.push([a]) == "日a"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=100), st.binary(max_size=3), st.booleans())
def test_a_long_run_of_byte_tokens_is_one(
    tmp_path_factory: pytest.TempPathFactory, characters: list[int], rest: bytes, goes_on: bool
) -> None:
    """However long, and whether it is text or turns out not to be, as where ``max_tokens`` cuts a character."""
    tokenizer = tokenizer_with(tmp_path_factory.mktemp("t"), LLAMA, [*BYTE_TOKENS, *WORDS])
    run = "".join(chr(0x4E00 + character) for character in characters).encode() + rest
    word = tokenizer.token_to_id("\u2581the")
    assert word is not None
    ids = [*run, *([word, *run, word] if goes_on else [])]
    assert streamed(tokenizer, ids, [1] * len(ids), skip=True) == tokenizer.decode(ids)
