"""Real processes and real sockets for the gateway's tests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.server import GatewayServer
from smg_fast.settings import GatewaySettings, WorkerSettings

#: Seconds after which something that should happen is taken not to.
PATIENCE = 20.0
COMMAND = (sys.executable, "-m", "smg_fast")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


T = TypeVar("T")


class Counters(msgspec.Struct, frozen=True):
    """What the simulator says of itself."""

    adds: int
    aborted: int
    finished: int
    live: int
    tokens: int
    violations: int


class Simulator:
    """A simulated engine, in its own process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def counters(self) -> Counters:
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        return msgspec.json.decode(line, type=Counters)

    async def idle(self) -> Counters:
        """Wait until it has nothing to do."""
        return await eventually(self.counters, lambda counters: counters.live == 0)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def eventually(look: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """What ``look`` returns, once it fits: for what another process does in its own time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not fits(seen := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"still {seen}"
        await asyncio.sleep(0.01)
    return seen


@asynccontextmanager
async def simulator(handshake: str, *options: str) -> AsyncIterator[Simulator]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "simulate", "--handshake", handshake, *options, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Simulator(process)
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE)


@asynccontextmanager
async def gateway(
    runtime: str = "tokenspeed", model: Path = MODEL_DIRECTORY, worker: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[GatewayServer]:
    """A gateway in this process, with the model as ``sim``; its engine is up to the caller.

    ``worker`` and ``settings`` are ``WorkerSettings`` and ``GatewaySettings``.
    """
    # Shorter than tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        worker_settings = WorkerSettings(
            worker=f"ipc://{directory}/e",
            runtime=runtime,
            model=str(model),
            served_model_name=("sim",),
            handshake_address=f"tcp://127.0.0.1:{free_port()}",
            **(worker or {}),
        )
        server = GatewayServer(GatewaySettings(port=0, **settings), [worker_settings])
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@asynccontextmanager
async def served(
    *options: str, runtime: str = "tokenspeed", model: Path = MODEL_DIRECTORY, **settings: Any
) -> AsyncIterator[tuple[GatewayServer, Simulator]]:
    """A gateway and its engine, both ready. ``options`` are the simulator's."""
    async with gateway(runtime, model, **settings) as server:
        own = ("--runtime", runtime, "--model", str(model))
        async with simulator(server.handshakes[0], *own, *options) as engine:
            await asyncio.wait_for(server.wait_ready(), PATIENCE)
            yield server, engine


@contextmanager
def serving(*options: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The URL of a gateway with a simulator, in processes of their own: ``smg-fast serve``. They end well."""
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--backend", "simulator", "--port", "0", *options],
            stdout=subprocess.PIPE,
            env={**os.environ, "SMG_ZMQ_SOCKET_DIR": directory, **(environment or {})},
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            assert ready is not None, "it did not become ready"
            yield ready[0]
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert not any(Path(directory).iterdir())


class Program:
    """``smg-fast`` as a user runs it. Its lines are kept as they are read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output: list[str] = []

    async def line(self, pattern: str) -> re.Match[str]:
        """The next line of its standard output or error that has the pattern in it."""
        try:
            return await asyncio.wait_for(self._line(pattern), PATIENCE)
        except asyncio.TimeoutError:
            raise AssertionError(f"no line with {pattern!r} after {''.join(self.output)}") from None

    async def _line(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        while raw := await self.process.stdout.readline():
            self.output.append(raw.decode())
            if match := re.search(pattern, self.output[-1]):
                return match
        raise AssertionError(f"it ended without {pattern!r}: {''.join(self.output)}")

    async def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process.stdout is not None
        rest = await asyncio.wait_for(self.process.stdout.read(), PATIENCE)
        self.output.append(rest.decode())
        return await asyncio.wait_for(self.process.wait(), PATIENCE)


@asynccontextmanager
async def program(*arguments: str, environment: dict[str, str] | None = None) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def events(body: bytes) -> list[Any]:
    """Data of server-sent events, in order; ``[DONE]`` as it is."""
    texts = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def texts(stream: Sequence[Any], index: int = 0) -> str:
    """Content of one choice of a chat's stream, joined."""
    choices = [choice for event in stream if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices if choice["index"] == index)
