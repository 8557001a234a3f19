"""What an engine process asks of the system: signals that end a wait, and an end when its parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Signals:
    """SIGTERM and SIGINT ask to stop, SIGUSR1 asks for a report. Use it as a context manager, in the main thread.

    Nothing is done in the handlers but to note the wish: the engine's loop looks at it after each wait. ``wake`` is
    readable from the signal on until ``clear`` is called, so that a wait that polls it ends at once.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._reporting = False
        self._pending = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @property
    def wake(self) -> int:
        """A file descriptor to poll."""
        return self._reader.fileno()

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)
        signal.set_wakeup_fd(self._writer.fileno())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def take_report(self) -> bool:
        """Whether a report was asked for since the last call."""
        wanted, self._reporting = self._reporting, False
        return wanted

    def clear(self) -> None:
        """Makes ``wake`` quiet again. Cheap when there was no signal."""
        if self._pending:
            self._pending = False
            with contextlib.suppress(BlockingIOError):
                self._reader.recv(4096)

    def pause(self, seconds: float) -> None:
        """Sleeps, but not longer than until the process shall stop."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            select.select([self._reader], [], [], left)
            self.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if number == signal.SIGUSR1:
            self._reporting = True
        else:
            self.stopping = True


class Wake:
    """A file descriptor that any thread can make readable, to end a wait that polls it."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._set = False

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reader.fileno()

    def set(self) -> None:
        """Say that there is news. What was done before is seen by who looks after ``clear``."""
        if not self._set:
            self._set = True
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Makes the descriptor quiet again; look for the news after it. Cheap when there is none."""
        if self._set:
            with contextlib.suppress(BlockingIOError):
                self._reader.recv(4096)
            # Last: a thread that finds it still set has done its work before, and this one looks after.
            self._set = False


def end_with_parent(pid: int) -> None:
    """Gives this process a SIGTERM when ``pid``, which started it, ends; exits at once if that has happened already.

    Linux only: elsewhere nothing tells a process of its parent's end, and only the second half holds. To Linux the
    parent is the thread that started the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != pid:
        raise SystemExit(f"process {pid}, which was to be the parent, has ended")
