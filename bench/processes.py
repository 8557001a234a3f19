"""What a process and those it started cost, as Linux tells it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


class ProcessTree:
    """A process with all its descendants. One that ends meanwhile takes its share along."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_seconds(self) -> float:
        """User and system time of every thread, those that have ended too; exact, unlike ``/proc/PID/stat``."""
        return sum(_cpu_seconds(pid) for pid in self._pids())

    def memory_kib(self, entry: str) -> int:
        """``VmRSS`` or ``VmHWM``, its peak. What processes share is counted in each of them."""
        return sum(_status(pid).get(entry, 0) for pid in self._pids())

    def threads(self) -> int:
        return sum(_status(pid)["Threads"] for pid in self._pids())

    def descriptors(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self._pids())

    def _pids(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        pids = [self.pid]
        for pid in pids:
            pids += children.get(pid, ())
        return pids


def _parents() -> Iterator[tuple[int, int]]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                stat = (directory / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(directory.name), int(stat.rpartition(")")[2].split()[1])


def _cpu_seconds(pid: int) -> float:
    clock = ctypes.c_int()
    failure = _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock))
    if failure:
        raise ProcessLookupError(failure, f"process {pid}: {os.strerror(failure)}")
    return time.clock_gettime(clock.value)


def _status(pid: int) -> dict[str, int]:
    """The entries of ``/proc/PID/status`` that are a number, of KiB where it is memory."""
    fields = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name[:-1]: int(value) for name, value, *_ in (f for f in fields if len(f) > 1) if value.isdecimal()}
