"""Which connections of a socket are open.

A bound socket reports nothing by itself when a peer is killed; its monitor does, as soon as the kernel closes the
connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import zmq

from .reader import Message, SocketReader

# Not pyzmq's own reading of it, which imports zmq.asyncio and turns descriptors into Event values.
_EVENT = struct.Struct("=Hi")


class ConnectionMonitor:
    """Follows a socket's monitor. A connection is named by its descriptor, which is reused once it is closed."""

    __slots__ = ("_on_connect", "_on_disconnect", "_open", "_reader")

    def __init__(
        self, monitor: zmq.Socket[bytes], on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]
    ) -> None:
        """Begins at once, in the running loop."""
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._open: set[int] = set()
        self._reader = SocketReader(monitor, self._on_events)

    def is_open(self, connection: int) -> bool:
        """Whether the connection was open at the last event that was read; call ``drain`` first."""
        return connection in self._open

    def drain(self) -> None:
        """Read all events that have happened."""
        self._reader.drain()

    def stop(self) -> None:
        self._reader.stop()

    def _on_events(self, messages: list[Message]) -> None:
        for frames in messages:
            event, descriptor = _EVENT.unpack(frames[0].bytes)
            if event == zmq.EVENT_ACCEPTED:
                self._open.add(descriptor)
                self._on_connect(descriptor)
            elif event == zmq.EVENT_DISCONNECTED:
                self._open.discard(descriptor)
                self._on_disconnect(descriptor)


def connection_of(frame: zmq.Frame) -> int:
    """Descriptor of the connection a frame came in on."""
    return int(frame.get(zmq.SRCFD))


def peer_of(frame: zmq.Frame) -> str:
    """The process a frame came from: over a Unix socket, a text with its user, group and process id."""
    return str(frame.get("Peer-Address"))
