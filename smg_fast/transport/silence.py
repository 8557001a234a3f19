"""The last sign of death: an engine that owes an answer and says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .engine import Engine


class SilenceWatch:
    """Calls back for each engine that has had generations in flight and said nothing for ``timeout`` seconds.

    It sleeps while nothing is in flight; whoever puts the first generation on an engine calls ``begin``.
    """

    __slots__ = ("_check", "_engines", "_loop", "_on_silence", "_timeout")

    def __init__(self, engines: Sequence[Engine], timeout: float, on_silence: Callable[[Engine], None]) -> None:
        self._engines = engines
        self._timeout = timeout
        self._on_silence = on_silence
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
        if self._check is not None or not self._timeout:
            return
        owing = [engine.heard for engine in self._engines if engine.in_flight]
        if owing:
            self._check = self._loop.call_at(min(owing) + self._timeout, self._on_timer)

    def _on_timer(self) -> None:
        self._check = None
        now = self._loop.time()
        for engine in self._engines:
            if engine.in_flight and now - engine.heard >= self._timeout:
                self._on_silence(engine)
        self._arm()
