"""The process at the other end of a Unix socket, as Linux tells of it."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import msgspec

#: Of a connection's other end: process, user and group.
_CREDENTIALS = struct.Struct("=iII")
#: Ended and not yet taken note of.
_ENDED = frozenset("ZX")
#: The same, or stopped by a signal or a debugger.
_STOPPED = _ENDED | frozenset("Tt")


class Process(msgspec.Struct, frozen=True):
    """A process, and none that gets its id after it. ``started`` is in clock ticks since the machine has."""

    pid: int
    started: int

    @property
    def stopped(self) -> bool | None:
        """Whether it does nothing until somebody lets it go on, or never again. ``None``: it is not to be seen."""
        state, started = _stat(self.pid)
        return state in _STOPPED if started == self.started else None

    @property
    def lives(self) -> bool:
        """Whether it has not ended, as far as can be seen."""
        state, started = _stat(self.pid)
        return started == self.started and state not in _ENDED


def process_of(peer: str) -> Process | None:
    """The process of what ``monitor.peer_of`` gives; ``None`` if it is not to be seen from here."""
    pid = peer.rpartition(":")[2]
    return _visible(int(pid)) if pid.isdecimal() else None


def process_at(connection: int) -> Process | None:
    """The process at the other end of a descriptor; ``None`` if it is not to be seen from here, or not there."""
    try:
        with socket.socket(fileno=os.dup(connection)) as ours:
            credentials = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # it is closed already
        return None
    return _visible(_CREDENTIALS.unpack(credentials)[0])


def _visible(pid: int) -> Process | None:
    started = _stat(pid)[1]
    return None if started is None else Process(pid, started)


def _stat(pid: int) -> tuple[str, int | None]:
    """State and start of a process, fields 3 and 22 of proc(5); ``None`` if there is none of this id."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", None
    # The second field, the name of the program, may be anything, in parentheses.
    fields = line.rpartition(")")[2].split()
    return fields[0], int(fields[19])
