"""Where a response goes."""

from __future__ import annotations

from typing import Protocol

from .._codec import Output
from .errors import EngineError


class Sink(Protocol):
    """Called in the event loop, with no task in between; what it does must be quick and must not raise."""

    def write(self, chunk: bytes) -> None:
        """A ready HTTP/1.1 chunk, framing included. Chunks come in order."""

    def end(self, data: bytes | list[Output]) -> None:
        """The last data, unframed: a stream's last events, a whole body, or the outputs. Nothing follows."""

    def fail(self, error: EngineError) -> None:
        """The response ends with an error. Nothing follows."""
