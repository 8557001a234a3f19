"""The model directory that ships with the simulator, and what a person sees of an echo over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from smg_fast.embedded import MODEL_DIRECTORY, train_tokenizer
from smg_fast.embedded.simulator import TurnMarkers
from smg_fast.embedded.simulator.script import last_turn

TOKENIZER: Any = Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))
TEXTS = [
    "Tell me a short story about a fox and the moon.",
    "It's 42 degrees; they'll say «ça va» — naïve? ½ İstanbul",
    "日本語のテキスト、한국어 그리고 العربية",
    "👩🏽‍🚀🏳️‍🌈 e\u0301 \u200d\ufeff \x00\x1f\x7f",
    "    indented\n\tcode\r\n\n\nand   spaces   ",
    "<|im_start|>user\n<|im_end|><|endoftext|><|not_special|>",
]


def _json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MODEL_DIRECTORY / name).read_text(encoding="utf-8"))
    return content


def _render(*contents: str) -> str:
    template = (MODEL_DIRECTORY / "chat_template.jinja").read_text(encoding="utf-8")
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return (
        jinja2.Environment(autoescape=False).from_string(template).render(messages=messages, add_generation_prompt=True)
    )


def test_it_is_small_and_agrees_with_itself() -> None:
    assert sum(file.stat().st_size for file in MODEL_DIRECTORY.iterdir()) < 300_000
    config, generation, tokenizer = (
        _json("config.json"),
        _json("generation_config.json"),
        _json("tokenizer_config.json"),
    )
    assert config["vocab_size"] == TOKENIZER.get_vocab_size() == 4096
    assert config["max_position_embeddings"] == tokenizer["model_max_length"] == 8192
    for name in ("bos_token", "eos_token", "pad_token"):
        assert config[f"{name}_id"] == generation[f"{name}_id"] == TOKENIZER.token_to_id(tokenizer[name])


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_common_english_is_about_one_token_a_word() -> None:
    text = "The function returns the number of words that were found in the file, or an error if it does not exist."
    assert len(TOKENIZER.encode(text).ids) <= 1.2 * len(text.split())


def test_the_template_is_chatml() -> None:
    assert _render("Hello", "Hi", "Bye") == (
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", TEXTS[:5])
def test_an_echo_reads_like_the_question(text: str) -> None:
    newlines = tuple(i for token, i in TOKENIZER.get_vocab().items() if token and set(token) == {"Ċ"})
    markers = TurnMarkers(TOKENIZER.token_to_id("<|im_start|>"), TOKENIZER.token_to_id("<|im_end|>"), newlines)
    prompt = TOKENIZER.encode(_render("First", "Second", text)).ids
    assert TOKENIZER.decode(last_turn(prompt, markers)) == text


def test_the_files_are_those_that_the_training_script_writes(tmp_path: Path) -> None:
    train_tokenizer.write(TOKENIZER, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in MODEL_DIRECTORY.iterdir()}
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (MODEL_DIRECTORY / file.name).read_bytes(), file.name
