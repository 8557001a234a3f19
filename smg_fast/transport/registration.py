"""The first message of an engine on the input socket: from here on it takes requests."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import zmq

from .._codec import CodecError, ReadyResponse, decode_ready_response
from .handshake import engine_index
from .monitor import ConnectionMonitor, connection_of, peer_of
from .reader import Message, SocketReader

logger = logging.getLogger(__name__)


class Registration(msgspec.Struct, frozen=True):
    """An engine that is connected.

    ``connection`` is the descriptor of its input connection, ``peer`` the process at the other end, ``payload`` the
    ready response as it came.
    """

    index: int
    connection: int
    peer: str
    response: ReadyResponse
    payload: bytes


class RegistrationListener:
    """Reads the input socket, on which engines send nothing else."""

    __slots__ = ("_engine_count", "_monitor", "_on_registration", "_reader")

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        engine_count: int,
        monitor: ConnectionMonitor,
        on_registration: Callable[[Registration], None],
    ) -> None:
        """Begins at once, in the running loop."""
        self._engine_count = engine_count
        self._monitor = monitor
        self._on_registration = on_registration
        self._reader = SocketReader(socket, self._on_messages)

    def check(self) -> None:
        """To be called after a send on the socket."""
        self._reader.check()

    def stop(self) -> None:
        self._reader.stop()

    def _on_messages(self, messages: list[Message]) -> None:
        # What happened before them comes first: the end of a connection whose descriptor one of these has now.
        self._monitor.drain()
        for frames in messages:
            index = engine_index(frames[0].bytes, self._engine_count)
            if index is None:
                logger.warning("registration of an unknown identity, %s", frames[0].bytes.hex())
            elif len(frames) != 2:
                logger.warning("registration of engine %d: a message of %d frames", index, len(frames))
            else:
                self._on_message(index, frames[1])

    def _on_message(self, index: int, payload: zmq.Frame) -> None:
        try:
            response = decode_ready_response(payload.bytes)
        except CodecError as error:
            logger.warning("registration of engine %d cannot be read: %s", index, error)
            return
        connection = connection_of(payload)
        if self._monitor.is_open(connection):
            self._on_registration(Registration(index, connection, peer_of(payload), response, payload.bytes))
        else:
            logger.warning("engine %d has registered and gone", index)
