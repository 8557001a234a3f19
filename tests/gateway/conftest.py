"""One gateway and one engine for the tests that leave them as they found them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from .support import COMMAND


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What is written to connections directly is tried on both event loops."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name == "test_streaming.py":
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A gateway with the simulator, which echoes, as users start it; its model is called ``simulator``."""
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--backend", "simulator", "--port", "0", "--max-body-size", "1", "--tick-ms", "1"],
            stdout=subprocess.PIPE,
            env={**os.environ, "SMG_ZMQ_SOCKET_DIR": directory},
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            assert ready is not None, "it did not become ready"
            yield ready[0]
        finally:
            process.terminate()
            assert process.wait(20) == 0
            assert not any(Path(directory).iterdir())
