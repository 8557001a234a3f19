"""A registry, and engines for its workers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.workers import Registry
from tests.transport.engine import ScriptedEngine

from .support import MODEL, Loader, Serve, Worker, settled, spec


@pytest.fixture
def directory() -> Iterator[Path]:
    """Shorter than ``tmp_path``: the path of a Unix socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The model in another directory: another model."""
    return Path(shutil.copytree(MODEL, tmp_path / "copy"))


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
async def registry(loader: Loader) -> AsyncIterator[Registry[Tokenizer]]:
    registry = Registry(loader)
    yield registry
    await registry.close()


@pytest.fixture
async def engines() -> AsyncIterator[list[ScriptedEngine]]:
    """Those that a test has started, which end with it."""
    engines: list[ScriptedEngine] = []
    yield engines
    for engine in engines:
        engine.close()


@pytest.fixture
def serve(registry: Registry[Tokenizer], directory: Path, engines: list[ScriptedEngine]) -> Serve:
    """Registers a worker, which is ready then, or without an ``engine`` waits for it."""

    async def serve(name: str, *names: str, engine: bool = True, **options: Any) -> Worker:
        worker = registry.add(spec(directory, name, *names, **options))
        assert await settled(worker, "connecting", "failed") == "connecting", worker.reason
        if engine:
            engines.append(await ScriptedEngine.dial(worker.client.addresses.handshake))
            await settled(worker, "ready")
        return worker

    return serve
