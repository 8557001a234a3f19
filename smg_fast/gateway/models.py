"""The models this gateway serves, as prompts and answers need them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from .._codec import ReadyResponse, Tokenizer
from ..prompts.chat_template import ChatTemplate
from ..prompts.encoder import PromptEncoder, PromptThreads
from ..prompts.errors import ModelDirectoryError
from ..prompts.model_directory import ModelDirectory
from .validation import MAX_TOKENS, Limits


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files, loaded."""

    name: str
    directory: ModelDirectory
    tokenizer: Tokenizer
    encoder: PromptEncoder
    eos_token_ids: tuple[int, ...]
    created: int

    @classmethod
    def load(cls, path: Path, name: str, threads: PromptThreads, *, chat_template: Path | None = None) -> ServedModel:
        """Read a model's directory. Raises ``ModelDirectoryError``."""
        directory = ModelDirectory.load(path)
        try:
            tokenizer = Tokenizer.from_file(str(directory.tokenizer_file))
        except (OSError, ValueError) as error:
            raise ModelDirectoryError(f"{directory.tokenizer_file}: {error}") from None
        template = ChatTemplate.from_model(directory, chat_template)
        return cls(
            name=name,
            directory=directory,
            tokenizer=tokenizer,
            encoder=PromptEncoder(tokenizer, template, threads),
            eos_token_ids=directory.eos_token_ids(tokenizer),
            created=int(time.time()),
        )

    def limits(self, ready: ReadyResponse | None) -> Limits:
        """Where the engine does not say how long its context is, the model's own length counts.

        Some models say 10**30 for "no limit", hence one here.
        """
        told = ready.max_model_len if ready is not None else None
        context = told or self.directory.context_length
        return Limits(
            vocab_size=self.directory.vocab_size or self.tokenizer.vocab_size,
            max_model_len=None if context is None else min(context, MAX_TOKENS),
        )


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /v1/models``."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "smg-fast"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelCard]
    object: str = "list"
