"""What the commands that run a gateway share."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from io import TextIOBase
from typing import Any, NoReturn, TextIO

from ..gateway.server import StartError
from ..settings import LogLevel
from ..workers.child_process import ProcessFailedError

logger = logging.getLogger(__name__)

#: Objects after which the garbage collector looks at the youngest.
_YOUNG_OBJECTS = 10_000
_EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    main: Coroutine[Any, Any, int], log_level: LogLevel, log: TextIO | TextIOBase | None = None, *, name: str = ""
) -> int:
    """Run a command to its end; returns its exit code. What the operator can mend is told in one line.

    ``log`` is what is logged to, by default standard error; what is logged there begins with ``name``.
    """
    stream = sys.stderr if log is None else log
    logging.basicConfig(level=log_level.upper(), format=f"%(asctime)s %(levelname)s {name}%(message)s", stream=stream)
    _raise_descriptor_limit()
    try:
        return _run_loop(_to_the_end(main))
    except (StartError, ProcessFailedError) as error:
        print(f"smg-fast: {error}", file=sys.stderr)
        return 1


class ExitRequest:
    """What SIGINT and SIGTERM ask for: the first of them to end, the next to wait for nobody.

    Attributes
    ----------
    exit_code : int
        0; once somebody may have been cut short, as a shell has it for the signal that did.
    """

    def __init__(self, hurry: Callable[[], None], again: Callable[[], bool] = lambda: True) -> None:
        """The signals are heeded from now on. The second one calls ``hurry``, if it counts ``again``."""
        self.exit_code = 0
        self._hurry = hurry
        self._again = again
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _EXIT_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    async def wait(self) -> None:
        """Return when it is time to end."""
        await self._asked.wait()

    async def comes_before(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it comes before some work is done, which is cancelled then. Raises what the work does."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, waiting):
            task.cancel()
        await asyncio.wait((working, waiting))
        if working.cancelled():
            return True
        working.result()
        return False

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._asked.is_set():
            logger.info("stopping: %s", name)
            self._asked.set()
        elif self._again():
            logger.info("stopping without waiting for anybody: %s", name)
            self.exit_code = 128 + number
            self._hurry()


async def _to_the_end(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Run a command, and end the process: all that is left are threads that load what nobody waits for any more."""
    loop = asyncio.get_running_loop()
    try:
        code = await main
    finally:
        for number in _EXIT_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)


def _raise_descriptor_limit() -> None:
    """As far as this user may: every connection takes a descriptor, and the usual limit is for programs with a few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def freeze() -> None:
    """Keep the garbage collector from looking at what was loaded for good, time after time, and at what requests in
    flight hold: a request makes some hundred objects, and nearly all of them go without its help.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
