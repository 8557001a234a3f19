"""TokenSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ..._codec import Protocol, encode_abort
from ..capabilities import Capabilities
from ..request import GenerationRequest
from .capabilities import CAPABILITIES
from .request import RequestForm, encode_request

__all__ = ["CAPABILITIES", "RequestForm", "TokenSpeed"]


class TokenSpeed(msgspec.Struct, frozen=True):
    """The TokenSpeed family. ``form``: the revision of the wire its requests are written in."""

    form: RequestForm = "tagged"

    name: ClassVar[str] = "tokenspeed"
    protocol: ClassVar[Protocol] = Protocol.tokenspeed()

    @property
    def capabilities(self) -> Capabilities:
        """The tuples of the first revision have no room for a constraint."""
        if self.form == "tagged":
            return CAPABILITIES
        return msgspec.structs.replace(CAPABILITIES, constraints=frozenset())

    def encode_request(self, request: GenerationRequest) -> list[bytes]:
        """See ``EngineFamily``; ``ValueError`` for a ``top_k`` the engine refuses."""
        return encode_request(request, self.form)

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_abort(rids)
