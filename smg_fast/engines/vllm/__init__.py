"""vLLM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ..._codec import Protocol, ReadyResponse, encode_abort
from ..capabilities import Capabilities
from ..family import StartWave, UnsupportedEngineError
from ..request import GenerationRequest
from .capabilities import CAPABILITIES
from .request import ConstraintBackend, encode_request, encode_start_wave

__all__ = ["CAPABILITIES", "VLLM", "ConstraintBackend"]


class VLLM(msgspec.Struct, frozen=True):
    """The vLLM family.

    Attributes
    ----------
    version : str, optional
        Of engines that do not report theirs, which is those before 0.24. ``ValueError`` if its wire is not known.
    constraint_backend : str
        What the engine shall enforce constraints with.
    max_logprobs : int
        Alternatives that the engine gives logprobs of: its ``--max-logprobs``.
    """

    version: str | None = None
    constraint_backend: ConstraintBackend = "guidance"
    max_logprobs: int = 20

    name: ClassVar[str] = "vllm"

    def __post_init__(self) -> None:
        if self.version is not None:
            Protocol.vllm(self.version)

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(
            CAPABILITIES, max_top_logprobs=self.max_logprobs, constraint_backend=self.constraint_backend
        )

    def protocol(self, ready: ReadyResponse) -> Protocol:
        """The layouts of the version that the engine reports, else of the configured one."""
        version = ready.vllm_version or self.version
        if version is None:
            raise UnsupportedEngineError(
                "does not report its version of vLLM: give it with --vllm-version, or say what it is with --runtime"
            )
        try:
            return Protocol.vllm(version)
        except ValueError as error:
            raise UnsupportedEngineError(f"cannot be used: {error}") from None

    def start_wave(self, ready: ReadyResponse) -> StartWave | None:
        """Ranks of a mixture of experts step together; those of other models say that they are a group of one.

        Engines before 0.24 do not say. To one that is on its own the message means nothing.
        """
        return None if ready.data_parallel_size == 1 else encode_start_wave

    def encode_request(self, request: GenerationRequest, protocol: Protocol, *, wave: int = 0) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_request(request, protocol, self.constraint_backend, arrival_time=time.time(), wave=wave)

    def encode_abort(self, rids: Sequence[str]) -> list[bytes]:
        """See ``EngineFamily``."""
        return encode_abort(rids)
