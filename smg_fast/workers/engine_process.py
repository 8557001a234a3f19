"""An engine as a child process: started, watched, started again when it dies, and ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import signal
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence

logger = logging.getLogger(__name__)

#: Seconds before a dead engine is started again, at most.
_LONGEST_PAUSE = 8.0
#: Seconds an engine must have lived for its death not to count as one more in a row.
_STEADY = 30.0
#: Of descriptors, processes or memory.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
#: Deaths in a row after which it is given up.
_MAX_DEATHS = 5

_STDERR = 2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None).prctl


class EngineProcessError(Exception):
    """The engine cannot be started, or dies again and again. The text tells the operator."""


class EngineProcess:
    """A command that shall run for as long as ``run`` does.

    It has a session of its own, as a terminal's Ctrl-C is not meant for it, and gets SIGTERM if this process is killed.
    What it writes, on either output, is for the operator: it goes to our standard error.
    """

    def __init__(self, command: Sequence[str], *, first_pause: float = 0.5, patience: float = 5.0) -> None:
        """
        Parameters
        ----------
        first_pause
            Seconds before the engine is started again; each death in a row doubles it.
        patience
            Seconds the engine may take to end after SIGTERM; then it is killed.
        """
        self._command = command
        self._patience = patience
        self._first_pause = first_pause

    async def run(self) -> None:
        """Keep the engine running; ends by cancellation, after the engine has ended.

        Raises
        ------
        EngineProcessError
            The command cannot be run, or has died some five times in a row.
        """
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            started = loop.time()
            how = await self._run_once()
            deaths = 1 if loop.time() - started >= _STEADY else deaths + 1
            if deaths == _MAX_DEATHS:
                raise EngineProcessError(f"the engine {how}, for the {deaths}th time in a row; its messages are above")
            pause = min(self._first_pause * 2 ** (deaths - 1), _LONGEST_PAUSE)
            logger.error("the engine %s; it is started again in %g s", how, pause)
            await asyncio.sleep(pause)

    async def _run_once(self) -> str:
        """From start to end; returns how it ended, in words."""
        process = await self._start()
        logger.info("engine started, process %d", process.pid)
        try:
            return _ending(await process.wait())
        finally:
            await self._end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        """A shortage passes, and the requests in flight are worth more than an exit; anything else does not pass."""
        while True:
            try:
                return await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=DEVNULL,
                    stdout=_STDERR,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise EngineProcessError(f"cannot start the engine: {self._command[0]}: {error.strerror}") from None
                logger.error("cannot start the engine now: %s", error.strerror)
            await asyncio.sleep(self._first_pause)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._patience)
            except asyncio.TimeoutError:
                logger.warning("the engine does not end: killing process %d", process.pid)
        # Whatever it has started may have outlived it, and hold its memory.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _end_with_parent() -> None:
    """In the child, before it becomes the engine."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
