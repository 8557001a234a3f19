"""How busy an engine is: by its own account, and by what this gateway has sent it since."""

from __future__ import annotations

import time

import msgspec

from .._codec import Load

#: Seconds for which the account of an engine that owes nothing counts: one that works gives another with every tick.
_FRESH = 1.0
#: A KV cache that is fuller counts no more than this: it may have room again with the next tick.
_FULL = 0.99


class EngineLoad(msgspec.Struct, frozen=True):
    """What an engine told of its load with its last tick.

    Attributes
    ----------
    running, waiting : int
        Requests at the engine, whoever has sent them.
    kv_usage : float
        The share of its KV cache that is in use, in [0, 1].
    in_flight : int
        Generations that this gateway had there when it heard so.
    heard : float
        When that was, in seconds of ``time.monotonic``.
    """

    running: int
    waiting: int
    kv_usage: float
    in_flight: int
    heard: float

    @classmethod
    def of(cls, load: Load, in_flight: int) -> EngineLoad:
        return cls(load.running, load.waiting, load.kv_usage, in_flight, time.monotonic())

    @property
    def age(self) -> float:
        """Seconds since the engine told it."""
        return time.monotonic() - self.heard


def pressure(in_flight: int, load: EngineLoad | None) -> float:
    """What is compared to find the least loaded engine: the requests it would have with one more, per free share of
    its KV cache.

    An engine's account is old when the next request has to be placed. What this gateway has in flight is known, so of
    the account only the requests beyond that count: what was sent since adds to it, what has ended since does not.

    Parameters
    ----------
    in_flight
        Generations that this gateway has there now.
    load
        What the engine told last, if it does.
    """
    if load is None or (not in_flight and load.age > _FRESH):
        return in_flight + 1.0
    others = max(0, load.running + load.waiting - load.in_flight)
    # In this order what is no number counts as 0.
    used = min(_FULL, max(0.0, load.kv_usage))
    return (in_flight + others + 1) / (1 - used)
