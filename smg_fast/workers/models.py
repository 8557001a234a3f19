"""Models, each loaded once however many workers serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

ModelT = TypeVar("ModelT")


class ModelSource(msgspec.Struct, frozen=True):
    """All that a loaded model follows from: its resolved directory or file, and how the operator wants it prompted."""

    path: Path
    chat_template: Path | None
    generation_config: Literal["auto", "none"]


class _Entry(Generic[ModelT]):
    """A model with its holders; those that still wait for it count."""

    __slots__ = ("holders", "loading")

    def __init__(self, loading: asyncio.Task[ModelT]) -> None:
        self.loading = loading
        self.holders = 0


class SharedModels(Generic[ModelT]):
    """Loads models in threads, and forgets each when nobody holds it any more."""

    def __init__(self, load: Callable[[ModelSource], ModelT]) -> None:
        self._load = load
        self._entries: dict[ModelSource, _Entry[ModelT]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def acquire(self, source: ModelSource) -> ModelT:
        """The model, for as long as it is not released. Raises whatever loading it does; then there is no holder."""
        entry = self._entries.get(source)
        if entry is None:
            loading = asyncio.create_task(asyncio.to_thread(self._load, source), name=f"load {source.path}")
            entry = self._entries[source] = _Entry(loading)
        entry.holders += 1
        try:
            # Whoever gives up does so for itself.
            return await asyncio.shield(entry.loading)
        except BaseException:
            self.release(source)
            raise

    def release(self, source: ModelSource) -> None:
        """To be called once for each time the model was acquired."""
        entry = self._entries[source]
        entry.holders -= 1
        if not entry.holders:
            entry.loading.cancel()
            del self._entries[source]
