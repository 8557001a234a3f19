"""Workers: who serves which model, and who gets the next request."""

from __future__ import annotations

from .registry import Registry, UnknownModelError
from .spec import WorkerSpec
from .worker import Worker

__all__ = ["Registry", "UnknownModelError", "Worker", "WorkerSpec"]
