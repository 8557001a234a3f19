"""What the gateway needs to know of an engine family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .._codec import Protocol as WireProtocol
from .._codec import ReadyResponse
from .capabilities import Capabilities
from .request import GenerationRequest

#: Frames that make an engine begin the wave of this number, without its identity. One that runs goes on.
StartWave = Callable[[int], list[bytes]]


class UnsupportedEngineError(ValueError):
    """An engine that speaks no wire known here. The text tells the operator what to do about it."""


class EngineFamily(Protocol):
    """A kind of engine: its wire, and what it can do. Stateless; one serves any number of workers."""

    @property
    def name(self) -> str:
        """As in ``--runtime``."""

    @property
    def one_process(self) -> bool:
        """Whether an engine's output comes from the process that registers, and from no other.

        Else what comes from an unknown process may be any engine's.
        """

    @property
    def several_clients(self) -> bool:
        """Whether an engine serves all gateway processes that INIT lists, and not the first one alone."""

    @property
    def capabilities(self) -> Capabilities: ...

    def protocol(self, ready: ReadyResponse) -> WireProtocol:
        """The wire of an engine that has told this of itself. Raises ``UnsupportedEngineError``."""

    def start_wave(self, ready: ReadyResponse) -> StartWave | None:
        """How to wake an engine that has told this of itself, if it steps only together with the others of its group.

        ``None``: it is on its own.
        """

    def encode_request(
        self, request: GenerationRequest, protocol: WireProtocol, *, wave: int = 0, client: int = 0
    ) -> list[bytes]:
        """Frames that start a generation, without the engine's identity.

        ``wave`` is the one that the engine's group is in, if it steps together, ``client`` this gateway process as INIT
        lists it. Raises ``ValueError`` for what the
        family's engines cannot honour; validation against ``capabilities`` comes first and names the parameter.
        """

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """Frames that stop generations, without the engine's identity."""
