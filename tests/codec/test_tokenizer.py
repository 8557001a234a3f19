"""Encoding and decoding agree with the ``tokenizers`` package, whose regular expressions come from another engine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers

from smg_fast._codec import Tokenizer
from tests.codec.test_detokenizer import LLAMA, MODELS, TEXTS, WORDS, tokenizer_with


@pytest.fixture(scope="module", params=["package", "qwen3", "gpt-oss", "smollm2-135m-instruct"])
def pair(request: pytest.FixtureRequest, model: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    path = (model if request.param == "package" else MODELS / request.param) / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"{request.param}'s tokenizer is not here (it lies beside the repository, in shared/models)")
    return Tokenizer.from_file(str(path)), tokenizers.Tokenizer.from_file(str(path))


def test_texts_encode_alike(pair: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = pair
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special).tolist()
            assert ids == theirs.encode(text, add_special_tokens=special).ids


def test_any_text_encodes_alike(pair: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = pair
    rng = random.Random(2)
    ranges = [
        (32, 127),
        (32, 127),
        (9, 33),
        (0xA0, 0x250),
        (0x300, 0x370),
        (0x400, 0x600),
        (0x900, 0xE80),
        (0x2000, 0x2070),
        (0x4E00, 0x4F00),
        (0xAC00, 0xAD00),
        (0x1F300, 0x1F700),
    ]
    for _ in range(1500):
        text = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40)))
        assert ours.encode(text).tolist() == theirs.encode(text).ids, ascii(text)


def test_decoding_agrees(pair: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = pair
    rng = random.Random(3)
    for _ in range(300):
        ids = [rng.randrange(ours.vocab_size) for _ in range(20)]
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_vocabulary_look_ups(pair: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = pair
    assert ours.vocab_size == max(theirs.get_vocab(with_added_tokens=True).values()) + 1
    for id in range(0, ours.vocab_size + 5, 97):
        assert ours.id_to_token(id) == theirs.id_to_token(id)
    assert ours.token_to_id("<|im_end|>") == theirs.token_to_id("<|im_end|>")
    assert ours.token_to_id("no such token") is None


def test_a_missing_file_and_a_wrong_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    with pytest.raises(ValueError, match=r".+"):
        Tokenizer.from_file(str(wrong))


def test_a_stop_token_is_exactly_the_text(tokenizer: Tokenizer) -> None:
    for text in (" the", "\n", "!", "a", " of"):
        token = tokenizer.stop_token(text)
        assert token is not None
        assert tokenizer.decode([token], skip_special_tokens=True) == text
    assert tokenizer.stop_token("é") is None, "no token of this vocabulary is exactly that"
    assert tokenizer.stop_token("no such token") is None
    assert tokenizer.stop_token("<|im_end|>") is None, "a text leaves special tokens out"
    assert tokenizer.stop_token("\u0120the") is None, "the vocabulary spells ' the' so, and no text is meant by it"


def test_an_added_token_that_shows_may_be_stopped_at(pair: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = pair
    for id, token in theirs.get_added_tokens_decoder().items():
        assert ours.stop_token(token.content) == (None if token.special else id)


def test_only_a_decoder_that_spells_tokens_alike_everywhere_has_stop_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, LLAMA, WORDS)
    assert tokenizer.token_to_id("a") is not None
    assert tokenizer.stop_token("a") is None
