"""What a client knows of each of its engines."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Sequence, Set

import msgspec

from .._codec import Load, Protocol, ReadyResponse
from .load import EngineLoad, pressure
from .process import Process
from .share import Share

logger = logging.getLogger(__name__)


class EngineState(enum.Enum):
    """Where an engine is in its life, as far as the gateway can see."""

    ABSENT = "has not said hello"
    STARTING = "is starting"
    READY = "is ready"
    #: Connected, and owing an answer for too long. Ready again as soon as it says anything; until then it is given one
    #: response at a time to try it, if no other engine is ready.
    SILENT = "is silent"
    #: Connected, and owing an answer while its process is stopped. Ready again as soon as that goes on.
    STOPPED = "is stopped"
    #: Ready again when it registers again.
    LOST = "is lost"
    #: Of no concern here.
    ELSEWHERE = "serves another gateway process"
    #: Registered, and of no use: its wire is unknown, or another one than that of the engines beside it. The latter is
    #: judged again when those are gone.
    REFUSED = "is refused"


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as an operator may see it.

    Attributes
    ----------
    state, reason : str
        The name of an ``EngineState``, and a sentence that begins with "engine 0".
    since : float
        When it came into this state, in seconds since the epoch.
    in_flight : int
        Generations it works on for this gateway.
    pressure : float
        See ``load.pressure``.
    load : EngineLoad or None
        What it told of its load; ``None`` while it has not since it registered.
    """

    index: int
    state: str
    reason: str
    since: float
    in_flight: int
    pressure: float
    load: EngineLoad | None


class Engine:
    """One engine of a worker. The client alone changes it.

    Attributes
    ----------
    state, reason, since : EngineState, str, float
        The reason completes a sentence that begins with "engine 0"; the time is in seconds since the epoch.
    in_flight : int
        Generations it works on for this gateway.
    load : EngineLoad or None
        What it told of its load, since it registered.
    heard : float
        Loop time, in seconds, since which it owes an answer if it has anything in flight.
    connection, peer, process : int or None, str, Process or None
        Connection it registered on, while that is open, and the process at its other end, if that can be seen.
    ready_response : ReadyResponse or None
        What it told of itself when it last registered.
    protocol : Protocol or None
        The wire it is spoken to in since then; unset while it is refused.
    refusals : int
        Messages in a row, up to its last, that could not be read.
    """

    __slots__ = (
        "connection",
        "heard",
        "identity",
        "in_flight",
        "index",
        "load",
        "peer",
        "process",
        "protocol",
        "ready_response",
        "reason",
        "refusals",
        "since",
        "state",
    )

    def __init__(self, index: int, state: EngineState = EngineState.ABSENT) -> None:
        self.index = index
        self.identity = index.to_bytes(2, "little")
        self.state = state
        self.reason = state.value
        self.since = time.time()
        self.in_flight = 0
        self.load: EngineLoad | None = None
        self.ready_response: ReadyResponse | None = None
        self.protocol: Protocol | None = None
        self.heard = 0.0
        self.connection: int | None = None
        self.peer = ""
        self.process: Process | None = None
        self.refusals = 0

    @property
    def pressure(self) -> float:
        """How busy it is; the least is best."""
        return pressure(self.in_flight, self.load)

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(
            index=self.index,
            state=self.state.name.lower(),
            reason=f"engine {self.index} {self.reason}",
            since=self.since,
            in_flight=self.in_flight,
            pressure=self.pressure,
            load=self.load,
        )

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def reachable(self) -> bool:
        """Whether it can be told to stop something. It may be lost all the same, for what it has said."""
        return self.connected and self.protocol is not None

    @property
    def connected(self) -> bool:
        """Whether it has registered and is still there, be it refused."""
        return self.connection is not None

    @property
    def serving(self) -> bool:
        """Whether it may have anything in flight."""
        return self.state in (EngineState.READY, EngineState.SILENT, EngineState.STOPPED)

    def __repr__(self) -> str:
        return f"<Engine {self.index} {self.reason}, {self.in_flight} in flight>"


class EngineGroup:
    """The engines of one worker."""

    __slots__ = ("_turn", "_warned", "engines")

    def __init__(self, share: Share) -> None:
        self.engines = tuple(
            Engine(index, EngineState.ABSENT if share.has(index) else EngineState.ELSEWHERE)
            for index in range(len(share.clients))
        )
        self._turn = 0
        self._warned = False

    @property
    def is_complete(self) -> bool:
        """Whether every engine of this process can be told to stop something."""
        return all(engine.reachable for engine in self.engines if engine.state is not EngineState.ELSEWHERE)

    def on_load(self, load: Load) -> None:
        """An engine has told of its load. The only one of a worker is meant whatever number it gives itself."""
        index = load.engine_index if len(self.engines) > 1 else 0
        if index < len(self.engines):
            engine = self.engines[index]
            engine.load = EngineLoad.of(load, engine.in_flight)
        elif not self._warned:
            self._warned = True
            logger.warning("engine %d, which this worker does not have, tells of its load", index)

    def least_loaded(self, rank: int | None = None) -> Engine:
        """The ready engine under the least pressure; among equals, each in its turn. With none ready, a silent one.

        There must be one or the other. With ``rank`` that engine alone counts.
        """
        count = len(self.engines)
        among = self._among(rank)
        if len(among) == 1:
            return among[0]
        candidates = [engine for engine in among if engine.ready] or self._silent(among)
        chosen = min(candidates, key=lambda engine: (engine.pressure, (engine.index - self._turn) % count))
        self._turn = chosen.index + 1
        return chosen

    def accepts(self, rank: int | None = None) -> bool:
        """Whether a response may be begun, on the engine ``rank`` if that is given."""
        among = self._among(rank)
        for engine in among:
            if engine.ready:
                return True
        silent = self._silent(among)
        return bool(silent) and not any(engine.in_flight for engine in silent)

    def at_connection(self, connection: int) -> Engine | None:
        """The engine that registered on a connection."""
        return next((engine for engine in self.engines if engine.connection == connection), None)

    def of_peers(self, peers: Set[str]) -> Sequence[Engine]:
        """Engines that registered from these processes."""
        return [engine for engine in self.engines if engine.peer in peers]

    def _among(self, rank: int | None) -> Sequence[Engine]:
        return self.engines if rank is None else (self.engines[rank],)

    def _silent(self, among: Sequence[Engine]) -> list[Engine]:
        return [engine for engine in among if engine.state is EngineState.SILENT]
