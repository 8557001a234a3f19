"""A child process, such as an engine: started, watched, started again when it dies, and ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

#: Seconds before one that died is started again, at most.
_LONGEST_PAUSE = 8.0
#: Seconds one that has served must have lived for its death not to count as one more in a row.
_STEADY = 30.0
#: Of descriptors, processes or memory.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
#: Deaths in a row after which it is given up.
_MAX_DEATHS = 5

#: Progress bars end their lines with a carriage return.
_LINE_ENDS = re.compile(rb"[\r\n]+")
_READ_SIZE = 1 << 16
#: Bytes after which a line that does not end is taken as it is.
_LONGEST_LINE = 1 << 13

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None).prctl


class ProcessFailedError(Exception):
    """It cannot be started, or dies again and again. The text tells the operator."""


class Watcher(Protocol):
    """Who is told of a process."""

    def started(self) -> None:
        """It runs, for the first time or again."""

    def said(self, line: str) -> None:
        """A line of its standard output or error, without its end."""

    def ended(self) -> bool:
        """It has ended by itself, and said all. Returns whether it had come so far as to serve.

        What is raised here ends ``run``: it is not started again.
        """


class Echo:
    """A watcher that shows the operator what the process says."""

    def started(self) -> None:
        """See ``Watcher``."""

    def said(self, line: str) -> None:
        """See ``Watcher``."""
        print(line, file=sys.stderr, flush=True)

    def ended(self) -> bool:
        """See ``Watcher``."""
        return True


class ChildProcess:
    """A command that shall run for as long as ``run`` does.

    It has a session of its own, as a terminal's Ctrl-C is not meant for it, and gets SIGTERM if this process is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "the engine",
        environment: Mapping[str, str] | None = None,
        watcher: Watcher | None = None,
        first_pause: float = 0.5,
        patience: float = 5.0,
    ) -> None:
        """
        Parameters
        ----------
        name
            What messages call it.
        environment
            What is added to this process's own.
        watcher
            Who is told of it; by default the operator, of what it says.
        first_pause
            Seconds before it is started again; each death in a row doubles it.
        patience
            Seconds it may take to end after SIGTERM; then it is killed.
        """
        self._command = command
        self._name = name
        self._environment = {**os.environ, **(environment or {})}
        self._watcher = watcher or Echo()
        self._patience = patience
        self._first_pause = first_pause
        self._process: asyncio.subprocess.Process | None = None

    def send_signal(self, number: int) -> None:
        """To the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def run(self) -> None:
        """Keep it running; ends by cancellation, after it has ended.

        Raises
        ------
        ProcessFailedError
            The command cannot be run, or has died some five times in a row.
        """
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            started = loop.time()
            how, served = await self._run_once()
            deaths = 1 if served and loop.time() - started >= _STEADY else deaths + 1
            if deaths == _MAX_DEATHS:
                raise ProcessFailedError(
                    f"{self._name} {how}, for the {deaths}th time in a row; its messages are above"
                )
            pause = min(self._first_pause * 2 ** (deaths - 1), _LONGEST_PAUSE)
            logger.error("%s %s; it is started again in %g s", self._name, how, pause)
            await asyncio.sleep(pause)

    async def _run_once(self) -> tuple[str, bool]:
        """From start to end; returns how it ended, in words, and whether it had served."""
        process, output = await self._start()
        self._process = process
        logger.info("%s started, process %d", self._name, process.pid)
        self._watcher.started()
        try:
            how = _ending(await process.wait())
        finally:
            await self._end(process)
            output.close()
        return how, self._watcher.ended()

    async def _start(self) -> tuple[asyncio.subprocess.Process, _Output]:
        """A shortage passes, and the requests in flight are worth more than an exit; anything else does not pass."""
        while True:
            try:
                with _Output(self._watcher.said) as output:
                    process = await asyncio.create_subprocess_exec(
                        *self._command,
                        stdin=DEVNULL,
                        stdout=output.writer,
                        stderr=output.writer,
                        env=self._environment,
                        start_new_session=True,
                        preexec_fn=_end_with_parent,
                    )
                return process, output
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise ProcessFailedError(
                        f"cannot start {self._name}: {self._command[0]}: {error.strerror}"
                    ) from None
                logger.error("cannot start %s now: %s", self._name, error.strerror)
            await asyncio.sleep(self._first_pause)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._patience)
            except asyncio.TimeoutError:
                logger.warning("%s does not end: killing process %d", self._name, process.pid)
        # Whatever it has started may have outlived it, and hold its memory.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


class _Output:
    """What a process and its children write, by lines.

    A pipe of our own, as asyncio's would have the process last for as long as any child holds its end. As a context it
    is there to be handed on by ``writer``, and closed if that fails.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self.writer)
        if kind is not None:
            self.close()

    def close(self) -> None:
        """Take what is there to the last line, and close the pipe."""
        while self._read():
            pass
        self._take(self._rest)
        self._loop.remove_reader(self._reader)
        os.close(self._reader)

    def _read(self) -> bool:
        """Whether there was anything."""
        try:
            data = os.read(self._reader, _READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._reader)  # it would be readable for ever
            return False
        *lines, self._rest = _LINE_ENDS.split(self._rest + data)
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        if line:
            self._on_line(line.decode(errors="replace"))


def _end_with_parent() -> None:
    """In the child, before it becomes what it shall be."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
