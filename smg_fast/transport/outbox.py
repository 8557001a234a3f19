"""Sending to engines, which must never block and never forget an order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from .engine import Engine

#: Seconds between attempts at a queue that is full: ZeroMQ does not tell when there is room for one peer.
RETRY_INTERVAL = 0.005

# Plain integers: pyzmq's own flags are an enumeration of Python's, whose "or" takes longer than the sending.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


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
        Called when an order finds its engine gone.
    after_send
        Called when something was sent: sending may have taken in the news of what can be read.
    """

    __slots__ = ("_aborts", "_after_send", "_encode_abort", "_loop", "_on_unreachable", "_retry", "_router", "_wakes")

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
        # Orders that wait for room.
        self._wakes: dict[Engine, list[bytes]] = {}
        self._aborts: dict[Engine, list[str]] = {}
        self._retry: asyncio.TimerHandle | None = None

    def send(self, engine: Engine, frames: Sequence[bytes]) -> bool:
        """``False``: the engine's queue is full, and nothing was sent. Raises ``UnreachableError``.

        Whether there is room is told by the first frame, the engine's identity; the others belong to it.
        """
        send = self._router.send
        try:
            send(engine.identity, _MORE)
            for frame in frames[:-1]:
                send(frame, _MORE)
            send(frames[-1], _LAST)
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
        self._aborts.setdefault(engine, []).extend(rids)
        self._send_orders(engine)

    def wake(self, engine: Engine, frames: list[bytes]) -> None:
        """Tell an engine to begin a wave; one that still waits for room gives way to it."""
        self._wakes[engine] = frames
        self._send_orders(engine)

    def forget(self, engine: Engine) -> None:
        """Drop the orders that wait for an engine which is gone."""
        self._wakes.pop(engine, None)
        self._aborts.pop(engine, None)

    def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()

    def _send_orders(self, engine: Engine) -> None:
        try:
            if engine in self._wakes and self.send(engine, self._wakes[engine]):
                del self._wakes[engine]
            if engine in self._aborts and self.send(engine, self._encode_abort(self._aborts[engine])):
                del self._aborts[engine]
        except UnreachableError:
            self.forget(engine)
            self._on_unreachable(engine)
        else:
            if self._retry is None and (engine in self._wakes or engine in self._aborts):
                self._retry = self._loop.call_later(RETRY_INTERVAL, self._send_waiting)

    def _send_waiting(self) -> None:
        self._retry = None
        for engine in self._wakes.keys() | self._aborts.keys():
            self._send_orders(engine)  # which does nothing for one that the loss of another has sent meanwhile
