"""Workers: who serves which model, and who gets the next request."""

from __future__ import annotations

from .models import ModelSource
from .registry import ConflictError, Registry, UnknownModelError, UnknownWorkerError, reasons
from .shares import shared
from .spec import WorkerSpec
from .worker import Worker

__all__ = [
    "ConflictError",
    "ModelSource",
    "Registry",
    "UnknownModelError",
    "UnknownWorkerError",
    "Worker",
    "WorkerSpec",
    "reasons",
    "shared",
]
