"""A client with its sockets in a directory of its own, and what a request to it needs."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import EngineFamily, family
from smg_fast.transport import EngineClient, WorkerAddresses, worker_addresses

from .engine import ScriptedEngine

MODEL = Path(__file__).parents[2] / "smg_fast" / "embedded" / "model"


@pytest.fixture
def addresses() -> Iterator[WorkerAddresses]:
    # Shorter than tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="smg-") as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        yield worker_addresses(f"ipc://{directory}/e", f"tcp://127.0.0.1:{port}")


@pytest.fixture
async def start(addresses: WorkerAddresses) -> AsyncIterator[Callable[..., Awaitable[EngineClient]]]:
    """Start a client, with the options given."""
    clients = []

    async def start(engines: EngineFamily | None = None, **options: Any) -> EngineClient:
        client = EngineClient(engines or family("tokenspeed"), addresses, **options)
        await client.start()
        clients.append(client)
        return client

    yield start
    for client in clients:
        # Every generation is counted on exactly one engine, and no longer than it is in flight.
        assert sum(engine.in_flight for engine in client.engines) == client.in_flight
        await client.close()
        assert client.in_flight == 0


@pytest.fixture
def dial(addresses: WorkerAddresses) -> Iterator[Callable[..., Awaitable[ScriptedEngine]]]:
    """Engines that register; closed at the end, as one that is left open keeps the interpreter from ending."""
    engines = []

    async def dial(index: int = 0, **options: Any) -> ScriptedEngine:
        engine = await ScriptedEngine.dial(addresses.handshake, index, **options)
        engines.append(engine)
        return engine

    yield dial
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))
