"""The engine side of the wire: an engine drives an :class:`EngineServer` and never sees a byte.

``messages`` is what both sides tell each other, ``tokenspeed`` how that is laid out; ``server`` has the sockets.
"""

from __future__ import annotations

from smg_fast.embedded.wire.messages import (
    Abort,
    Add,
    EngineInfo,
    EngineRequest,
    Event,
    Initialised,
    Load,
    Lost,
    Malformed,
    Protocol,
    Sampling,
    TickRow,
)
from smg_fast.embedded.wire.server import EngineServer
from smg_fast.embedded.wire.tokenspeed import TokenSpeed

__all__ = [
    "Abort",
    "Add",
    "EngineInfo",
    "EngineRequest",
    "EngineServer",
    "Event",
    "Initialised",
    "Load",
    "Lost",
    "Malformed",
    "Protocol",
    "Sampling",
    "TickRow",
    "TokenSpeed",
]
