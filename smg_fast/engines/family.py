"""What the gateway needs to know of an engine family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._codec import Protocol as WireProtocol
from .capabilities import Capabilities
from .request import GenerationRequest


class EngineFamily(Protocol):
    """A kind of engine: its wire, and what it can do. Stateless; one serves any number of workers."""

    @property
    def name(self) -> str:
        """As in ``--runtime``."""

    @property
    def protocol(self) -> WireProtocol:
        """What ``Dispatcher.feed`` decodes the family's messages as."""

    @property
    def capabilities(self) -> Capabilities: ...

    def encode_request(self, request: GenerationRequest) -> list[bytes]:
        """Frames that start a generation, without the engine's identity.

        Raises ``ValueError`` for what the family's engines cannot honour; validation against ``capabilities`` comes
        first and names the parameter.
        """

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """Frames that stop generations, without the engine's identity."""
