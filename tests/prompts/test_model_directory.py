"""A model directory: what is read, which file wins, and what is said of one that cannot be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from smg_fast.prompts.errors import ModelDirectoryError
from smg_fast.prompts.model_directory import ModelDirectory

from .templates import PACKAGE_MODEL, SHARED_MODELS


class Words:
    def __init__(self, *words: str) -> None:
        self._words = words

    def token_to_id(self, token: str) -> int | None:
        return self._words.index(token) if token in self._words else None


def load(root: Path, **files: object) -> ModelDirectory:
    """``root`` with a tokenizer and JSON files, by name without ``.json``."""
    for name, content in {"tokenizer": {}, **files}.items():
        (root / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return ModelDirectory.load(root)


def templates(model: ModelDirectory) -> dict[str, str]:
    return {name: source.text for name, source in model.chat_templates.items()}


@pytest.mark.skipif(not SHARED_MODELS.is_dir(), reason=f"{SHARED_MODELS} is not there")
@pytest.mark.parametrize(
    ("name", "context_length", "vocab_size", "eos_token", "bos_token"),
    [
        ("qwen3", 40960, 151936, "<|im_end|>", None),
        ("gpt-oss", 131072, 201088, "<|return|>", "<|startoftext|>"),
        ("smollm2-135m-instruct", 8192, 49152, "<|im_end|>", "<|im_start|>"),
    ],
)
def test_published_models(
    name: str, context_length: int, vocab_size: int, eos_token: str, bos_token: str | None
) -> None:
    model = ModelDirectory.load(SHARED_MODELS / name)
    assert model.context_length == context_length
    assert model.vocab_size == vocab_size
    assert model.special_tokens["eos_token"] == eos_token
    assert model.special_tokens.get("bos_token") == bos_token


@pytest.mark.skipif(not SHARED_MODELS.is_dir(), reason=f"{SHARED_MODELS} is not there")
def test_end_tokens_of_published_models() -> None:
    qwen3 = ModelDirectory.load(SHARED_MODELS / "qwen3")
    assert qwen3.eos_token_ids(_Ids({"<|im_end|>": 151645})) == (151645, 151643)
    assert len(qwen3.additional_special_tokens) == 13
    gpt_oss = ModelDirectory.load(SHARED_MODELS / "gpt-oss")
    assert gpt_oss.eos_token_ids(_Ids({"<|return|>": 200002})) == (200002, 199999, 200012)


class _Ids(dict[str, int]):
    def token_to_id(self, token: str) -> int | None:
        return self.get(token)


def test_the_packages_own_model() -> None:
    model = ModelDirectory.load(PACKAGE_MODEL)
    assert model.special_tokens["eos_token"] == "<|im_end|>"
    assert model.context_length
    assert list(model.chat_templates) == ["default"]


def test_a_tokenizer_is_enough(tmp_path: Path) -> None:
    model = load(tmp_path)
    assert model.tokenizer_file == tmp_path / "tokenizer.json"
    assert model.context_length is None
    assert model.vocab_size is None
    assert model.special_tokens == {}
    assert model.chat_templates == {}
    assert model.eos_token_ids(Words("a")) == ()


# --- Configuration


@pytest.mark.parametrize(
    "key",
    [
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ],
)
def test_context_length_by_any_of_its_names(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, config={key: 4096}).context_length == 4096
    assert load(tmp_path, config={"text_config": {key: 2048, "vocab_size": 7}}).context_length == 2048


def test_a_nested_text_model(tmp_path: Path) -> None:
    model = load(tmp_path, config={"model_type": "vlm", "text_config": {"vocab_size": 7, "eos_token_id": [3, 4]}})
    assert model.vocab_size == 7
    assert model.eos_token_ids(Words()) == (3, 4)


def test_sampling_defaults(tmp_path: Path) -> None:
    config = load(
        tmp_path, generation_config={"temperature": 0.6, "top_k": 20, "top_p": 1, "new": {}}
    ).generation_config
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.6, 20, 1.0, None)


def test_end_tokens_come_from_the_tokenizer_and_the_generation_config(tmp_path: Path) -> None:
    words = Words("a", "b", "</s>")
    tokenizer_config = {"eos_token": "</s>"}
    model = load(tmp_path, tokenizer_config=tokenizer_config, config={"eos_token_id": 7})
    assert model.eos_token_ids(words) == (2, 7)
    model = load(
        tmp_path,
        tokenizer_config=tokenizer_config,
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [9, 2, 9]},
    )
    assert model.eos_token_ids(words) == (2, 9)
    model = load(tmp_path, tokenizer_config={"eos_token": "not in it"}, generation_config={"eos_token_id": 0})
    assert model.eos_token_ids(words) == (0,)


def test_special_tokens_in_each_of_their_forms(tmp_path: Path) -> None:
    added = {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False, "special": True}
    model = load(
        tmp_path,
        tokenizer_config={
            "bos_token": added,
            "eos_token": "</s>",
            "unk_token": None,
            "model_max_length": 1000000000000000019884624838656,
            "additional_special_tokens": [added | {"content": "<x>"}, "<y>"],
        },
    )
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert model.additional_special_tokens == ("<x>", "<y>")
    assert load(
        tmp_path, tokenizer_config={"extra_special_tokens": {"image_token": "<i>"}}
    ).additional_special_tokens == ("<i>",)


def test_the_older_special_tokens_file_fills_in(tmp_path: Path) -> None:
    model = load(
        tmp_path,
        tokenizer_config={"eos_token": "<new>"},
        special_tokens_map={
            "eos_token": "<old>",
            "pad_token": {"content": "<pad>"},
            "additional_special_tokens": ["<a>"],
        },
    )
    assert model.special_tokens == {"eos_token": "<new>", "pad_token": "<pad>"}
    assert model.additional_special_tokens == ("<a>",)


def test_numbers_that_only_python_reads_as_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"vocab_size": 5, "time_step_limit": [0.0, Infinity]}')
    assert ModelDirectory.load(tmp_path).vocab_size == 5


# --- Templates


def test_the_template_in_the_tokenizers_configuration(tmp_path: Path) -> None:
    assert templates(load(tmp_path, tokenizer_config={"chat_template": "c"})) == {"default": "c"}


def test_named_templates_in_the_tokenizers_configuration(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert templates(load(tmp_path, tokenizer_config={"chat_template": named})) == {"default": "d", "tool_use": "t"}


def test_a_template_of_its_own_file_wins_over_those_in_the_configurations(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    files: dict[str, object] = {
        "tokenizer_config": {"chat_template": named},
        "chat_template": {"chat_template": "processor"},
    }
    assert templates(load(tmp_path, **files)) == {"default": "processor", "tool_use": "t"}
    (tmp_path / "chat_template.jinja").write_text("é file", "utf-8")
    assert templates(load(tmp_path, **files)) == {"default": "é file"}


def test_additional_template_files(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("t")
    (tmp_path / "chat_template.jinja").write_text("d")
    model = load(tmp_path)
    assert templates(model) == {"default": "d", "tool_use": "t"}
    assert model.chat_templates["tool_use"].origin == str(tmp_path / "additional_chat_templates/tool_use.jinja")


# --- What cannot be read


def test_what_is_no_directory_is_no_model(tmp_path: Path) -> None:
    for path in ("Qwen/Qwen3-0.6B", str(tmp_path / "missing"), __file__):
        with pytest.raises(ModelDirectoryError, match=r"not a (directory|GGUF file)"):
            ModelDirectory.load(path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json: no such file"):
        ModelDirectory.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", '{"vocab_size": ', "not JSON"),
        ("config.json", "[" * 100_000, "not JSON"),
        ("config.json", "[]", "Expected `object`"),
        ("config.json", '{"vocab_size": "many"}', r"\$\.vocab_size"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', r"\$\.eos_token_id"),
        ("tokenizer_config.json", '{"eos_token": 5}', r"\$\.eos_token"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}', r"\$\.chat_template\[0\]"),
        ("special_tokens_map.json", '{"pad_token": {"id": 1}}', r"\$\.pad_token"),
        ("chat_template.json", "{}", "chat_template"),
        ("chat_template.jinja", b"\xff\xfe", "not UTF-8"),
        ("config.json", b'{"a": "\xff"}', "not UTF-8"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: str | bytes, complaint: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelDirectoryError, match=f"{name}: .*{complaint}"):
        ModelDirectory.load(tmp_path)


@pytest.mark.parametrize(("name", "most"), [("config.json", 64 << 20), ("chat_template.jinja", 1 << 20)])
def test_a_file_that_is_absurdly_large_is_not_read(tmp_path: Path, name: str, most: int) -> None:
    load(tmp_path)
    with (tmp_path / name).open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(ModelDirectoryError, match=rf"{re.escape(name)}: {most + 1} bytes; the limit is {most}"):
        ModelDirectory.load(tmp_path)
