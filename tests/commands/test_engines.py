"""Engines of ``smg-fast serve`` that cannot be started."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from smg_fast.commands.engines import run_engines
from smg_fast.commands.terminal import Terminal
from smg_fast.engines.launch import EngineLaunch
from smg_fast.workers.child_process import ProcessFailedError

LASTING = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"


async def test_the_others_go_on_without_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launches = [
        EngineLaunch((0,), ("/nonexistent/engine",)),
        EngineLaunch((1,), (sys.executable, "-c", LASTING, str(fifo))),
    ]
    running = asyncio.create_task(run_engines(launches, lambda ranks: False, Terminal()))
    pid = int(await asyncio.wait_for(asyncio.to_thread(fifo.read_text), 20))
    os.kill(pid, 0)
    assert (
        "cannot start engine 0: /nonexistent/engine: No such file or directory; it is not started again" in caplog.text
    )
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_without_any_it_fails() -> None:
    launches = [EngineLaunch((rank,), (f"/nonexistent/{rank}",)) for rank in (0, 1)]
    with pytest.raises(ProcessFailedError, match="cannot start engine 1: /nonexistent/1: No such file"):
        await run_engines(launches, lambda ranks: False, Terminal())
