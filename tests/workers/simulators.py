"""Simulated engines, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator


class Simulator:
    """An engine's process, and what it says on its outputs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = ""

    @classmethod
    async def start(cls, handshake: str, index: int, *options: str) -> Simulator:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "smg_fast.embedded.simulator"),
            *("--handshake", handshake, "--index", str(index), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def says(self, words: str) -> None:
        """Return when it has said so in its log, or had before."""
        assert self._process.stderr is not None
        while words not in self._said:
            line = await asyncio.wait_for(self._process.stderr.readline(), 20)
            assert line, f"the engine has ended, and said: {self._said}"
            self._said += line.decode()

    async def counters(self) -> dict[str, int]:
        """What it has done."""
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout is not None
        counters: dict[str, int] = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 10))
        return counters

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    async def ended(self) -> None:
        """Return when it has; its code is not looked at."""
        await self._process.wait()


@contextlib.asynccontextmanager
async def simulators(handshake: str, count: int, *options: str, first: int = 0) -> AsyncIterator[list[Simulator]]:
    """Engines that dial, numbered from ``first`` on; killed at the end, if they have not ended before."""
    engines: list[Simulator] = []
    try:
        for index in range(first, first + count):
            engine = await Simulator.start(handshake, index, *options)
            engines.append(engine)
        yield engines
    finally:
        for engine in engines:
            with contextlib.suppress(ProcessLookupError):
                engine.kill()
            await engine.ended()
