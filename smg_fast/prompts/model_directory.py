"""The files of a model's directory that tell how to prompt it. Nothing else is read; a GGUF file is unpacked first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from .errors import ModelDirectoryError
from .gguf import unpack

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

_T = TypeVar("_T")


#: Bytes of a chat template, and of a configuration: nothing else happens while they are parsed.
_MAX_TEMPLATE = 1 << 20
_MAX_JSON = 64 << 20


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What we read of ``config.json``, or of the ``text_config`` in one."""

    architectures: list[str] = []
    model_type: str | None = None
    vocab_size: int | None = None
    eos_token_id: int | list[int] | None = None
    text_config: ModelConfig | None = None
    # Families call the length of the context by different names.
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    max_seq_len: int | None = None
    max_sequence_length: int | None = None
    seq_length: int | None = None
    n_ctx: int | None = None
    model_max_length: int | None = None

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and output together that the model was made for, if it says so."""
        lengths = (
            self.max_position_embeddings,
            self.n_positions,
            self.max_seq_len,
            self.max_sequence_length,
            self.seq_length,
            self.n_ctx,
            self.model_max_length,
            self.text_config.context_length if self.text_config else None,
        )
        return next(filter(None, lengths), None)


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What we read of ``generation_config.json``; ``None`` where it says nothing."""

    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


class TemplateSource(msgspec.Struct, frozen=True):
    """``origin`` is the file, for messages."""

    text: str
    origin: str


class Vocabulary(Protocol):
    def token_to_id(self, token: str, /) -> int | None: ...


class ModelDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A model directory in Hugging Face's layout, without its weights."""

    path: Path
    tokenizer_file: Path
    config: ModelConfig
    generation_config: GenerationConfig
    special_tokens: dict[str, str]
    """By role (``bos_token``, ``eos_token``, ...); roles that the model does not have are left out."""
    additional_special_tokens: tuple[str, ...]
    chat_templates: dict[str, TemplateSource]
    """By name. ``default`` is the model's chat template, ``tool_use`` the one for requests with tools."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ModelDirectory:
        """Read a directory, or the one that a GGUF file unpacks to.

        ``tokenizer.json`` must be there (it is not opened); of the others nothing is known where they are missing.

        Raises
        ------
        ModelDirectoryError
            Neither of them, no tokenizer, or a file that does not hold what it should; the message names the file.
        """
        root = Path(path)
        if root.is_file():
            root = unpack(root)
        elif not root.is_dir():
            raise ModelDirectoryError(
                f"{root}: not a directory, nor a GGUF file (models are read from local files only)"
            )
        tokenizer_file = root / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ModelDirectoryError(f"{tokenizer_file}: no such file")
        tokenizer_config = _read_struct(root / "tokenizer_config.json", _TokenizerConfig)
        # Written beside tokenizer_config.json by older versions of transformers; the newer file wins.
        special_tokens_map = _read_struct(root / "special_tokens_map.json", _SpecialTokens)
        return cls(
            path=root,
            tokenizer_file=tokenizer_file,
            config=_read_struct(root / "config.json", ModelConfig),
            generation_config=_read_struct(root / "generation_config.json", GenerationConfig),
            special_tokens=special_tokens_map.by_role() | tokenizer_config.by_role(),
            additional_special_tokens=tokenizer_config.additional() or special_tokens_map.additional(),
            chat_templates=_chat_templates(root, tokenizer_config),
        )

    @property
    def context_length(self) -> int | None:
        return self.config.context_length

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, which may be more than the tokenizer has tokens."""
        nested = self.config.text_config
        return self.config.vocab_size or (nested.vocab_size if nested else None)

    def eos_token_ids(self, vocabulary: Vocabulary) -> tuple[int, ...]:
        """Ids that end an answer, each once.

        The tokenizer's own ``eos_token`` is the first; then those of ``generation_config.json``, or where that names
        none, of ``config.json``.
        """
        eos_token = self.special_tokens.get("eos_token")
        own = vocabulary.token_to_id(eos_token) if eos_token is not None else None
        nested = self.config.text_config
        configured = (
            _ids(self.generation_config.eos_token_id)
            or _ids(self.config.eos_token_id)
            or _ids(nested.eos_token_id if nested else None)
        )
        return tuple(dict.fromkeys((*_ids(own), *configured)))


def read_template(path: Path) -> TemplateSource:
    """Raises ``ModelDirectoryError``."""
    return TemplateSource(_read_text(path, _MAX_TEMPLATE), str(path))


class _AddedToken(msgspec.Struct, frozen=True):
    content: str


class _SpecialTokens(msgspec.Struct, frozen=True, kw_only=True):
    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    sep_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    cls_token: str | _AddedToken | None = None
    mask_token: str | _AddedToken | None = None
    additional_special_tokens: list[str | _AddedToken] | None = None
    # A list, or a dictionary by the name of the token's part (image_token, ...).
    extra_special_tokens: list[str | _AddedToken] | dict[str, str | _AddedToken] | None = None

    def by_role(self) -> dict[str, str]:
        tokens = {role: getattr(self, role) for role in SPECIAL_TOKENS}
        return {role: _token_text(token) for role, token in tokens.items() if token is not None}

    def additional(self) -> tuple[str, ...]:
        extra = self.extra_special_tokens or []
        extra = list(extra.values()) if isinstance(extra, dict) else extra
        return tuple(map(_token_text, (*(self.additional_special_tokens or []), *extra)))


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfig(_SpecialTokens, frozen=True, kw_only=True):
    chat_template: str | list[_NamedTemplate] | dict[str, str] | None = None


class _ProcessorTemplate(msgspec.Struct, frozen=True):
    chat_template: str


def _chat_templates(root: Path, tokenizer_config: _TokenizerConfig) -> dict[str, TemplateSource]:
    """Templates by name; later files win, as in transformers."""
    embedded = tokenizer_config.chat_template
    if isinstance(embedded, str):
        embedded = {"default": embedded}
    elif isinstance(embedded, list):
        embedded = {named.name: named.template for named in embedded}
    origin = root / "tokenizer_config.json"
    templates = {
        name: TemplateSource(text, f"{origin} (chat_template {name!r})") for name, text in (embedded or {}).items()
    }
    processor_file = root / "chat_template.json"
    if processor_file.is_file():
        text = _convert(processor_file, _read_json(processor_file), _ProcessorTemplate).chat_template
        templates["default"] = TemplateSource(text, str(processor_file))
    template_file = root / "chat_template.jinja"
    if template_file.is_file():
        # It stands for all that the configuration holds, the one for tools included.
        templates = {"default": read_template(template_file)}
    for file in sorted((root / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = read_template(file)
    return templates


def _read_struct(path: Path, struct: type[_T]) -> _T:
    """A file that does not exist is an empty object."""
    return _convert(path, _read_json(path) if path.is_file() else {}, struct)


def _convert(path: Path, value: Any, struct: type[_T]) -> _T:
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError as error:
        raise ModelDirectoryError(f"{path}: {error}") from None


def _read_json(path: Path) -> Any:
    # The standard library's parser: configurations may hold Infinity and NaN.
    try:
        return json.loads(_read_text(path, _MAX_JSON))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelDirectoryError(f"{path}: not JSON: {error}") from None


def _read_text(path: Path, most: int) -> str:
    try:
        size = path.stat().st_size
        if size > most:
            raise ModelDirectoryError(f"{path}: {size} bytes; the limit is {most}")
        return path.read_text("utf-8")
    except OSError as error:
        raise ModelDirectoryError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelDirectoryError(f"{path}: not UTF-8: {error}") from None


def _token_text(token: str | _AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _ids(value: int | list[int] | None) -> Iterable[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value
