"""The gateway's life: what is opened, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from ..prompts.encoder import PromptThreads
from ..settings import GatewaySettings, WorkerSettings
from ..transport import BindError
from ..workers import Registry, Worker, WorkerSpec
from .app import create_app
from .models import ServedModel
from .serving import Gateway

logger = logging.getLogger(__name__)

#: Seconds for the last bytes to reach their clients, once the engines have been let go.
_FLUSH_TIMEOUT = 2.0
#: Seconds an idle connection is kept: longer than load balancers do, so that it is they who close it.
_KEEPALIVE = 120.0
_MIB = 1 << 20
#: Connections that may wait to be accepted: clients tend to come all at once.
_BACKLOG = 1024


class StartError(Exception):
    """The gateway cannot start; the text tells the operator what to mend."""


class GatewayServer:
    """A gateway: models, workers, and the port it listens on."""

    def __init__(self, settings: GatewaySettings, workers: Sequence[WorkerSettings]) -> None:
        """Loads the models; nothing is bound yet.

        Raises ``StartError`` for an unknown runtime, an address that is none, a model that cannot be used.
        """
        self._settings = settings
        self._threads = PromptThreads.start()
        try:
            self._workers = [Worker(_spec(worker)) for worker in workers]
            models = _load_models(workers, self._workers, self._threads)
        except ValueError as error:
            raise StartError(str(error)) from error
        self.gateway = Gateway(Registry(), models)
        app = create_app(self.gateway, max_body_size=settings.max_body_size * _MIB, strict=settings.strict)
        # aiohttp takes the timeout twice: until it cancels a handler, and for the cancelled one to end.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE,
            shutdown_timeout=_FLUSH_TIMEOUT / 2,
        )
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        """Listen for clients, and for engines, which may come any time after.

        Raises ``StartError`` for an address that is taken or cannot be used; nothing is left bound.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.host, self._settings.port, backlog=_BACKLOG)
        try:
            await site.start()
            self._site = site
            for worker in self._workers:
                await worker.start()
                self.gateway.registry.add(worker)
        except OSError as error:
            await self._close()
            where = f"{self._settings.host}:{self._settings.port}"
            raise StartError(f"cannot listen on {where}: {_reason(error)}") from error
        except (BindError, ValueError) as error:
            await self._close()
            raise StartError(str(error)) from error

    async def stop(self) -> None:
        """Stop listening, let the requests in flight end for as long as the settings allow, and close everything.

        What has not ended by then ends with an error.
        """
        if self._site is not None:
            await self._site.stop()
        server = self._runner.server
        if server is not None:
            server.pre_shutdown()  # closes idle connections, and the others after their answer
        in_flight = self.gateway.in_flight
        if in_flight:
            logger.info("waiting for %d requests in flight", len(in_flight))
        if not await in_flight.wait_none(self._settings.shutdown_timeout):
            logger.warning("ending %d requests that are still in flight", len(in_flight))
        await self._close()

    @property
    def handshakes(self) -> list[str]:
        """Where engines dial in."""
        return [worker.client.addresses.handshake for worker in self._workers]

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, with an address that can be connected to."""
        host, port = self._runner.addresses[0][:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def wait_ready(self) -> None:
        """Return when every worker has an engine that takes requests."""
        await asyncio.gather(*(worker.client.wait_ready() for worker in self._workers))

    async def _close(self) -> None:
        await self.gateway.registry.close()
        await self.gateway.compiler.close()
        await self._runner.cleanup()
        self._threads.stop()


def _spec(worker: WorkerSettings) -> WorkerSpec:
    return WorkerSpec(
        url=worker.worker,
        runtime=worker.runtime,
        model=Path(worker.model),
        served_model_names=worker.served_model_name,
        handshake_address=worker.handshake_address,
        request_form=worker.request_form,
        vllm_version=worker.vllm_version,
        structured_outputs_backend=worker.structured_outputs_backend,
        max_logprobs=worker.max_logprobs,
        engine_count=worker.engine_count,
        silence_timeout=worker.silence_timeout,
    )


def _load_models(
    settings: Sequence[WorkerSettings], workers: Sequence[Worker], threads: PromptThreads
) -> dict[str, ServedModel]:
    """By every name. Raises ``ValueError``: a model that cannot be used, or a name of two."""
    models: dict[str, ServedModel] = {}
    for given, worker in zip(settings, workers, strict=True):
        names = worker.spec.names
        template = None if given.chat_template is None else Path(given.chat_template)
        model = ServedModel.load(
            worker.spec.model,
            names[0],
            threads,
            chat_template=template,
            generation_config=given.generation_config,
        )
        for name in names:
            if name in models:
                raise ValueError(f"two models are called {name!r}")
            models[name] = model
    return models


def _reason(error: OSError) -> str:
    """Without the addresses, which asyncio puts into the text."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
