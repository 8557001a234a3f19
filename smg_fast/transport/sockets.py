"""The sockets of one worker: bound together, closed together."""

from __future__ import annotations

from pathlib import Path

import zmq

from .addresses import WorkerAddresses
from .errors import BindError
from .socket_directory import clear_stale_socket, prepare_directory, remove_socket
from .threads import yielding_threads

#: Messages that may wait for an engine that is slow to take them. Requests beyond it are refused as busy.
_INPUT_BACKLOG = 1024
#: Bytes of the largest handshake or registration that is read; both are a few hundred.
_MAX_GREETING = 1 << 20
#: Milliseconds that closing may take to get the last aborts out to an engine that does not read.
_LINGER = 100


class WorkerSockets:
    """Bound sockets. They outlive every engine: one that comes back finds them where they were."""

    __slots__ = ("_context", "_paths", "handshake", "input", "monitor", "output")

    def __init__(self, addresses: WorkerAddresses, *, handshake: bool = True) -> None:
        """``handshake``: whether its socket is this process's. Raises ``BindError``, with nothing left bound."""
        paths = addresses.input, addresses.output
        for path in paths:
            prepare_directory(path.parent)
            clear_stale_socket(path)
        self._paths: list[Path] = []
        # A context of its own: when it has ended, so has everything of this worker, and the addresses are free.
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        with yielding_threads():  # the first socket of a context starts them
            self.input = self._greeting_router()
        self.handshake = self._greeting_router() if handshake else None
        self.input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.input.setsockopt(zmq.SNDHWM, _INPUT_BACKLOG)
        self.output: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        self.monitor = self.input.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        try:
            if self.handshake is not None:
                self._bind(self.handshake, addresses.handshake)
            self._bind(self.input, addresses.input_endpoint, addresses.input)
            self._bind(self.output, addresses.output_endpoint, addresses.output)
        except BindError:
            self.close()
            raise

    def close(self) -> None:
        """Close all of them and remove their files. Takes a moment, at most 0.1 s."""
        self.input.disable_monitor()
        self._context.destroy(linger=_LINGER)
        for path in self._paths:
            remove_socket(path)
        self._paths.clear()

    def _greeting_router(self) -> zmq.Socket[bytes]:
        router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.MAXMSGSIZE, _MAX_GREETING)
        # An engine that comes back has the identity of the one before, whose connection may still look alive.
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        return router

    def _bind(self, socket: zmq.Socket[bytes], endpoint: str, path: Path | None = None) -> None:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise BindError(f"cannot bind {endpoint}: {error.strerror}") from error
        if path is not None:
            self._paths.append(path)
