"""ZeroMQ's own threads, which carry the bytes between the loop and the engines."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

_THREADS = Path("/proc/self/task")


@contextmanager
def yielding_threads() -> Iterator[None]:
    """Have the threads that start meanwhile wait for a processor rather than take one from the loop amid its turn.

    Without it each message wakes such a thread at once. Where every processor is busy it comes in place of the loop,
    which costs a third of all that a short answer takes; where one is free, this changes nothing. Nor does it for a
    process with a scheduling of its own, or in a sandbox that does not allow it. ZeroMQ has a setting for it, but ends
    the process where it is not allowed.
    """
    before = _threads()
    yield
    try:
        for thread in _threads() - before if before else ():
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        logger.debug("ZeroMQ's threads are scheduled as others are: %s", error)


def _threads() -> set[int]:
    """Those of this process; none, where it cannot be told."""
    try:
        return {int(thread.name) for thread in _THREADS.iterdir()}
    except OSError as error:
        logger.debug("no threads are to be seen: %s", error)
        return set()
