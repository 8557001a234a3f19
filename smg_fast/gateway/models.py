"""The models this gateway serves, as prompts and answers need them."""

from __future__ import annotations

import functools
import logging
import math
import time
from pathlib import Path
from typing import Literal

import msgspec

from .._codec import ReadyResponse, Tokenizer
from ..engines import Capabilities
from ..prompts.chat_template import ChatTemplate
from ..prompts.encoder import PromptEncoder, PromptThreads
from ..prompts.errors import ModelDirectoryError
from ..prompts.model_directory import ModelDirectory
from .limits import MAX_TOKENS, RANGES, Limits, Range, SamplingDefaults
from .plans import Plans

logger = logging.getLogger(__name__)


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files, loaded. ``name`` is for messages: clients call it as its workers say."""

    name: str
    directory: ModelDirectory
    tokenizer: Tokenizer
    encoder: PromptEncoder
    eos_token_ids: tuple[int, ...]
    plans: Plans
    defaults: SamplingDefaults
    created: int

    @classmethod
    def load(
        cls,
        path: Path,
        name: str,
        threads: PromptThreads,
        *,
        chat_template: Path | None = None,
        generation_config: Literal["auto", "none"] = "auto",
    ) -> ServedModel:
        """Read a model's directory.

        With ``generation_config`` its ``generation_config.json`` has a say in how to sample where a request has none.
        Raises ``ModelDirectoryError``.
        """
        directory = ModelDirectory.load(path)
        try:
            tokenizer = Tokenizer.from_file(str(directory.tokenizer_file))
        except (OSError, ValueError) as error:
            raise ModelDirectoryError(f"{directory.tokenizer_file}: {error}") from None
        template = ChatTemplate.from_model(directory, chat_template)
        eos_token_ids = directory.eos_token_ids(tokenizer)
        return cls(
            name=name,
            directory=directory,
            tokenizer=tokenizer,
            encoder=PromptEncoder(tokenizer, template, threads),
            eos_token_ids=eos_token_ids,
            plans=Plans(tokenizer, eos_token_ids),
            defaults=_sampling_defaults(directory) if generation_config == "auto" else SamplingDefaults(),
            created=int(time.time()),
        )

    def limits(self, ready: ReadyResponse | None, engine_count: int = 1, *, shared_out: bool = False) -> Limits:
        """Where the engine does not say how long its context is, the model's own length counts.

        Some models say 10**30 for "no limit", hence one here.
        """
        told = ready.max_model_len if ready is not None else None
        context = told or self.directory.context_length
        return Limits(
            vocab_size=self.directory.vocab_size or self.tokenizer.vocab_size,
            max_model_len=None if context is None else min(context, MAX_TOKENS),
            engine_count=engine_count,
            shared_out=shared_out,
        )

    def defaults_with(self, capabilities: Capabilities) -> SamplingDefaults:
        """What of the defaults an engine can honour: no request that says nothing is refused for them."""
        return _honoured(self.name, self.defaults, capabilities)


def _sampling_defaults(directory: ModelDirectory) -> SamplingDefaults:
    """Raises ``ModelDirectoryError`` for a value that every request would be refused for."""
    config = directory.generation_config
    defaults = SamplingDefaults(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        repetition_penalty=config.repetition_penalty,
        max_tokens=config.max_new_tokens,
    )
    bounds = {**RANGES, "top_k": Range(-1, math.inf), "max_new_tokens": Range(1, math.inf)}
    given = {**defaults.sampling(), "max_new_tokens": defaults.max_tokens}
    for name, value in given.items():
        if value is not None and value not in bounds[name]:
            raise ModelDirectoryError(
                f"{directory.path / 'generation_config.json'}: {name} must be {bounds[name]}, got {value}; "
                "--generation-config none leaves such defaults out"
            )
    return defaults


#: Models and families at a time, of which the warning is given once.
_FEW = 256


@functools.lru_cache(maxsize=_FEW)
def _honoured(model: str, defaults: SamplingDefaults, capabilities: Capabilities) -> SamplingDefaults:
    most = capabilities.max_top_k
    if most is None or defaults.top_k is None or defaults.top_k <= most:
        return defaults
    logger.warning(
        "%s: the engine's top_k is at most %d, the default of %d in generation_config.json is left out",
        model,
        most,
        defaults.top_k,
    )
    return msgspec.structs.replace(defaults, top_k=None)


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
