"""Ids of texts: those of ``tokenizers``, whatever the tokenizer is made of and whatever was encoded before."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from smg_fast._codec import Tokenizer

from .templates import MODELS

CORPUS = [
    "The ferry to the island leaves at nine, half past eleven and four; it's the last one.",
    "def f(x):\n    return x ** 2  # 1234\n\n\n\tif y:  pass",
    "今天天气怎么样？ Où est le café? Ναι, 東京 é",
]
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>"]


def byte_level(*, whole_alphabet: bool = True) -> tokenizers.Tokenizer:
    """As GPT-2's."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if whole_alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(CORPUS, trainer)
    return model


def with_bytes_missing() -> tokenizers.Tokenizer:
    return byte_level(whole_alphabet=False)


def with_all_kinds_of_added_tokens() -> tokenizers.Tokenizer:
    model = byte_level()
    model.normalizer = normalizers.NFC()
    model.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<right><left>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("\n\n", normalized=False),
            AddedToken("e\u0301t\u00e9", normalized=True),
            AddedToken(" ferry", normalized=True),
        ]
    )
    return model


def with_a_frame() -> tokenizers.Tokenizer:
    model = byte_level()
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(CL100K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A </s> </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return model


def with_digits_and_ignored_merges() -> tokenizers.Tokenizer:
    model = byte_level()
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    file = json.loads(model.to_str())
    file["model"]["ignore_merges"] = True
    file["model"]["merges"] = file["model"]["merges"][:40]
    return tokenizers.Tokenizer.from_str(json.dumps(file))


def with_single_words() -> tokenizers.Tokenizer:
    model = byte_level()
    model.add_tokens([AddedToken("nine", single_word=True, normalized=False)])
    return model


def sentence_piece(scheme: str) -> Callable[[], tokenizers.Tokenizer]:
    def build() -> tokenizers.Tokenizer:
        model = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<unk>", *SPECIAL, *byte_tokens], show_progress=False
        )
        model.train_from_iterator(CORPUS, trainer)
        return model

    return build


def word_pieces() -> tokenizers.Tokenizer:
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *SPECIAL,
        *"abcdefghijklmnopqrstuvwxyz.,?",
        "##e",
        "##s",
        "the",
        "ferry",
        "##ry",
    ]
    model = tokenizers.Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    model.normalizer = normalizers.BertNormalizer()
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    model.add_special_tokens(SPECIAL)
    return model


BUILT: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte level": byte_level,
    "bytes missing": with_bytes_missing,
    "added tokens": with_all_kinds_of_added_tokens,
    "frame": with_a_frame,
    "digits": with_digits_and_ignored_merges,
    "single words": with_single_words,
    "metaspace always": sentence_piece("always"),
    "metaspace first": sentence_piece("first"),
    "word pieces": word_pieces,
}
NAMES = [*BUILT, *MODELS]


@cache
def both(name: str, directory: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    if name in BUILT:
        path = directory / f"{name}.json"
        BUILT[name]().save(str(path))
    else:
        path = MODELS[name] / "tokenizer.json"
        if not path.is_file():
            pytest.skip(f"{path} is not there")
    return Tokenizer.from_file(str(path)), tokenizers.Tokenizer.from_file(str(path))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


# Characters that Unicode has known for long: the two sides may have different versions of it.
characters = st.characters(exclude_categories=["Cn", "Cs", "Co"], max_codepoint=0x1FAFF)
pieces = st.one_of(
    st.sampled_from(
        [
            *SPECIAL,
            *("<|im_end|>", "<|endoftext|>", "<|start|>", "<|message|>", "<think>", "<|im_", "|>", "<", "[SEP]"),
            *("<left>", "<right>", "\u00e9te\u0301", "e\u0301t\u00e9", "nine", " nine ", " ferry", "the"),
            *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u2581", "\x00"),
            *("'s", "'LL", "'", "’s", "12345", "...", " (", "naïve", "\u0301", "\u0323\u0301", "각", "각"),
            *("HELLOWorld", "helloWorld", "x" * 60, "ab" * 100, " " * 90, "今天天气怎么样？", "🏳️‍🌈", "👩🏽‍🚀"),
        ]
    ),
    st.text(characters, max_size=8),
    st.text("abcdefghij ABC.,'\n0123", max_size=20),
    st.sampled_from(CORPUS),
)
texts = st.lists(pieces, max_size=20).map("".join)


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_ids_of_tokenizers(name: str, directory: Path) -> None:
    ours, theirs = both(name, directory)

    @settings(max_examples=300, deadline=None)
    @given(texts, st.booleans())
    def check(text: str, add_special_tokens: bool) -> None:
        expected = theirs.encode(text, add_special_tokens=add_special_tokens).ids
        assert ours.encode(text, add_special_tokens).tolist() == expected
        # What is remembered of it goes for it wherever it comes again.
        again = f"{text}</s>{text}<|im_start|>{text}"
        assert ours.encode(again).tolist() == theirs.encode(again, add_special_tokens=False).ids

    check()


@pytest.mark.parametrize("name", NAMES)
def test_long_chats_have_the_ids_of_tokenizers_turn_after_turn(name: str, directory: Path) -> None:
    ours, theirs = both(name, directory)
    chosen = random.Random(name)
    chat = ""
    for turn in range(30):
        words = " ".join(chosen.choices(" ".join(CORPUS).split(" "), k=chosen.randrange(120)))
        chat += f"<|im_start|>user {turn}\n{words}<|im_end|></s>\n"
        assert ours.encode(chat).tolist() == theirs.encode(chat, add_special_tokens=False).ids, turn
    assert ours.encode(chat, True).tolist() == theirs.encode(chat).ids


@pytest.mark.parametrize("name", ["byte level", "metaspace always"])
def test_what_was_encoded_costs_nothing_to_encode_again(name: str, directory: Path) -> None:
    ours, _ = both(name, directory)
    system, first, second = ("<s>" + " ".join([word] * 2_000) for word in ("system", "first", "second"))
    assert ours.encoding_cost(system + first) > 1_000
    ours.encode(system + first)
    assert ours.encoding_cost(system + first) == 0
    assert ours.encoding_cost(system + first + second) == ours.encoding_cost(second) > 500


def test_a_tokenizer_that_looks_at_the_whole_text_remembers_no_part_of_it(directory: Path) -> None:
    for name in ("metaspace first", "single words"):
        ours, _ = both(name, directory)
        text = "<s>" + "a ferry at nine " * 100
        ours.encode(text)
        assert ours.encoding_cost(text) == len(text), name


HOSTILE: dict[str, Callable[[int], str]] = {
    "one letter": lambda n: "a" * n,
    "one long word": lambda n: "".join(random.Random(1).choices("etaoin", k=n)),
    "spaces": lambda n: " " * n,
    "lines of spaces": lambda n: "\n " * (n // 2),
    "marks out of order": lambda n: "a" + "\u0301\u0323" * (n // 4),
    "quotes": lambda n: "'" * n,
    "half a special token": lambda n: "<|im_start|" * (n // 11),
    "special tokens": lambda n: "<|im_start|>" * (n // 12),
    "no white space": lambda n: "的" * (n // 3),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", ["byte level", "added tokens", "smollm2", "qwen3", "gpt-oss"])
def test_no_text_takes_more_than_its_length_warrants(kind: str, name: str, directory: Path) -> None:
    ours, theirs = both(name, directory)
    short = HOSTILE[kind](2_000)
    assert ours.encode(short).tolist() == theirs.encode(short, add_special_tokens=False).ids
    began = time.monotonic()
    ours.encode(HOSTILE[kind](1_000_000))
    # One that took time by the square of its length would take hours.
    assert time.monotonic() - began < 20


def test_a_file_that_is_no_tokenizer_says_why(tmp_path: Path) -> None:
    for content in (b"", b"{}", b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}'):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"\S"):
            Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("change", [{"merges": ["e s", "t h"]}, {"dropout": 0.0}, {"continuing_subword_prefix": ""}])
def test_files_of_older_versions(change: dict[str, Any], tmp_path: Path) -> None:
    file = json.loads(byte_level().to_str())
    file["model"] |= change
    file["model"]["vocab"] |= {token: 1000 + id for id, token in enumerate(("es", "th"))}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    theirs, text = tokenizers.Tokenizer.from_file(str(path)), " ".join(CORPUS) * 20
    ours = Tokenizer.from_file(str(path))
    assert ours.encode(text).tolist() == theirs.encode(text).ids
    assert ours.encoding_cost("new " * 100) < 400
