"""The simulator's process: one loop over the wire, the clock and the scheduler."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from smg_fast.embedded.process import Signals, end_with_parent
from smg_fast.embedded.simulator.answers import Answers
from smg_fast.embedded.simulator.faults import malformed, ragged
from smg_fast.embedded.simulator.scheduler import Counters, Scheduler
from smg_fast.embedded.wire import (
    VLLM,
    Abort,
    Add,
    EngineInfo,
    EngineServer,
    Lost,
    Malformed,
    StartWave,
    TokenSpeed,
    Utility,
    UtilityAnswer,
    Wave,
)
from smg_fast.embedded.wire.server import ENGINE_DEAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smg_fast.embedded.simulator.options import SimulatorOptions
    from smg_fast.embedded.wire import Event, TickRow

_log = logging.getLogger(__name__)

# A wait ends up to a millisecond late. A tick that is late by no more than this does not delay those after it.
_CATCH_UP_SECONDS = 0.005

# What a call of a method returns, of those that a frontend may want.
_UTILITIES: Mapping[str, object] = {
    "get_supported_tasks": ("generate",),
    "is_sleeping": False,
    "reset_prefix_cache": True,
}


def run(options: SimulatorOptions) -> int:
    """Serves until SIGTERM or SIGINT, then prints the counters as one line of JSON; SIGUSR1 prints them at any time.

    Call it in the main thread of a process of its own: it takes the signals, and some faults kill the process.

    Returns
    -------
    int
        The exit status: 0 after a signal, 1 after a death that was asked for, or for answers that cannot be read.
    """
    answers = None
    if options.answers is not None:
        try:
            answers = Answers.load(Path(options.answers))
        except (OSError, ValueError) as error:
            _log.error("%s: %s", options.answers, error)
            return 1
    if options.exit_with_parent is not None:
        end_with_parent(options.exit_with_parent)
    with Signals() as signals:
        signals.pause(options.faults.slow_start)
        server = EngineServer(
            VLLM(options.vllm_version) if options.runtime == "vllm" else TokenSpeed(options.revision),
            options.handshake,
            options.index,
            local=options.local,
            redial=options.redial,
            wake=[signals.wake],
        )
        with server:
            engine = _Engine(options, server, answers)
            while not (signals.stopping or engine.dead):
                engine.turn()
                signals.clear()
                if signals.take_report():
                    _report(engine.counters)
    _report(engine.counters)
    return int(engine.dead)


def _report(counters: Counters) -> None:
    # Past the buffers of sys.stdout: with a parent that is gone those would complain again when the interpreter ends.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(counters) + b"\n")


class _Engine:
    def __init__(self, options: SimulatorOptions, server: EngineServer, answers: Answers | None) -> None:
        self.dead = False
        self._options = options
        self._server = server
        self._scheduler = Scheduler(options, answers)
        self._period = options.tick_ms / 1000
        self._due = 0.0  # when the next tick may go out
        self._silent = False
        self._wave = 0
        self._loaded_at: float | None = None  # when the model, so to speak, is loaded
        self._info = EngineInfo(
            version="smg-fast-simulator",
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_running,
            page_size=options.page_size,
            num_pages=options.num_pages,
            cache_tokens=options.num_pages * options.page_size,
            data_parallel_size=options.data_parallel_size,
            instance_id=f"simulator-{options.index}-{os.getpid()}",
        )
        _log.info("engine %d dials %s", options.index, options.handshake)

    @property
    def counters(self) -> Counters:
        return self._scheduler.counters

    def turn(self) -> None:
        """Waits for the next thing to happen and does it."""
        was_busy = self._scheduler.busy
        for event in self._server.receive(self._timeout()):
            self._handle(event)
        now = time.monotonic()
        if self._server.state == "initialised" and self._loaded_at is not None and now >= self._loaded_at:
            self._server.ready(self._info)
            _log.info("engine %d is ready", self._options.index)
        if not self._scheduler.busy:
            return
        if not was_busy:
            self._due = now + self._period
        if now >= self._due and not self._server.blocked and not self._silent:
            self._tick()
            self._due = max(self._due + self._period, now - _CATCH_UP_SECONDS)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        if self._server.state == "initialised" and self._loaded_at is not None:
            return max(0.0, self._loaded_at - now)
        if self._server.blocked or self._silent or not self._scheduler.busy:
            return None
        return max(0.0, self._due - now)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Add):
            self._meet_wave(event.request.wave)
            refusal = self._scheduler.add(event.request)
            if refusal is not None:
                _log.warning("request %s refused: %s", event.request.rid, refusal)
        elif isinstance(event, Abort):
            self._scheduler.abort(event.rids)
        elif isinstance(event, Utility):
            self._notify(_answer(event), event.client)
        elif isinstance(event, StartWave):
            self._start_wave(event)
        elif isinstance(event, Malformed):
            self.counters.malformed += 1
            _log.error("unreadable: %s", event.reason)
        elif isinstance(event, Lost):
            self._scheduler.lose()
            _log.warning("engine %d lost its gateway and dials again", self._options.index)
        elif self._loaded_at is None:
            self._loaded_at = time.monotonic() + self._options.faults.slow_load

    def _tick(self) -> None:
        fault = self._options.faults.at(self.counters.ticks)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "dead-frame":
            self._server.send_to_all([ENGINE_DEAD])
            self.dead = True
        elif fault == "silent":
            self._silent = True
        else:
            rows, load = self._scheduler.tick()
            for place, (client, own) in enumerate(_by_client(rows).items()):
                # The load is told to one client, as by vLLM.
                frames = self._server.encode(own, None if place else load)
                if fault == "malformed":
                    frames = malformed(frames)
                elif fault == "ragged":
                    frames = ragged(frames)
                self._server.send(frames, client)
            if not self._scheduler.busy:
                self._end_wave()

    def _meet_wave(self, wave: int) -> None:
        """A request of an ended wave that finds the engines idle starts the next one on all of them."""
        if not self._options.waves:
            return
        if wave < self._wave and not self._scheduler.busy:
            self._notify(Wave(start=self._wave))
        self._wave = max(wave, self._wave)

    def _start_wave(self, event: StartWave) -> None:
        if event.exclude == self._options.index or event.wave < self._wave:
            return
        self._wave = event.wave
        if not self._scheduler.busy:
            self._end_wave()  # there is nobody to keep in step with

    def _end_wave(self) -> None:
        if self._options.waves:
            self._notify(Wave(complete=self._wave))
            self._wave += 1
            self.counters.waves += 1

    def _notify(self, notice: UtilityAnswer | Wave, client: int = 0) -> None:
        if not self._silent:
            self._server.send_notice(notice, client)


def _by_client(rows: list[TickRow]) -> Mapping[int, list[TickRow]]:
    """A tick without rows is the first client's."""
    shares: dict[int, list[TickRow]] = {}
    for row in rows:
        shares.setdefault(row.client, []).append(row)
    return shares or {0: rows}


def _answer(call: Utility) -> UtilityAnswer:
    if call.method in _UTILITIES:
        return UtilityAnswer(call.call_id, result=_UTILITIES[call.method])
    return UtilityAnswer(call.call_id, failure=f"Call to {call.method} method failed: there is no such method")
