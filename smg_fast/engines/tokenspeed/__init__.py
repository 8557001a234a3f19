"""TokenSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ..._codec import Protocol, ReadyResponse, encode_abort
from ..capabilities import Capabilities
from ..family import UnsupportedEngineError
from ..request import GenerationRequest
from .capabilities import CAPABILITIES
from .request import RequestForm, encode_request

__all__ = ["CAPABILITIES", "RequestForm", "TokenSpeed"]

_PROTOCOL = Protocol.tokenspeed()


class TokenSpeed(msgspec.Struct, frozen=True):
    """The TokenSpeed family. ``form``: the revision of the wire its requests are written in."""

    form: RequestForm = "tagged"

    name: ClassVar[str] = "tokenspeed"
    one_process: ClassVar[bool] = False
    #: INIT has room for them, but what an engine does with more than one is not known.
    several_clients: ClassVar[bool] = False

    @property
    def capabilities(self) -> Capabilities:
        """The tuples of the first revision have no room for a constraint."""
        if self.form == "tagged":
            return CAPABILITIES
        return msgspec.structs.replace(CAPABILITIES, constraints=frozenset())

    def protocol(self, ready: ReadyResponse) -> Protocol:
        """Every revision tells itself apart. A vLLM engine, which would not know what to make of it, is refused."""
        version = ready.vllm_version or ""  # TokenSpeed fills it with "tokenspeed-0.1.1"
        if version[:1].isdigit():
            raise UnsupportedEngineError(f"is vLLM {version}, not TokenSpeed: say --runtime vllm")
        return _PROTOCOL

    def start_wave(self, ready: ReadyResponse) -> None:
        """See ``EngineFamily``; its engines wake each other."""

    def encode_request(
        self, request: GenerationRequest, protocol: Protocol, *, wave: int = 0, client: int = 0
    ) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_request(request, self.form)

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_abort(rids)
