"""The engines that the end-to-end suite runs over, and what each can do.

An engine that is added here gets every test that it does not lack a capability for.
"""

from __future__ import annotations

import enum
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from smg_fast.embedded import MODEL_DIRECTORY


class Capability(enum.Enum):
    """What a test may ask of an engine besides answering."""

    ECHO = "says back the last message, token for token"
    COUNTERS = "prints its counters, as a line of JSON, on SIGUSR1"
    FAULTS = "misbehaves on request"


class Engine(msgspec.Struct, frozen=True):
    """One kind of engine.

    ``command`` gives the arguments of ``smg-fast`` that start it, for a handshake address; ``missing`` says why it
    cannot run here, if it cannot.
    """

    name: str
    runtime: str
    model: Path
    command: Callable[[str], list[str]]
    capabilities: frozenset[Capability]
    missing: str | None = None


def _simulate(handshake: str) -> list[str]:
    return ["simulate", "--handshake", handshake, "--tick-ms", "2", "--max-running", "1024"]


ENGINES = {
    engine.name: engine
    for engine in [
        Engine(
            name="tokenspeed-simulator",
            runtime="tokenspeed",
            model=MODEL_DIRECTORY,
            command=_simulate,
            capabilities=frozenset(Capability),
        )
    ]
}


class EngineProcess:
    """An engine that dials a gateway. Leaving the context ends it."""

    def __init__(self, engine: Engine, handshake: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "smg_fast", *engine.command(handshake), *options], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def counters(self) -> dict[str, Any]:
        """Needs ``Capability.COUNTERS``."""
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout is not None
        counters = json.loads(self._process.stdout.readline())
        assert isinstance(counters, dict)
        return counters

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.communicate()
