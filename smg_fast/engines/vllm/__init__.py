"""vLLM."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ..._codec import Protocol, ReadyResponse, encode_abort, encode_start_wave
from ..capabilities import Capabilities
from ..family import StartWave, UnsupportedEngineError
from ..request import GenerationRequest
from .capabilities import MOST_LOGPROBS, ConstraintBackend, capabilities_with
from .request import encode_request

__all__ = ["MOST_LOGPROBS", "VLLM", "ConstraintBackend"]

logger = logging.getLogger(__name__)


class VLLM(msgspec.Struct, frozen=True):
    """The vLLM family.

    Attributes
    ----------
    version : str, optional
        Of engines that do not report a release: those before 0.24, and what was built from source. ``ValueError`` if
        its wire is not known.
    constraint_backend : str
        What the engine shall enforce constraints with.
    max_logprobs : int
        Alternatives that the engine gives logprobs of: its ``--max-logprobs``, of which -1 is no limit.
    """

    version: str | None = None
    constraint_backend: ConstraintBackend = "guidance"
    max_logprobs: int = 20

    name: ClassVar[str] = "vllm"
    #: Seen with 0.32: the process of the EngineCore holds both connections.
    one_process: ClassVar[bool] = True
    several_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.version is not None:
            Protocol.vllm(self.version)

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_with(self.constraint_backend, self.max_logprobs)

    def protocol(self, ready: ReadyResponse) -> Protocol:
        """The layouts of the version that the engine reports, else of the configured one.

        An engine that was built from source may report ``dev``, or ``0.1.dev1+g0123456``.
        """
        reported = ready.vllm_version
        if reported is not None and reported.startswith("tokenspeed"):
            raise UnsupportedEngineError(f"is {reported}, not vLLM: say --runtime tokenspeed")
        try:
            if reported:
                return Protocol.vllm(reported)
        except ValueError as error:
            if self.version is None:
                raise UnsupportedEngineError(
                    f"cannot be used: {error}; if it was built from source, say with --vllm-version what it is like"
                ) from None
            logger.warning("%s; it is spoken to as %s, the configured version", error, self.version)
        if self.version is None:
            raise UnsupportedEngineError(
                "does not report its version of vLLM: give it with --vllm-version, or say what it is with --runtime"
            )
        return Protocol.vllm(self.version)

    def start_wave(self, ready: ReadyResponse) -> StartWave | None:
        """Ranks of a mixture of experts step together; those of other models say that they are a group of one.

        Engines before 0.24 do not say. To one that is on its own the message means nothing.
        """
        return None if ready.data_parallel_size == 1 else encode_start_wave

    def encode_request(
        self, request: GenerationRequest, protocol: Protocol, *, wave: int = 0, client: int = 0
    ) -> list[bytes]:
        """See ``EngineFamily``."""
        now = time.time()
        return encode_request(request, protocol, self.constraint_backend, arrival_time=now, wave=wave, client=client)

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_abort(rids)
