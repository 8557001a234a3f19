"""One gateway and one engine for the tests that leave them as they found them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from .support import serving


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What is written to connections directly is tried on both event loops."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ("test_connections.py", "test_streaming.py"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tried, and why: nobody reads a letter among dots."""
    reasons = [report.longrepr[2] for report in terminalreporter.getreports("skipped")]
    for reason in dict.fromkeys(reasons):
        terminalreporter.write_line(f"left out: {reasons.count(reason)} tests: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session", params=["tokenspeed", "vllm"])
def runtime(request: pytest.FixtureRequest) -> str:
    """The wire that the engine speaks."""
    return str(request.param)


@pytest.fixture(scope="session")
def url(runtime: str) -> Iterator[str]:
    """A gateway with the simulator, which echoes, as users start it; its model is called ``simulator``."""
    with serving("--max-body-size", "1", "--tick-ms", "1", "--runtime", runtime) as url:
        yield url
