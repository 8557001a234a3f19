"""A gateway and an engine, each a process of its own, as they run in service."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import openai
import pytest

from tests.e2e.engines import ENGINES, Capability, Engine, EngineProcess

Value = TypeVar("Value")
left_out: list[str] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("engine") or list(ENGINES)
    needs = {need for marker in metafunc.definition.iter_markers("needs") for need in marker.args}
    engines = []
    for name in chosen:
        engine = ENGINES[name]
        lacking = sorted(need.name for need in needs - engine.capabilities)
        if engine.missing:
            left_out.append(f"everything over {name}: {engine.missing}")
        elif lacking:
            left_out.append(f"{metafunc.function.__name__} over {name}: it has no {', '.join(lacking)}")
        else:
            engines.append(engine)
    metafunc.parametrize("engine", engines, ids=[engine.name for engine in engines], scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that no chosen engine can serve is no test of this run; ``pytest_terminal_summary`` tells of it."""
    without = [item for item in items if "NOTSET" in item.name]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in dict.fromkeys(left_out):
        terminalreporter.write_line(f"left out: {line}")


class GatewayProcess:
    """``smg-fast launch`` on a free port. Leaving the context ends it, and sees that it ends well."""

    def __init__(self, engine: Engine, directory: Path, *options: str) -> None:
        self.socket = directory / "sockets" / "engine"
        worker = f"ipc://{self.socket}"
        arguments = ["--worker", worker, "--runtime", engine.runtime, "--model", str(engine.model), "--port", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "smg_fast", "launch", *arguments, "--served-model-name", "model", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        # "smg-fast listens on URL; engines dial ADDRESS"
        line = self._process.stdout.readline()
        assert "; engines dial " in line, "the gateway did not start; its messages are above"
        listens, _, self.handshake = line.strip().partition("; engines dial ")
        self.url = listens.rpartition(" ")[2]

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(timeout=20) == 0
        assert list(self.socket.parent.iterdir()) == [], "socket files are left"
        assert self._process.stdout is not None
        self._process.stdout.close()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ready") as answer:
                return bool(answer.status == HTTPStatus.OK)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return False

    def in_flight(self) -> int:
        """Requests being answered, and generations at the engines."""
        with urllib.request.urlopen(f"{self.url}/health") as answer:
            status = json.load(answer)
        return int(status["requests"]) + int(status["generations"])


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is made of a GGUF file is kept in the user's cache; this one is of this run only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(engine, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def engine_process(engine: Engine, gateway: GatewayProcess) -> Iterator[EngineProcess]:
    with EngineProcess(engine, gateway.handshake) as process:
        eventually(gateway.is_ready, within=engine.patience)
        yield process


@pytest.fixture
def client(gateway: GatewayProcess, engine_process: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def eventually(condition: Callable[[], Value], within: float) -> Value:
    """The condition's value once it is true; fails if it does not come true within so many seconds."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, f"{condition} did not come true within {within} s"
        time.sleep(0.02)
    return value


__all__ = ["Capability", "EngineProcess", "GatewayProcess", "eventually"]
