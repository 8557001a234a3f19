"""The engine side of the wire: an engine drives an :class:`EngineServer` and never sees a byte.

``messages`` is what both sides tell each other, ``tokenspeed`` and ``vllm`` how that is laid out; ``server`` has the
sockets.
"""

from __future__ import annotations

from smg_fast.embedded.wire.messages import (
    Abort,
    Add,
    Constraint,
    EngineInfo,
    EngineRequest,
    Event,
    Initialised,
    Load,
    LogprobRows,
    Lost,
    Malformed,
    Protocol,
    Sampling,
    StartWave,
    TickRow,
    Utility,
    UtilityAnswer,
    Wave,
)
from smg_fast.embedded.wire.server import EngineServer
from smg_fast.embedded.wire.tokenspeed import TokenSpeed
from smg_fast.embedded.wire.vllm import VLLM

__all__ = [
    "VLLM",
    "Abort",
    "Add",
    "Constraint",
    "EngineInfo",
    "EngineRequest",
    "EngineServer",
    "Event",
    "Initialised",
    "Load",
    "LogprobRows",
    "Lost",
    "Malformed",
    "Protocol",
    "Sampling",
    "StartWave",
    "TickRow",
    "TokenSpeed",
    "Utility",
    "UtilityAnswer",
    "Wave",
]
