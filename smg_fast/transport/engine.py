"""What a client knows of each of its engines."""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set

from .._codec import Protocol, ReadyResponse


class EngineState(enum.Enum):
    """Where an engine is in its life, as far as the gateway can see."""

    ABSENT = "has not said hello"
    STARTING = "is starting"
    READY = "is ready"
    #: Connected, and owing an answer for too long. Ready again as soon as it says anything; until then it is given one
    #: response at a time to try it, if no other engine is ready.
    SILENT = "is silent"
    #: Ready again when it registers again.
    LOST = "is lost"
    #: Registered, and of no use: its wire is unknown, or another one than that of the engines beside it. The latter is
    #: judged again when those are gone.
    REFUSED = "is refused"


class Engine:
    """One engine of a worker. The client alone changes it.

    Attributes
    ----------
    state, reason : EngineState, str
        The reason completes a sentence that begins with "engine 0".
    in_flight : int
        Generations it works on for this gateway.
    heard : float
        Loop time, in seconds, since which it owes an answer if it has anything in flight.
    connection, peer : int or None, str
        Connection it registered on, while that is open, and the process at its other end.
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
        "peer",
        "protocol",
        "ready_response",
        "reason",
        "refusals",
        "state",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.identity = index.to_bytes(2, "little")
        self.state = EngineState.ABSENT
        self.reason = EngineState.ABSENT.value
        self.in_flight = 0
        self.ready_response: ReadyResponse | None = None
        self.protocol: Protocol | None = None
        self.heard = 0.0
        self.connection: int | None = None
        self.peer = ""
        self.refusals = 0

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
        return self.state in (EngineState.READY, EngineState.SILENT)

    def __repr__(self) -> str:
        return f"<Engine {self.index} {self.reason}, {self.in_flight} in flight>"


class EngineGroup:
    """The engines of one worker."""

    __slots__ = ("_turn", "engines")

    def __init__(self, count: int) -> None:
        self.engines = tuple(Engine(index) for index in range(count))
        self._turn = 0

    def least_loaded(self, rank: int | None = None) -> Engine:
        """The ready engine with the least in flight; among equals, each in its turn. With none ready, a silent one.

        There must be one or the other. With ``rank`` that engine alone counts.
        """
        count = len(self.engines)
        among = self._among(rank)
        candidates = [engine for engine in among if engine.ready] or self._silent(among)
        chosen = min(candidates, key=lambda engine: (engine.in_flight, (engine.index - self._turn) % count))
        self._turn = chosen.index + 1
        return chosen

    def accepts(self, rank: int | None = None) -> bool:
        """Whether a response may be begun, on the engine ``rank`` if that is given."""
        among = self._among(rank)
        if any(engine.ready for engine in among):
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
