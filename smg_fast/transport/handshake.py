"""The first contact: an engine says HELLO, is told the addresses to connect to, and says READY when it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import zmq

from .._codec import CodecError, decode_handshake, encode_init
from .addresses import WorkerAddresses
from .reader import Message, SocketReader

logger = logging.getLogger(__name__)


class HandshakeListener:
    """Answers HELLO from any number of engines, in any order, as often as they say it.

    Anyone on the host can connect to this port: what makes no sense is logged and passed over.
    """

    __slots__ = ("_addresses", "_clients", "_on_hello", "_reader", "_socket")

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        addresses: WorkerAddresses,
        clients: Sequence[Sequence[int]],
        on_hello: Callable[[int], None],
    ) -> None:
        """Begins at once, in the running loop.

        ``clients`` are, by engine, the gateway processes that it serves. ``on_hello`` gets the engine's index.
        """
        self._socket = socket
        self._addresses = addresses
        self._clients = clients
        self._on_hello = on_hello
        self._reader = SocketReader(socket, self._on_messages)

    def stop(self) -> None:
        self._reader.stop()

    def _on_messages(self, messages: list[Message]) -> None:
        for frames in messages:
            index = engine_index(frames[0].bytes, len(self._clients))
            if index is None:
                logger.warning("handshake from an unknown identity, %s", frames[0].bytes.hex())
            elif len(frames) != 2:
                logger.warning("handshake of engine %d: a message of %d frames", index, len(frames))
            else:
                self._on_message(index, frames)
        self._reader.check()

    def _on_message(self, index: int, frames: Message) -> None:
        identity, payload = frames
        try:
            status = decode_handshake(payload.bytes).status
        except CodecError as error:
            logger.warning("handshake of engine %d cannot be read: %s", index, error)
            return
        if status == "HELLO":
            logger.info("engine %d says hello", index)
            self._on_hello(index)
            self._socket.send_multipart([identity.bytes, self._init(index)], zmq.NOBLOCK)
        elif status == "READY":
            logger.info("engine %d has finished its handshake", index)
        else:
            logger.warning("handshake of engine %d: unknown status %r", index, status)

    def _init(self, index: int) -> bytes:
        clients = [self._addresses.of_process(process) for process in self._clients[index]]
        return encode_init(
            [addresses.input_endpoint for addresses in clients], [addresses.output_endpoint for addresses in clients]
        )


def engine_index(identity: bytes, engine_count: int) -> int | None:
    """Index in an engine's identity: two bytes, little-endian. ``None``: no engine of this worker has it."""
    if len(identity) != 2:
        return None
    index = int.from_bytes(identity, "little")
    return index if index < engine_count else None
