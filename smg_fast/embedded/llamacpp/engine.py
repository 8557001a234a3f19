"""The engine's process: one loop over the wire and the generations, which threads of llama.cpp's feed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from smg_fast.embedded.llamacpp.constraints import UnsupportedError
from smg_fast.embedded.llamacpp.generation import Generation
from smg_fast.embedded.llamacpp.llama import Llama, ModelError
from smg_fast.embedded.process import Signals, Wake, end_with_parent
from smg_fast.embedded.wire import Abort, Add, EngineInfo, EngineServer, Load, Lost, Malformed, TickRow, TokenSpeed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smg_fast.embedded.llamacpp.options import LlamaOptions
    from smg_fast.embedded.wire import EngineRequest, Event

__all__ = ["ModelError", "run"]

_log = logging.getLogger(__name__)

_MIB = 1 << 20


def run(options: LlamaOptions) -> int:
    """Loads the model, then dials the gateway and serves it until SIGTERM or SIGINT.

    Call it in the main thread of a process of its own: it takes the signals.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    ModelError
        The model cannot be loaded.
    OSError
        There is no such file.
    """
    if options.exit_with_parent is not None:
        end_with_parent(options.exit_with_parent)
    size = Path(options.model).stat().st_size
    _log.info("engine %d loads %s, %d MiB", options.index, options.model, size // _MIB)
    wake = Wake()
    llama = Llama(options, wake.set)
    # llama.cpp takes the signals when it loads a model, so they are taken after it.
    with Signals() as signals:
        server = EngineServer(
            TokenSpeed(),
            options.handshake,
            options.index,
            local=options.local,
            redial=options.redial,
            wake=[signals.wake, wake.fileno()],
        )
        with server:
            engine = _Engine(options, server, llama, wake)
            while not signals.stopping:
                engine.turn()
                signals.clear()
            engine.stop()
    llama.close()
    return 0


class _Engine:
    def __init__(self, options: LlamaOptions, server: EngineServer, llama: Llama, wake: Wake) -> None:
        self._options = options
        self._server = server
        self._llama = llama
        self._wake = wake
        self._waiting: dict[str, Generation] = {}
        self._running: dict[str, Generation] = {}
        self._leaving: list[Generation] = []  # over for the gateway, but llama.cpp is still at it
        self._notices: list[TickRow] = []  # rows of the next tick that belong to no generation
        self._load = Load()
        # A cache cell of llama.cpp's holds one token, so that is the size of a page.
        self._pages = options.slots * options.context
        self._info = EngineInfo(
            version="smg-fast-llamacpp",
            max_model_len=options.context,
            max_num_seqs=options.slots,
            page_size=1,
            num_pages=self._pages,
            cache_tokens=self._pages,
            instance_id=f"llamacpp-{options.index}-{os.getpid()}",
        )
        _log.info("engine %d dials %s", options.index, options.handshake)

    def turn(self) -> None:
        """Waits for the next thing to happen and does it."""
        for event in self._server.receive(None):
            self._handle(event)
        self._wake.clear()
        if not self._server.blocked:
            self._tick()

    def stop(self) -> None:
        """Ends every generation, without a word."""
        self._abort([*self._waiting, *self._running])

    def _handle(self, event: Event) -> None:
        if isinstance(event, Add):
            self._add(event.request)
        elif isinstance(event, Abort):
            self._abort(event.rids)
        elif isinstance(event, Malformed):
            _log.error("unreadable: %s", event.reason)
        elif isinstance(event, Lost):
            _log.warning("engine %d lost its gateway and dials again", self._options.index)
            self.stop()
            self._notices.clear()
        else:
            self._server.ready(self._info)
            _log.info("engine %d is ready", self._options.index)

    def _add(self, request: EngineRequest) -> None:
        try:
            if request.rid in self._waiting or request.rid in self._running:
                raise UnsupportedError("the request id is in use")
            self._waiting[request.rid] = Generation(request, self._options.context)
        except UnsupportedError as error:
            _log.warning("request %s refused: %s", request.rid, error)
            self._notices.append(TickRow(request.rid, [], "error", len(request.prompt_ids), 0, error=str(error)))

    def _abort(self, rids: Iterable[str]) -> None:
        for rid in rids:
            self._waiting.pop(rid, None)
            if generation := self._running.pop(rid, None):
                generation.cancel()
                self._leaving.append(generation)

    def _tick(self) -> None:
        """Says what is new, if anything is."""
        rows, self._notices = self._notices, []
        for rid, generation in list(self._running.items()):
            row = generation.advance()
            if row is None:
                continue
            rows.append(row)
            if row.finish:
                self._leaving.append(self._running.pop(rid))
                if row.error:
                    _log.warning("request %s failed: %s", rid, row.error)
        self._leaving = [generation for generation in self._leaving if not generation.over]
        while self._waiting and len(self._running) + len(self._leaving) < self._options.slots:
            rid = next(iter(self._waiting))
            self._running[rid] = generation = self._waiting.pop(rid)
            generation.start(self._llama)
        busy = [*self._running.values(), *self._leaving]
        load = Load(len(busy), len(self._waiting), sum(generation.tokens for generation in busy), self._pages)
        if rows or load != self._load:
            self._load = load
            self._server.send_tick(rows, load)
