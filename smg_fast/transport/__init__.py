"""The engines' ZeroMQ wire: handshake, sockets, liveness; one client per worker."""

from __future__ import annotations

from .addresses import WorkerAddresses, worker_addresses
from .client import EngineClient
from .errors import AddressError, BindError, EngineBusy, EngineError, EngineFailed, EngineUnavailable
from .sink import Sink

__all__ = [
    "AddressError",
    "BindError",
    "EngineBusy",
    "EngineClient",
    "EngineError",
    "EngineFailed",
    "EngineUnavailable",
    "Sink",
    "WorkerAddresses",
    "worker_addresses",
]
