"""A worker in service."""

from __future__ import annotations

from ..engines import EngineFamily, family
from ..transport import EngineClient, worker_addresses
from .spec import WorkerSpec


class Worker:
    """A spec and the client that serves it."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Nothing is bound yet. Raises ``AddressError`` or ``ValueError`` for a spec that cannot be served."""
        if spec.engine_count < 1:
            raise ValueError(f"a worker has at least one engine, got {spec.engine_count}")
        self.spec = spec
        self.client = EngineClient(
            family(spec.runtime, request_form=spec.request_form),
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
