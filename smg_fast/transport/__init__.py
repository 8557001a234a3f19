"""The engines' ZeroMQ wire: handshake, sockets, liveness; one client per worker."""

from __future__ import annotations

from .addresses import WorkerAddresses, check_own_host, worker_addresses
from .client import ClientState, EngineClient
from .engine import EngineStatus
from .errors import AddressError, BindError, EngineBusy, EngineError, EngineFailed, EngineUnavailable
from .share import Share
from .sink import Sink

__all__ = [
    "AddressError",
    "BindError",
    "ClientState",
    "EngineBusy",
    "EngineClient",
    "EngineError",
    "EngineFailed",
    "EngineStatus",
    "EngineUnavailable",
    "Share",
    "Sink",
    "WorkerAddresses",
    "check_own_host",
    "worker_addresses",
]
