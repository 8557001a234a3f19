"""Engines that step together or not at all.

The data-parallel ranks of a mixture of experts exchange something in every step, so those without a request step too
while another has one. When none has any left they all pause: that ends a wave, and each of them says so. A request
wakes the engine that gets it, and nothing the others, unless they are told. Facts from vLLM 0.32
(``DPEngineCoreProc``): its own frontend leaves it to a coordinator; engines that have none tell the frontend.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .._codec import Wave
from ..engines import StartWave
from .engine import Engine
from .outbox import Outbox

logger = logging.getLogger(__name__)


class WaveTracker:
    """Which wave the engines of a worker are in, and whether they run. Others than those described never hear of it."""

    __slots__ = ("_aborted", "_engines", "_outbox", "_running", "_start_wave", "current")

    def __init__(self, engines: Sequence[Engine], outbox: Outbox) -> None:
        self.current = 0
        self._engines = engines
        self._outbox = outbox
        self._running = False
        self._start_wave: StartWave | None = None
        #: Engines that were told to stop something since they last ended a wave.
        self._aborted: set[Engine] = set()

    def on_registration(self, engine: Engine, start_wave: StartWave | None) -> None:
        """An engine has come. ``start_wave`` is its family's word for it, see ``EngineFamily.start_wave``."""
        self._start_wave = start_wave if len(self._engines) > 1 else None
        self._running = any(other.in_flight for other in self._engines)
        if self._running:
            self._wake(engine)

    def on_request(self) -> None:
        """An engine was sent a request. It is woken like the others: told to stop that at once, it would sleep on."""
        if not self._running:
            self._start()

    def on_abort(self, engine: Engine) -> None:
        """An engine was told to stop something, which nobody waits for any more."""
        self._aborted.add(engine)

    def on_wave(self, wave: Wave) -> None:
        """An engine has told that a wave is over, or that the others shall begin one as it has done."""
        if wave.engine_index >= len(self._engines):
            logger.warning("engine %d, which this worker does not have, tells of a wave", wave.engine_index)
        elif wave.complete is not None:
            if wave.complete >= self.current:
                self.current, self._running = wave.complete + 1, False
            # What it has in flight was on its way to it when the wave ended, and so may be what it was to stop: it
            # begins with that alone, and would wait for the others.
            sender = self._engines[wave.engine_index]
            unsettled = sender.in_flight or sender in self._aborted
            self._aborted.discard(sender)
            if unsettled and not self._running:
                self._start()
        elif wave.start is not None and wave.start >= self.current:
            if wave.start > self.current:
                self.current, self._running = wave.start, False
            if not self._running:
                self._start()

    def _start(self) -> None:
        self._running = True
        for engine in self._engines:
            self._wake(engine)

    def _wake(self, engine: Engine) -> None:
        if self._start_wave is not None and engine.reachable:
            self._outbox.wake(engine, self._start_wave(self.current))
