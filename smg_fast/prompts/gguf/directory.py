"""A GGUF file, unpacked once into a model directory of Hugging Face's layout."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ModelDirectoryError
from .metadata import Metadata
from .tokenizer import Vocabulary, tokenizer_json

#: Part of a cached directory's name: to be raised when the same file unpacks to something else.
_VERSION = 1

#: Roles of tokens in ``tokenizer_config.json``, by their names in a GGUF file.
_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # the specification spells it so
    "mask": "mask_token",
    "cls": "cls_token",
}

#: Tokens that end a turn, whatever the file says of them: it names one, and a model may use another.
_TURN_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
    )
)
#: In this family a turn goes on after one of those.
_HARMONY = frozenset(("<|return|>", "<|call|>", "<|end|>"))


def unpack(file: Path, cache: Path | None = None) -> Path:
    """The model directory made of a GGUF file: tokenizer, chat templates and configuration, without the weights.

    It is made once and kept in ``cache`` (default: ``$XDG_CACHE_HOME/smg-fast``, or ``~/.cache/smg-fast``) under the
    file's path, size and time of change.

    Raises
    ------
    ModelDirectoryError
        The file cannot be read or holds a tokenizer of an unknown kind, or the cache cannot be written.
    """
    file = file.absolute()
    try:
        directory = (cache or _user_cache()) / "gguf" / _key(file)
    except OSError as error:
        raise ModelDirectoryError(f"{file}: {error.strerror}") from None
    if directory.is_dir():
        return directory
    contents = _contents(Metadata.read(file))
    try:
        _write(directory, contents)
    except OSError as error:
        raise ModelDirectoryError(f"{directory}: cannot be written: {error.strerror}") from None
    return directory


def context_length(file: Path) -> int | None:
    """Tokens of prompt and output together that the model in a GGUF file was made for, if it says so.

    Raises ``ModelDirectoryError`` for a file that cannot be read.
    """
    return _context_length(Metadata.read(file))


def _context_length(metadata: Metadata) -> int | None:
    return metadata.integer(f"{metadata.string('general.architecture')}.context_length")


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "smg-fast"


def _key(file: Path) -> str:
    status = file.stat()
    identity = f"{_VERSION}\0{file}\0{status.st_size}\0{status.st_mtime_ns}"
    return f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _write(directory: Path, contents: dict[str, bytes]) -> None:
    """All or nothing, though several processes may do it at once."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, content in contents.items():
            (made / name).write_bytes(content)
        made.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process was faster, and wrote the same
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _contents(metadata: Metadata) -> dict[str, bytes]:
    """Files by name."""
    vocabulary = Vocabulary(metadata)
    tokenizer_config: dict[str, Any] = {
        role: vocabulary.tokens[id] for name, role in _ROLES.items() if (id := vocabulary.special(name)) is not None
    }
    if templates := _chat_templates(metadata):
        tokenizer_config["chat_template"] = templates
    return {
        "tokenizer.json": tokenizer_json(metadata, vocabulary),
        "tokenizer_config.json": msgspec.json.encode(tokenizer_config),
        "config.json": msgspec.json.encode(
            {
                "model_type": metadata.string("general.architecture"),
                "vocab_size": len(vocabulary.tokens),
                "max_position_embeddings": _context_length(metadata),
            }
        ),
        "generation_config.json": msgspec.json.encode({"eos_token_id": _ends(vocabulary)}),
    }


def _chat_templates(metadata: Metadata) -> list[dict[str, str]]:
    names = metadata.strings("tokenizer.chat_templates") or []
    keys = {"default": "tokenizer.chat_template"} | {name: f"tokenizer.chat_template.{name}" for name in names}
    templates = {name: metadata.string(key) for name, key in keys.items()}
    return [{"name": name, "template": template} for name, template in templates.items() if template is not None]


def _ends(vocabulary: Vocabulary) -> list[int]:
    """Ids that end an answer: those the file names, and those known by their text."""
    known = {token for token in _TURN_ENDS if token in vocabulary.ids}
    if known >= _HARMONY:
        known.discard("<|end|>")
    named = (vocabulary.special(role) for role in ("eos", "eot", "eom"))
    return list(dict.fromkeys((*(id for id in named if id is not None), *sorted(vocabulary.ids[t] for t in known))))
