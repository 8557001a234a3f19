"""Where a response goes."""

from __future__ import annotations

from typing import Protocol

from .._codec import Output
from .errors import EngineError


class Sink(Protocol):
    """Called in the event loop, with no task in between; what it does must be quick and must not raise."""

    def write(self, chunk: bytes) -> None:
        """Bytes to be written; see ``Outcome.chunks``. They come in order."""

    def end(self, data: bytes | list[Output]) -> None:
        """The last data: a stream's last bytes, a whole body, or the outputs. Nothing follows."""

    def fail(self, error: EngineError, *, begun: bool) -> None:
        """The response ends with an error; ``begun``: after something went to its connection. Nothing follows."""
