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
from typing import Any, TextIO

from ..gateway.server import StartError
from ..settings import LogLevel
from ..workers.child_process import ProcessFailedError

logger = logging.getLogger(__name__)


def run(
    main: Coroutine[Any, Any, None], log_level: LogLevel, log: TextIO | TextIOBase | None = None, *, name: str = ""
) -> int:
    """Run a command to its end; returns its exit code. What the operator can mend is told in one line.

    ``log`` is what is logged to, by default standard error; what is logged there begins with ``name``.
    """
    stream = sys.stderr if log is None else log
    logging.basicConfig(level=log_level.upper(), format=f"%(asctime)s %(levelname)s {name}%(message)s", stream=stream)
    _raise_descriptor_limit()
    try:
        _run_loop(main)
    except (StartError, ProcessFailedError) as error:
        print(f"smg-fast: {error}", file=sys.stderr)
        return 1
    return 0


def exit_signal(at_once: Callable[[], bool] = lambda: True) -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets; one more of them ends the process, if that shall be ``at_once``."""
    asked = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked.is_set():
            if at_once():
                os._exit(128 + number)
            return
        logger.info("stopping: %s", signal.Signals(number).name)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return asked


def _raise_descriptor_limit() -> None:
    """As far as this user may: every connection takes a descriptor, and the usual limit is for programs with a few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def freeze() -> None:
    """Keep the garbage collector from looking at what was loaded for good, time after time."""
    gc.collect()
    gc.freeze()
