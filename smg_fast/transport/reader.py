"""ZeroMQ sockets read by the event loop itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import cast

import zmq

#: The frames of one message.
Message = list[zmq.Frame]

#: Messages that are delivered in one turn of the loop.
_LIMIT = 64
# Plain integers: pyzmq's own flags are an enumeration of Python's, which takes longer to combine than a message.
_EVENTS, _POLLIN, _NOBLOCK = zmq.EVENTS, int(zmq.POLLIN), int(zmq.NOBLOCK)


class SocketReader:
    """Hands over what a socket receives, everything that is waiting in one call.

    A socket's descriptor is edge-triggered: it tells of news once, and any call on the socket may take the news in. So
    it is read until it is empty; after some messages the rest of the loop has its turn first. Whoever sends on the same
    socket calls ``check`` afterwards.
    """

    __slots__ = ("_deliver", "_descriptor", "_loop", "_more", "_receive", "_socket")

    def __init__(self, socket: zmq.Socket[bytes], deliver: Callable[[list[Message]], None]) -> None:
        """Begins at once, in the running loop."""
        self._socket = socket
        self._receive = cast("Callable[[], zmq.Frame]", functools.partial(socket.recv, _NOBLOCK, copy=False))
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._more: asyncio.Handle | None = None
        self._descriptor = int(socket.get(zmq.FD))
        self._loop.add_reader(self._descriptor, self._look)
        self.check()

    def drain(self) -> None:
        """Deliver everything that is waiting, now, however much it is."""
        while self._readable():
            self._read()

    def check(self) -> None:
        """Look, next turn, for messages whose news another call on the socket took in."""
        if self._more is None:
            self._more = self._loop.call_soon(self._next_turn)

    def stop(self) -> None:
        """Read no more. The socket may be closed afterwards."""
        self._loop.remove_reader(self._descriptor)
        if self._more is not None:
            self._more.cancel()

    def _readable(self) -> bool:
        return bool(self._socket.get(_EVENTS) & _POLLIN)  # type: ignore[operator]

    def _look(self) -> None:
        # The descriptor tells of much that is no message.
        if self._readable():
            self._read()

    def _read(self) -> None:
        receive = self._receive
        messages: list[Message] = []
        # To meet the end once costs less than to ask after each message whether there is another.
        try:
            while len(messages) < _LIMIT:
                frame = receive()
                message = [frame]
                while frame.more:
                    frame = receive()
                    message.append(frame)
                messages.append(message)
            self.check()
        except zmq.Again:
            pass
        if messages:
            self._deliver(messages)

    def _next_turn(self) -> None:
        self._more = None
        self._look()
