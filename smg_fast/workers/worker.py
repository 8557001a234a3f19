"""A worker in service."""

from __future__ import annotations

import logging

from ..engines import VLLM, EngineFamily, family
from ..transport import EngineClient, worker_addresses
from .spec import WorkerSpec

logger = logging.getLogger(__name__)


class Worker:
    """A spec and the client that serves it."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Nothing is bound yet. Raises ``AddressError`` or ``ValueError`` for a spec that cannot be served."""
        if spec.engine_count < 1:
            raise ValueError(f"a worker has at least one engine, got {spec.engine_count}")
        self.spec = spec
        self.client = EngineClient(
            _family(spec),
            worker_addresses(spec.url, spec.handshake_address),
            engine_count=spec.engine_count,
            silence_timeout=spec.silence_timeout,
        )

    @property
    def family(self) -> EngineFamily:
        return self.client.family

    async def start(self) -> None:
        """Bind the sockets; engines may come any time after. Raises ``BindError``."""
        await self.client.start()

    async def close(self) -> None:
        """End what is in flight and remove the sockets."""
        await self.client.close()


def _family(spec: WorkerSpec) -> EngineFamily:
    runtime = spec.runtime
    if runtime is None:
        runtime = VLLM.name
        logger.warning("worker %s: its runtime is not given and taken for %s", spec.url, runtime)
    return family(
        runtime,
        request_form=spec.request_form,
        vllm_version=spec.vllm_version,
        structured_outputs_backend=spec.structured_outputs_backend,
        max_logprobs=spec.max_logprobs,
    )
