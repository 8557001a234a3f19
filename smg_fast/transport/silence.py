"""The last signs of death: an engine that owes an answer and says nothing, and one whose process is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .engine import Engine, EngineState

#: Seconds between looks at the process of an engine that owes an answer and says nothing.
_LOOK_INTERVAL = 0.25


class SilenceWatch:
    """Calls back for engines that have generations in flight and do nothing about them.

    It sleeps while nothing is in flight and no process is stopped; whoever puts the first generation on an engine calls
    ``begin``.

    Parameters
    ----------
    timeout : float
        Seconds that an engine may say nothing; 0: for ever.
    on_silence
        Called with one that has said nothing for so long.
    on_stopped, on_continued
        Called with one whose process is stopped, within a second, and again when it goes on.
    """

    __slots__ = ("_check", "_engines", "_loop", "_on_continued", "_on_silence", "_on_stopped", "_timeout")

    def __init__(
        self,
        engines: Sequence[Engine],
        timeout: float,
        on_silence: Callable[[Engine], None],
        on_stopped: Callable[[Engine], None],
        on_continued: Callable[[Engine], None],
    ) -> None:
        self._engines = engines
        self._timeout = timeout
        self._on_silence = on_silence
        self._on_stopped = on_stopped
        self._on_continued = on_continued
        self._loop = asyncio.get_running_loop()
        self._check: asyncio.TimerHandle | None = None

    def begin(self, engine: Engine) -> None:
        """The engine owes an answer from now on."""
        engine.heard = self._loop.time()
        self._arm()

    def stop(self) -> None:
        if self._check is not None:
            self._check.cancel()

    def _arm(self) -> None:
        if self._check is not None:
            return
        owing = [engine.heard for engine in self._engines if engine.in_flight]
        if not owing and not any(engine.state is EngineState.STOPPED for engine in self._engines):
            return
        next_look = self._loop.time() + _LOOK_INTERVAL
        if owing and self._timeout:
            next_look = min(next_look, min(owing) + self._timeout)
        self._check = self._loop.call_at(next_look, self._on_timer)

    def _on_timer(self) -> None:
        self._check = None
        now = self._loop.time()
        for engine in self._engines:
            if engine.state is EngineState.STOPPED:
                if _stopped(engine) is False:
                    self._on_continued(engine)
            elif engine.in_flight:
                silence = now - engine.heard
                if self._timeout and silence >= self._timeout:
                    self._on_silence(engine)
                elif silence >= _LOOK_INTERVAL and _stopped(engine):
                    self._on_stopped(engine)
        self._arm()


def _stopped(engine: Engine) -> bool | None:
    return None if engine.process is None else engine.process.stopped
