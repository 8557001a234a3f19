"""The engines that ``smg-fast serve`` has started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from ..engines.launch import EngineLaunch
from ..workers.child_process import ChildProcess, ProcessFailedError
from .progress import Loading, tell
from .terminal import Terminal

logger = logging.getLogger(__name__)


async def run_engines(
    launches: Sequence[EngineLaunch],
    is_ready: Callable[[Sequence[int]], bool],
    terminal: Terminal,
    *,
    verbose: bool = False,
) -> None:
    """Keep every process running, each on its own, and tell of those that load.

    Ends by cancellation, after the processes have ended. ``is_ready`` says whether the engines of some ranks take
    requests, ``verbose`` is as in ``Loading``.

    Raises
    ------
    ProcessFailedError
        All have been given up; the last one's. That of another is logged.
    """
    left = len(launches)

    async def keep(launch: EngineLaunch, watcher: Loading) -> None:
        nonlocal left
        for variable, value in launch.environment.items():
            logger.info("%s has %s=%s", watcher.name, variable, value)
        process = ChildProcess(launch.command, name=watcher.name, environment=launch.environment, watcher=watcher)
        try:
            await process.run()
        except ProcessFailedError as error:
            left -= 1
            if not left:
                raise
            logger.error("%s; it is not started again, and the other engines go on", error)

    watchers = [
        Loading(_name(launch, len(launches)), terminal, partial(is_ready, launch.ranks), verbose=verbose)
        for launch in launches
    ]
    keeping = [asyncio.create_task(keep(*each)) for each in zip(launches, watchers, strict=True)]
    telling = asyncio.create_task(tell(watchers, terminal))
    try:
        # Unlike gather this cancels nothing: a second cancellation would cut the end of an engine short.
        done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in (*keeping, telling):
            task.cancel()
        await asyncio.gather(*keeping, telling, return_exceptions=True)
        terminal.erase()


def _name(launch: EngineLaunch, launches: int) -> str:
    """What messages call a process."""
    if len(launch.ranks) > 1:
        return "the group of engines"
    return "the engine" if launches == 1 else f"engine {launch.ranks[0]}"
