"""The engine's sockets: handshake, requests in, ticks out, and a gateway that may go and come back.

The gateway binds, the engine connects. Per engine: HELLO, then the gateway's INIT with the addresses, then (the model
is loaded) READY, and a registration as the first message on the input socket. An engine's identity is its index, two
bytes, little-endian.

A gateway may be several processes, each with sockets of its own: clients, numbered as INIT lists them. An engine whose
family knows of it (see ``Protocol.several_clients``) registers with all of them. Seen with vLLM 0.32.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Literal

import msgpack
import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from smg_fast.embedded.wire.messages import Initialised, Lost, Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from smg_fast.embedded.wire.messages import EngineInfo, Event, Load, Protocol, TickRow, UtilityAnswer, Wave

ENGINE_DEAD = b"ENGINE_CORE_DEAD"

State = Literal["dialing", "initialised", "ready"]

_REDIAL_SECONDS = 0.2  # from one HELLO to the next: a gateway that keeps failing is not hammered
_READY_LINGER_SECONDS = 1.0
_REQUESTS_PER_TURN = 1024  # so that ticks go on under a flood of requests
# With reconnection off, a connection that breaks says DISCONNECTED and one that cannot be made says CLOSED.
_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class _Addresses(msgspec.Struct, frozen=True):
    inputs: list[str]
    outputs: list[str]


class _Init(msgspec.Struct, frozen=True):
    addresses: _Addresses


class _Client:
    """The sockets of one process of the gateway, and the messages that wait for room there."""

    def __init__(self, input: zmq.Socket[bytes], output: zmq.Socket[bytes]) -> None:
        self.input = input
        self.output = output
        self.outbox: deque[list[bytes]] = deque()


class EngineServer:
    """One engine's end of the wire. Not thread-safe: the engine's loop calls it, and ``receive`` is where it waits.

    Parameters
    ----------
    protocol
        The engine family's layout.
    handshake
        Where the gateway's handshake socket is, ``tcp://host:port``. It may appear later: ZeroMQ keeps trying.
    index
        The engine's rank on the gateway's sockets, 0 to 65535.
    local
        What HELLO and READY say about running on the gateway's host.
    redial
        Dial the handshake again when the input connection is lost, so that a restarted gateway gets its engine back.
        Otherwise ZeroMQ reconnects by itself, as an ordinary engine's does, to a gateway that has forgotten it. So it
        does where there are several clients: what one of them has asked for goes on without it.
    wake
        File descriptors that end ``receive`` early when readable (see ``process.Signals``).
    high_water
        Ticks that may wait in the output socket before ``blocked`` becomes true. With several clients there is no such
        bound, as one that is away would hold up the others.
    """

    def __init__(
        self,
        protocol: Protocol,
        handshake: str,
        index: int,
        *,
        local: bool = True,
        redial: bool = True,
        wake: Iterable[int] = (),
        high_water: int = 64,
    ) -> None:
        self.index = index
        self.state: State = "dialing"
        self._protocol = protocol
        self._address = handshake
        self._identity = index.to_bytes(2, "little")
        self._local = local
        self._redial = redial
        self._high_water = high_water
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._handshake: zmq.Socket[bytes] | None = None
        self._clients: list[_Client] = []
        # Of the handshake until the engine is ready, then of the input of a client that is alone.
        self._monitor: zmq.Socket[bytes] | None = None
        self._watched: zmq.Socket[bytes] | None = None
        self._addresses: _Addresses | None = None
        self._dial_at: float | None = 0.0
        self._last_dial = 0.0
        for descriptor in wake:
            self._poller.register(descriptor, zmq.POLLIN)

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def blocked(self) -> bool:
        """The gateway reads slower than the engine writes: make no further tick until ``receive`` has cleared this."""
        return any(client.outbox for client in self._clients)

    def receive(self, timeout: float | None) -> list[Event]:
        """Waits up to ``timeout`` seconds (None: as long as it takes) and returns what happened, in order.

        The list is empty when the time is up, when a ``wake`` became readable, or when a step of the handshake or a
        waiting tick was all there was to do.
        """
        events: list[Event] = []
        if self._dial_at is not None:
            left = self._dial_at - time.monotonic()
            if left <= 0:
                self._dial()
            else:
                timeout = left if timeout is None else min(timeout, left)
        for source, _ in self._poller.poll(None if timeout is None else math.ceil(timeout * 1000)):
            if not isinstance(source, zmq.Socket):
                continue  # a wake descriptor: the caller looks
            if source is self._handshake:
                self._read_handshake(source, events)
            elif source is self._monitor:
                if _gone(source):
                    self._lose(events)
                    break  # the other sources polled are closed now
            else:
                for client in self._clients:
                    if source is client.input:
                        self._read_requests(source, events)
                    elif source is client.output:
                        self._flush(client)
        return events

    def ready(self, info: EngineInfo) -> None:
        """The model is loaded: connects to the gateway's sockets and registers. Call it once per ``Initialised``.

        Raises
        ------
        RuntimeError
            If the gateway has not initialised the engine, or is lost again.
        """
        if self.state != "initialised" or self._handshake is None or self._addresses is None:
            raise RuntimeError(f"ready() while {self.state}")
        self._handshake.send(self._protocol.encode_status("READY", local=self._local))
        # Left open it would reconnect to a restarted gateway by itself, and collide there with the next dial.
        self._drop(self._handshake, _READY_LINGER_SECONDS)
        self._handshake = None
        pairs = list(zip(self._addresses.inputs, self._addresses.outputs, strict=False))
        if not self._protocol.several_clients:
            del pairs[1:]
        for pair in pairs:
            self._clients.append(self._connect(*pair, alone=len(pairs) == 1))
        for client in self._clients:
            client.input.send(self._protocol.encode_registration(info, self.index))
        self.state = "ready"

    def encode(self, rows: Sequence[TickRow], load: Load | None) -> list[bytes]:
        """The frames of a tick, or of one client's share of it. Without a load it tells nothing of that."""
        return self._protocol.encode_tick(rows, load, self.index)

    def send_tick(self, rows: Sequence[TickRow], load: Load) -> None:
        """Sends one tick; see ``blocked`` for when to hold back the next."""
        self.send(self.encode(rows, load))

    def send_notice(self, notice: UtilityAnswer | Wave, client: int = 0) -> None:
        """Sends a message without rows."""
        self.send(self._protocol.encode_notice(notice, self.index), client)

    def send(self, frames: list[bytes], client: int = 0) -> None:
        """Sends one output message as it is, after those that still wait for room. Without such a client it is lost."""
        if client >= len(self._clients):
            return
        receiver = self._clients[client]
        receiver.outbox.append(frames)
        if len(receiver.outbox) == 1:
            self._flush(receiver)

    def send_to_all(self, frames: list[bytes]) -> None:
        """Sends one output message to every client."""
        for client in range(len(self._clients)):
            self.send(frames, client)

    def close(self, linger: float = 0.2) -> None:
        """Closes everything; what has been sent gets up to ``linger`` seconds to leave."""
        for client in self._clients:
            client.output.setsockopt(zmq.SNDTIMEO, round(linger * 1000))
            try:
                while client.outbox:
                    client.output.send_multipart(client.outbox[0])
                    client.outbox.popleft()
            except zmq.Again:
                pass  # the gateway does not read
        self._close_sockets(linger)
        self._context.term()

    def _dial(self) -> None:
        self._dial_at = None
        self._handshake = self._socket(zmq.DEALER)
        self._watch(self._handshake, zmq.EVENT_DISCONNECTED)
        self._poller.register(self._handshake, zmq.POLLIN)
        self._handshake.connect(self._address)
        self._handshake.send(self._protocol.encode_status("HELLO", local=self._local))
        self._last_dial = time.monotonic()

    def _read_handshake(self, socket: zmq.Socket[bytes], events: list[Event]) -> None:
        message = socket.recv_multipart()[-1]
        try:
            init = msgspec.convert(msgpack.unpackb(message), _Init)
        except (ValueError, msgspec.ValidationError) as error:
            events.append(Malformed(f"INIT: {error!r}"))
            return
        if not (init.addresses.inputs and init.addresses.outputs):
            events.append(Malformed("INIT: no addresses"))
        elif self.state == "dialing":
            self._addresses = init.addresses
            self.state = "initialised"
            events.append(Initialised())

    def _read_requests(self, socket: zmq.Socket[bytes], events: list[Event]) -> None:
        for _ in range(_REQUESTS_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            events.append(self._protocol.decode_request(frames))

    def _flush(self, client: _Client) -> None:
        try:
            while client.outbox:
                client.output.send_multipart(client.outbox[0], zmq.NOBLOCK)
                client.outbox.popleft()
        except zmq.Again:
            self._poller.register(client.output, zmq.POLLOUT)
        else:
            if client.output in self._poller:
                self._poller.unregister(client.output)

    def _lose(self, events: list[Event]) -> None:
        # What was read before the connection broke belongs to a gateway that is no more.
        events[:] = [Lost()]
        self._close_sockets(0)
        self._addresses = None
        self.state = "dialing"
        self._dial_at = self._last_dial + _REDIAL_SECONDS

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IDENTITY, self._identity)
        return socket

    def _connect(self, input: str, output: str, *, alone: bool) -> _Client:
        """To the gateway's only client, or to one of several."""
        client = _Client(self._socket(zmq.DEALER), self._socket(zmq.PUSH))
        for socket in (client.input, client.output):
            socket.setsockopt(zmq.SNDHWM, self._high_water if alone else 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            if self._redial and alone:
                # A socket that reconnected by itself could collide with its successor of the same identity.
                socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if self._redial and alone:
            self._watch(client.input, _GONE)
        self._poller.register(client.input, zmq.POLLIN)
        client.input.connect(input)
        client.output.connect(output)
        return client

    def _watch(self, socket: zmq.Socket[bytes], events: int) -> None:
        self._watched = socket
        self._monitor = socket.get_monitor_socket(events)
        self._poller.register(self._monitor, zmq.POLLIN)

    def _drop(self, socket: zmq.Socket[bytes], linger: float) -> None:
        if self._monitor is not None and socket is self._watched:
            self._poller.unregister(self._monitor)
            socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = self._watched = None
        if socket in self._poller:
            self._poller.unregister(socket)
        socket.close(round(linger * 1000))

    def _close_sockets(self, linger: float) -> None:
        if self._handshake is not None:
            self._drop(self._handshake, linger)
        for client in self._clients:
            self._drop(client.input, linger)
            self._drop(client.output, linger)
        self._handshake = None
        self._clients.clear()


def _gone(monitor: zmq.Socket[bytes]) -> bool:
    gone = False
    while monitor.poll(0):
        gone |= bool(recv_monitor_message(monitor)["event"] & _GONE)
    return gone
