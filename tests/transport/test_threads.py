"""ZeroMQ's threads give way to the loop, and it to nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from smg_fast.transport import EngineClient


def policies() -> dict[str, set[int]]:
    """Of the threads of this process, by their names."""
    seen: dict[str, set[int]] = {}
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        seen.setdefault(name, set()).add(os.sched_getscheduler(int(thread.name)))
    return seen


async def test_threads_of_a_client(start: Callable[..., Awaitable[EngineClient]]) -> None:
    await start()
    seen = policies()
    assert seen["ZMQbg/IO/0"] == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_process_with_a_scheduling_of_its_own_keeps_it() -> None:
    """Here that of processes which run when nobody else does."""
    code = (
        "import os, zmq; from smg_fast.transport.threads import yielding_threads\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "with yielding_threads(): socket = zmq.Context().socket(zmq.PULL)\n"
        "print({os.sched_getscheduler(int(thread)) for thread in os.listdir('/proc/self/task')} == {os.SCHED_IDLE})\n"
        "print(len(os.listdir('/proc/self/task')) > 1)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "True"]
