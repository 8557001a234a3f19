"""Sending to engines, which must never block and never forget an abort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from .engine import Engine

#: Seconds between attempts at a queue that is full: ZeroMQ does not tell when there is room for one peer.
RETRY_INTERVAL = 0.005


class UnreachableError(Exception):
    """The router knows no connection of an engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(f"engine {engine.index} cannot be reached")
        self.engine = engine


class Outbox:
    """The sending side of the input socket.

    Parameters
    ----------
    encode_abort
        The engine family's.
    on_unreachable
        Called when an abort finds its engine gone.
    after_send
        Called when something was sent: sending may have taken in the news of what can be read.
    """

    __slots__ = ("_after_send", "_encode_abort", "_loop", "_on_unreachable", "_retry", "_router", "_waiting")

    def __init__(
        self,
        router: zmq.Socket[bytes],
        encode_abort: Callable[[Sequence[str]], list[bytes]],
        on_unreachable: Callable[[Engine], None],
        after_send: Callable[[], None],
    ) -> None:
        self._router = router
        self._encode_abort = encode_abort
        self._on_unreachable = on_unreachable
        self._after_send = after_send
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Engine, list[str]] = {}
        self._retry: asyncio.TimerHandle | None = None

    def send(self, engine: Engine, frames: Sequence[bytes]) -> bool:
        """``False``: the engine's queue is full, and nothing was sent. Raises ``UnreachableError``."""
        try:
            self._router.send_multipart([engine.identity, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise UnreachableError(engine) from None
        self._after_send()
        return True

    def abort(self, engine: Engine, rids: Sequence[str]) -> None:
        """Tell an engine to stop generations; what finds no room waits for it."""
        self._waiting.setdefault(engine, []).extend(rids)
        self._send_aborts(engine)

    def forget(self, engine: Engine) -> None:
        """Drop the aborts that wait for an engine which is gone."""
        self._waiting.pop(engine, None)

    def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()

    def _send_aborts(self, engine: Engine) -> None:
        try:
            if self.send(engine, self._encode_abort(self._waiting[engine])):
                del self._waiting[engine]
            elif self._retry is None:
                self._retry = self._loop.call_later(RETRY_INTERVAL, self._send_waiting)
        except UnreachableError:
            self.forget(engine)
            self._on_unreachable(engine)

    def _send_waiting(self) -> None:
        self._retry = None
        for engine in list(self._waiting):
            if engine in self._waiting:  # the loss of one may have sent what waited for another
                self._send_aborts(engine)
