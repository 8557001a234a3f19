"""Trains the small tokenizer that ships with the simulator: ``python smg_fast/embedded/train_tokenizer.py``.

Nothing is downloaded. The text is the English that every interpreter carries: the docstrings of its standard library
and the language reference behind ``help()`` (``pydoc_data.topics``). Another interpreter version gives slightly other
merges; the committed files come from CPython 3.11.

It needs the ``tokenizers`` package and overwrites the files in ``smg_fast/embedded/model``.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCABULARY = 4096
CONTEXT = 8192
END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Contractions, words with the space before them, single digits, punctuation with the newlines after it, newlines,
# spaces: the way the Qwen and GPT-4 families cut text, so that what is tried here behaves there.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def corpus() -> Iterator[str]:
    """English text found on any machine with a Python interpreter."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for source in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3", "idlelib"}.isdisjoint(source.parts):
            yield from _docstrings(source)
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    yield from topics.values()


def _docstrings(source: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=SyntaxWarning)
        try:
            tree = ast.parse(source.read_bytes())
        except SyntaxError:
            return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def train() -> Tokenizer:
    """A ByteLevel BPE tokenizer of ``VOCABULARY`` entries: 256 bytes, the merges, and last the three special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes the model directory: tokenizer, chat template, and the configuration a gateway reads."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    stops: dict[str, object] = {
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[TURN_END],
        "pad_token_id": ids[END_OF_TEXT],
    }
    files: dict[str, dict[str, object]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
        "config.json": {
            "max_position_embeddings": CONTEXT,
            "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
            **stops,
        },
        "generation_config.json": stops,
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Train the tokenizer that ships with the simulator.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "model", metavar="DIR")
    output: Path = parser.parse_args().output
    write(train(), output)
    size = sum(file.stat().st_size for file in output.iterdir())
    print(f"{output}: {size / 1000:.0f} kB, CPython {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
