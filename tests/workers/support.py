"""What the tests of workers share."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from smg_fast._codec import Tokenizer
from smg_fast.embedded import MODEL_DIRECTORY as MODEL
from smg_fast.workers import ModelSource, WorkerSpec
from smg_fast.workers import Worker as AnyWorker

PATIENCE = 20.0

Worker = AnyWorker[Tokenizer]
Serve = Callable[..., Awaitable[Worker]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def spec(directory: Path, name: str, *names: str, **options: Any) -> WorkerSpec:
    given = {
        "model": MODEL,
        "runtime": "tokenspeed",
        "handshake_address": f"tcp://127.0.0.1:{free_port()}",
        **options,
    }
    return WorkerSpec(url=f"ipc://{directory}/{name}", served_model_names=names, **given)


class Loader:
    """Loads tokenizers, and remembers which. While ``goes_on`` is clear, it waits."""

    def __init__(self) -> None:
        self.loaded: list[ModelSource] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, source: ModelSource) -> Tokenizer:
        self.loaded.append(source)
        assert self.goes_on.wait(PATIENCE), "the event loop waits for the loading"
        return Tokenizer.from_file(str(source.path / "tokenizer.json"))


async def settled(worker: Worker, *states: str) -> str:
    """Its state, once it is one of these."""
    return await asyncio.wait_for(worker.wait_for(lambda state: state in states), PATIENCE)


__all__ = ["MODEL", "PATIENCE", "Loader", "Serve", "Worker", "files", "free_port", "settled", "spec"]
