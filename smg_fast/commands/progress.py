"""How far the engines are that load, for whoever waits at the terminal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from .terminal import Terminal

logger = logging.getLogger(__name__)

#: Seconds from one rewriting of a terminal's last line to the next.
_REWRITE = 0.25
#: Seconds from one line to the next where lines cannot be rewritten.
_REPEAT = 5.0
#: Lines of a loading engine that are kept for the case that it fails.
_KEPT_LINES = 500


class Loading:
    """A watcher of one engine process.

    What the engine says is for the operator. Where there is a terminal, only its last line is shown while it loads; the
    others are, if it ends before it is ready.
    """

    def __init__(self, name: str, terminal: Terminal, ready: Callable[[], bool], *, verbose: bool = False) -> None:
        """
        Parameters
        ----------
        name
            What messages call it.
        ready
            Whether it takes requests.
        verbose
            Show all it says in any case.
        """
        self.name = name
        self.last_line = ""
        self._terminal = terminal
        self._ready = ready
        self._keeps = terminal.rewrites and not verbose
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._started = 0.0
        self._runs = self._served = False

    def started(self) -> None:
        """See ``Watcher``."""
        self._started = time.monotonic()
        self._runs, self._served = True, False
        self.last_line = ""
        self._kept.clear()

    def said(self, line: str) -> None:
        """See ``Watcher``."""
        self.last_line = line
        if self._keeps and self.loads:
            self._kept.append(line)
        else:
            self._show(line)

    def ended(self) -> bool:
        """See ``Watcher``."""
        self._runs = False
        if not self._served:
            for line in self._kept:
                self._show(line)
        return self._served

    @property
    def loads(self) -> bool:
        """Whether it runs, and has not been ready since it was started."""
        return self._runs and not self.serves

    @property
    def serves(self) -> bool:
        """Whether it runs, and has been ready since it was started."""
        self._served = self._served or (self._runs and self._ready())
        return self._runs and self._served

    @property
    def elapsed(self) -> int:
        """Seconds since it was started."""
        return int(time.monotonic() - self._started)

    def _show(self, line: str) -> None:
        self._terminal.write(f"{line}\n")
        self._terminal.flush()


async def tell(engines: Sequence[Loading], terminal: Terminal) -> None:
    """Tell of those that load, for ever: by a line that is rewritten or, where there is no terminal, now and then."""
    interval = _REWRITE if terminal.rewrites else _REPEAT
    while True:
        await asyncio.sleep(interval)
        loading = [engine for engine in engines if engine.loads]
        if not terminal.rewrites:
            for engine in loading:
                said = f"it said last: {engine.last_line}" if engine.last_line else "it has said nothing yet"
                logger.info("%s loads, for %d s now; %s", engine.name, engine.elapsed, said)
        elif loading:
            terminal.show(_line(loading, engines))
        else:
            terminal.erase()


def _line(loading: Sequence[Loading], engines: Sequence[Loading]) -> str:
    """Of the one that has loaded for longest, and how many are ready if there are several."""
    oldest = max(loading, key=lambda engine: engine.elapsed)
    minutes, seconds = divmod(oldest.elapsed, 60)
    ready = sum(engine.serves for engine in engines)
    others = f" ({ready} of {len(engines)} are ready)" if len(engines) > 1 else ""
    return f"{oldest.name} loads, {minutes}:{seconds:02}{others}  {oldest.last_line}"
