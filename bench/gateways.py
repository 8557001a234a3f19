"""The gateways that are measured: how each is started, with an engine of its own, and what it is to be asked.

All speak to the same engine, the simulator, and get the same load. The floor has no engine: it is what the kernel asks.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.processes import ProcessTree
from bench.results import FLOOR, OURS
from bench.scenarios import Scenario
from smg_fast.transport.addresses import worker_addresses

SMG_FAST = (sys.executable, "-m", "smg_fast")

_HOST = "127.0.0.1"
_MODEL = "bench"
_TEXT = "The harbour lay still under a thin grey light, and the first ferries had not yet begun to move. "
_PATIENCE = 60.0
_PROBE_PATIENCE = 15.0  # longer than the slowest engine's tick


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a gateway is measured: a directory and a port of its own, and what its engine is."""

    directory: Path
    port: int
    runtime: str
    model: Path
    tick_ms: float

    @property
    def worker(self) -> str:
        return f"ipc://{self.directory}/engine"


@dataclass(frozen=True, kw_only=True)
class Start:
    """How to start it.

    Attributes
    ----------
    model
        What requests call the model.
    handshake
        Where the engine dials. None: there is no engine.
    is_local
        What the engine says of itself in the handshake.
    """

    command: Sequence[str]
    model: str = _MODEL
    handshake: str | None = None
    is_local: bool = True


class Gateway(Protocol):
    """Something that answers chats."""

    @property
    def name(self) -> str: ...

    def can(self, runtime: str, scenario: Scenario) -> bool:
        """Whether there is something to measure."""

    def start(self, stage: Stage) -> Start: ...


@dataclass(frozen=True)
class SmgFast:
    """This gateway, or another build of it."""

    command: Sequence[str] = SMG_FAST
    name: str = OURS

    def can(self, runtime: str, scenario: Scenario) -> bool:
        return True

    def start(self, stage: Stage) -> Start:
        listen = ("--host", _HOST, "--port", f"{stage.port}", "--log-level", "warning")
        worker = ("--worker", stage.worker, "--runtime", stage.runtime)
        model = ("--model", f"{stage.model}", "--served-model-name", _MODEL)
        return Start(
            command=[*self.command, "launch", *listen, *worker, *model],
            handshake=worker_addresses(stage.worker).handshake,
        )


@dataclass(frozen=True)
class Smg:
    """The package ``smg``: its script of that name."""

    program: str
    name: str = "smg"

    def can(self, runtime: str, scenario: Scenario) -> bool:
        return scenario.peers

    def start(self, stage: Stage) -> Start:
        # It too takes the handshake's port from the worker's path. With one worker there is nothing to choose or retry.
        listen = ("--host", _HOST, "--port", f"{stage.port}", "--prometheus-port", f"{free_port()}")
        worker = ("--worker-urls", stage.worker, "--backend", stage.runtime, "--policy", "passthrough")
        health = ("--health-check-interval-secs", "1", "--health-success-threshold", "1")
        rest = ("--disable-retries", "--disable-circuit-breaker", "--log-level", "warn", *health)
        return Start(
            command=[self.program, "launch", *listen, *worker, "--model-path", f"{stage.model}", *rest],
            model=f"{stage.model}",
            handshake=worker_addresses(stage.worker).handshake,
        )


@dataclass(frozen=True)
class VllmRust:
    """vLLM's frontend in Rust: the program ``vllm-rs`` of its wheel. The engine is one of another host to it."""

    program: str
    name: str = "vllm-rs"

    def can(self, runtime: str, scenario: Scenario) -> bool:
        return runtime == "vllm" and scenario.peers

    def start(self, stage: Stage) -> Start:
        port = free_port()
        listen = ("--host", _HOST, "--port", f"{stage.port}")
        engines = ("--data-parallel-size", "1", "--data-parallel-size-local", "0")
        handshake = ("--data-parallel-address", _HOST, "--data-parallel-rpc-port", f"{port}")
        model = (f"{stage.model}", "--served-model-name", _MODEL)
        return Start(
            command=[self.program, "serve", *model, *listen, *engines, *handshake],
            handshake=f"tcp://{_HOST}:{port}",
            is_local=False,
        )


@dataclass(frozen=True)
class Floor:
    """One ready-made ``send`` a token: ``floor.c``. It has a clock in the place of an engine, so it is always paced."""

    program: Path
    name: str = FLOOR

    def can(self, runtime: str, scenario: Scenario) -> bool:
        return scenario.floor

    def start(self, stage: Stage) -> Start:
        return Start(command=[f"{self.program}", f"{stage.port}", f"{stage.tick_ms * 1000:.0f}"])


@dataclass(frozen=True, kw_only=True)
class Running:
    """A gateway that answers."""

    port: int
    model: str
    gateway: ProcessTree
    engine: ProcessTree | None


class GatewayError(Exception):
    """A gateway does not come up; the text has what it said."""


@contextmanager
def running(gateway: Gateway, runtime: str, model: Path, tick_ms: float) -> Iterator[Running]:
    """Start a gateway and its engine, and end both. Raises ``GatewayError``."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        stage = Stage(directory=directory, port=free_port(), runtime=runtime, model=model, tick_ms=tick_ms)
        start = gateway.start(stage)
        log = directory / "log"
        process = stack.enter_context(_process(start.command, log))
        engine = None
        if start.handshake is not None:
            engine = stack.enter_context(_process(_simulator(stage, start.handshake, start.is_local), log))
        running = Running(
            port=stage.port,
            model=start.model,
            gateway=ProcessTree(process.pid),
            engine=None if engine is None else ProcessTree(engine.pid),
        )
        end = time.monotonic() + _PATIENCE
        while not _answers(running):
            if time.monotonic() > end or process.poll() is not None:
                raise GatewayError(f"{gateway.name} does not answer:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)  # nothing tells a client of any gateway when the engine has come
        yield running


def _simulator(stage: Stage, handshake: str, is_local: bool) -> list[str]:
    # Other gateways ask for what ours may not.
    size = ("--max-running", "8192", "--max-model-len", "16384", "--model", f"{stage.model}", "--no-rules")
    speed = ("--tick-ms", f"{stage.tick_ms:g}", "--text", _TEXT)
    wire = ("--runtime", stage.runtime, "--handshake", handshake, *(() if is_local else ("--remote",)))
    return [*SMG_FAST, "simulate", *wire, *speed, *size]


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(running: Running) -> bool:
    chat = {"model": running.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"http://{_HOST}:{running.port}/v1/chat/completions",
        json.dumps(chat).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=_PROBE_PATIENCE).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A TCP port that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
