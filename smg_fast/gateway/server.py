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
from ..transport.socket_directory import clear_stale_socket, prepare_directory, remove_socket
from ..workers import ModelSource, Registry, Worker, WorkerSpec, shared
from .app import create_app
from .connections import Runner, Service
from .models import ServedModel
from .processes import GatewayProcess
from .serving import Gateway

logger = logging.getLogger(__name__)

#: Seconds for the last bytes to reach their clients, once the engines have been let go.
_FLUSH_TIMEOUT = 2.0
_MIB = 1 << 20
#: Connections that may wait to be accepted: clients tend to come all at once.
_BACKLOG = 1024


class StartError(Exception):
    """The gateway cannot start; the text tells the operator what to mend."""


class GatewayServer:
    """A gateway: models, workers, and the port it listens on."""

    def __init__(
        self,
        settings: GatewaySettings,
        workers: Sequence[WorkerSettings],
        process: GatewayProcess | None = None,
    ) -> None:
        """Nothing is loaded or bound yet. ``workers`` are registered at the start; more may come and go.

        ``process``: which one this is, of several that share the port and the workers.
        """
        self._settings = settings
        self._process = process
        self._threads = PromptThreads.start()
        self._specs = [worker_spec(worker) for worker in workers]
        self._workers: list[Worker[ServedModel]] = []
        self.gateway = Gateway(Registry(self._load), removal_timeout=settings.shutdown_timeout)
        service = Service(self.gateway, settings.max_body_size * _MIB, settings.strict, alone=process is None)
        # The timeout is taken twice: until a handler is cancelled, and for the cancelled one to end.
        self._runner = Runner(create_app(service, process), service, shutdown_timeout=_FLUSH_TIMEOUT / 2)
        self._hurried = asyncio.Event()
        self._site: web.TCPSite | None = None
        self._socket: Path | None = None

    async def start(self) -> None:
        """Listen for clients, load the models that are given, and listen for engines, which may come any time after.

        Raises ``StartError`` for an address that is taken or cannot be used, an unknown runtime, a model that cannot be
        used; nothing is left bound.
        """
        try:
            await self._listen()
            await self._register()
            await self._meet_processes()
        except (StartError, asyncio.CancelledError):
            await self._close()
            raise

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
        ended = asyncio.create_task(in_flight.wait_none(self._settings.shutdown_timeout))
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait((ended, hurried), return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, hurried):
            task.cancel()
        if in_flight:
            logger.warning("ending %d requests that are still in flight", len(in_flight))
        await self._close()

    def hurry(self) -> None:
        """Have ``stop``, which may be under way, wait for no request any more."""
        self._hurried.set()

    @property
    def handshakes(self) -> list[str]:
        """Where the engines of the workers that it was started with dial in."""
        return [worker.client.addresses.handshake for worker in self._workers]

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, with an address that can be connected to."""
        return url_of(*self._runner.addresses[0][:2])

    def is_ready(self, url: str, ranks: Sequence[int]) -> bool:
        """Whether all these engines of the worker at ``url`` take requests."""
        workers = [worker for worker in self.gateway.registry.workers if worker.spec.url == url]
        return any({engine.index for engine in worker.client.ready_engines}.issuperset(ranks) for worker in workers)

    async def wait_ready(self) -> None:
        """Return when every worker that it was started with has an engine that takes requests.

        Raises ``StartError`` if the registration of one fails, as its engine does not tell which model it serves.
        """
        for worker in self._workers:
            if await worker.wait_for(lambda state: state in ("ready", "failed", "removed")) == "failed":
                raise StartError(f"worker {worker.spec.url}: {worker.reason}")

    async def _listen(self) -> None:
        await self._runner.setup()
        several = self._process is not None
        site = web.TCPSite(
            self._runner, self._settings.host, self._settings.port, backlog=_BACKLOG, reuse_port=several or None
        )
        try:
            await site.start()
        except OSError as error:
            raise cannot_listen(self._settings, error) from error
        self._site = site

    async def _register(self) -> None:
        """Returns when all is done that takes no engine."""
        try:
            if self._process is not None:
                self._specs = shared(self._specs, self._process.count, self._process.index)
            self._workers += [self.gateway.registry.add(spec, quiet=True) for spec in self._specs]
        except ValueError as error:
            raise StartError(str(error)) from error
        for worker in self._workers:
            if await worker.wait_for(lambda state: state != "registering") == "failed":
                raise StartError(worker.reason)

    async def _meet_processes(self) -> None:
        """Listen for the other processes, if there are any: last, as it tells them that this one has started."""
        if self._process is None:
            return
        socket = self._process.socket
        try:
            prepare_directory(socket.parent)
            clear_stale_socket(socket)
            await web.UnixSite(self._runner, str(socket)).start()
            self._socket = socket
        except (BindError, OSError) as error:
            raise StartError(f"cannot listen on {socket}: {error}") from error

    def _load(self, source: ModelSource) -> ServedModel:
        return ServedModel.load(
            source.path,
            source.path.name,
            self._threads,
            chat_template=source.chat_template,
            generation_config=source.generation_config,
        )

    async def _close(self) -> None:
        await self.gateway.registry.close()
        await self.gateway.compiler.close()
        await self._runner.cleanup()
        if self._socket is not None:
            remove_socket(self._socket)
        self._threads.stop()


def url_of(host: str, port: int) -> str:
    """``http://HOST:PORT``, with an address that can be connected to, for one that is listened on."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def cannot_listen(settings: GatewaySettings, error: OSError) -> StartError:
    return StartError(f"cannot listen on {settings.host}:{settings.port}: {_reason(error)}")


def worker_spec(worker: WorkerSettings) -> WorkerSpec:
    return WorkerSpec(
        url=worker.worker,
        runtime=worker.runtime,
        model=None if worker.model is None else Path(worker.model),
        served_model_names=worker.served_model_name,
        chat_template=None if worker.chat_template is None else Path(worker.chat_template),
        generation_config=worker.generation_config,
        handshake_address=worker.handshake_address,
        request_form=worker.request_form,
        vllm_version=worker.vllm_version,
        structured_outputs_backend=worker.structured_outputs_backend,
        max_logprobs=worker.max_logprobs,
        engine_count=worker.engine_count,
        silence_timeout=worker.silence_timeout,
        priority=worker.priority,
    )


def _reason(error: OSError) -> str:
    """Without the addresses, which asyncio puts into the text."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
