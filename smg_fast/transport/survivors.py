"""Engines that outlive their gateway.

An engine says what it is once, when it registers. Its sockets connect again by themselves to whoever has their
addresses next, but not a word is said then, and ZeroMQ does not tell whose connection it is. So what engines have told
is kept in a file beside the sockets, with the process of each: who connects from the same process is the same engine,
speaks the same wire, and goes by the same identity. A gateway that ends removes the file if none of them lives on; one
process of several leaves that to whoever ends them all. A worker that is removed is forgotten with its engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .._codec import CodecError, decode_ready_response
from .addresses import WorkerAddresses
from .engine import Engine, EngineState
from .monitor import ConnectionMonitor
from .outbox import Outbox, UnreachableError
from .process import Process, process_at, process_of
from .registration import Registration

logger = logging.getLogger(__name__)

#: Seconds between attempts to reach an engine that has connected, and before the first: its identity comes a little
#: later, and so does its registration, if it registers.
_INTERVAL = 0.05
#: Attempts after which it is left alone.
_ATTEMPTS = 40


def roster_path(addresses: WorkerAddresses) -> Path:
    """Where the engines of the worker at these addresses are written down."""
    worker, _, process = addresses.input.name.rpartition("-in")
    return addresses.input.with_name(f"{worker}-engines{process}").with_suffix(".json")


class Known(msgspec.Struct, frozen=True):
    """An engine that has registered: its process, what ``monitor.peer_of`` calls that, and what it told, as it came."""

    index: int
    process: Process
    peer: str
    ready_response: bytes


class Roster:
    """The file. Trouble with it is logged, and costs the memory alone."""

    __slots__ = ("_here", "_left", "_path")

    def __init__(self, addresses: WorkerAddresses) -> None:
        """Reads what an earlier gateway has left at these addresses, if it did."""
        self._path = path = roster_path(addresses)
        self._left: dict[int, Known] = {}
        self._here: dict[int, Known] = {}
        try:
            self._left = {known.index: known for known in msgspec.json.decode(path.read_bytes(), type=list[Known])}
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("cannot read which engines an earlier gateway has left: %s: %s", path, error)

    def left_by(self, process: Process) -> list[Known]:
        """Engines of a process that an earlier gateway had and this one has not."""
        return [known for known in self._left.values() if known.process == process]

    def add(self, registration: Registration) -> None:
        """Write down an engine of this gateway, in the place of the one that had its index."""
        index, process = registration.index, process_of(registration.peer)
        self._left.pop(index, None)
        self._here.pop(index, None)
        if process is not None:
            self._here[index] = Known(index, process, registration.peer, registration.payload)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode([*self._left.values(), *self._here.values()]))
            new.replace(self._path)
        except OSError as error:
            logger.warning("a later gateway will not know engine %d: %s", index, error)

    def close(self, *, for_good: bool = False) -> None:
        """Remove the file; not if one of the engines lives on, for a later gateway, unless it is ``for_good``."""
        if not for_good and any(known.process.lives for known in (*self._left.values(), *self._here.values())):
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("cannot remove which engines there were: %s", error)


class SurvivorWatch:
    """Takes back who has connected and will not register.

    Parameters
    ----------
    probe : sequence of bytes
        Frames that mean nothing to an engine.
    on_registration
        Called with what the engine told an earlier gateway, on its new connection, once it can be reached.
    """

    __slots__ = ("_engines", "_loop", "_monitor", "_on_registration", "_outbox", "_probe", "_retries", "_roster")

    def __init__(
        self,
        engines: Sequence[Engine],
        roster: Roster,
        monitor: ConnectionMonitor,
        outbox: Outbox,
        probe: Sequence[bytes],
        on_registration: Callable[[Registration], None],
    ) -> None:
        self._engines = engines
        self._roster = roster
        self._monitor = monitor
        self._outbox = outbox
        self._probe = probe
        self._on_registration = on_registration
        self._loop = asyncio.get_running_loop()
        self._retries: dict[int, asyncio.TimerHandle] = {}

    def on_connect(self, connection: int) -> None:
        """Someone has connected to the input socket."""
        before = self._retries.pop(connection, None)
        if before is not None:  # the descriptor is used anew
            before.cancel()
        process = process_at(connection)
        if process is not None and self._roster.left_by(process):
            self._wait(connection, process, _ATTEMPTS)

    def stop(self) -> None:
        for retry in self._retries.values():
            retry.cancel()

    def _wait(self, connection: int, process: Process, attempts: int) -> None:
        self._retries[connection] = self._loop.call_later(_INTERVAL, self._attempt, connection, process, attempts)

    def _attempt(self, connection: int, process: Process, attempts: int) -> None:
        self._retries.pop(connection, None)
        if not attempts or not self._monitor.is_open(connection):
            return
        for known in self._roster.left_by(process):
            # Who dials the handshake again will register.
            if known.index >= len(self._engines) or self._engines[known.index].state is EngineState.STARTING:
                continue
            if self._reaches(self._engines[known.index]):
                self._take_back(known, connection)
                return
        self._wait(connection, process, attempts - 1)

    def _reaches(self, engine: Engine) -> bool:
        try:
            self._outbox.send(engine, self._probe)
        except UnreachableError:
            return False
        return True

    def _take_back(self, known: Known, connection: int) -> None:
        try:
            response = decode_ready_response(known.ready_response)
        except CodecError as error:
            logger.warning("what engine %d told an earlier gateway cannot be read: %s", known.index, error)
            return
        logger.info("engine %d has outlived an earlier gateway", known.index)
        self._on_registration(Registration(known.index, connection, known.peer, response, known.ready_response))
