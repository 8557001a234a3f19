"""How a worker comes into service, step by step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from ..transport import BindError
from .launch_command import ProcessGoneError, launched_model
from .models import SharedModels
from .worker import Worker
from .workflow import Event, Step, Workflow

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

#: Engines that end between their registration and the look at their process.
_DISCOVERY_ATTEMPTS = 5


class Registration(Generic[ModelT]):
    """The registration of one worker.

    Parameters
    ----------
    check
        Raises ``ConflictError`` if the worker, as far as it is known by now, cannot be beside the others.
    """

    def __init__(
        self, worker: Worker[ModelT], models: SharedModels[ModelT], check: Callable[[Worker[ModelT]], None]
    ) -> None:
        self.worker = worker
        self._models = models
        self._check = check
        self._model: ModelT | None = None

    async def run(self) -> None:
        """Bring the worker into service, and tell in its history how. Raises ``StepFailed``."""
        await self._workflow().run(self, self._on_event)

    def release(self) -> None:
        """Let go of what the registration has acquired. To be called once, at the end of the worker's life."""
        if self._model is not None:
            assert self.worker.source is not None
            self._models.release(self.worker.source)
            self._model = None

    def _on_event(self, event: Event) -> None:
        self.worker.history.append(event)
        if event.state == "retrying":
            logger.warning("worker %s: %s, tried again: %s", self.worker.spec.url, event.step, event.detail)

    def _workflow(self) -> Workflow[Registration[ModelT]]:
        spec = self.worker.spec
        # A model that is given is loaded while the engine is waited for; one that is not has to be told by it.
        told_by_engine = ("handshake",) if spec.model is None else ()
        return Workflow(
            [
                Step(
                    name="detect_connection",
                    run=Registration._detect_connection,
                    when=lambda _: spec.connection_mode is None,
                ),
                Step(name="resolve_runtime", run=Registration._resolve_runtime, when=lambda _: spec.runtime is None),
                Step(name="connect", run=Registration._connect, needs=("detect_connection", "resolve_runtime")),
                Step(name="handshake", run=Registration._handshake, needs=("connect",)),
                Step(
                    name="discover_model",
                    run=Registration._discover_model,
                    needs=told_by_engine,
                    when=lambda _: spec.model is None,
                    attempts=_DISCOVERY_ATTEMPTS,
                    retry_on=(ProcessGoneError,),
                ),
                Step(name="load_tokenizer", run=Registration._load_tokenizer, needs=("discover_model",)),
                Step(name="register", run=Registration._register, needs=("connect", "load_tokenizer")),
                Step(name="activate", run=Registration._activate, needs=("register", "handshake")),
            ]
        )

    async def _detect_connection(self) -> str:
        return f"{self.worker.connection_mode}, as its URL says"

    async def _resolve_runtime(self) -> str:
        runtime = self.worker.family.name
        logger.warning("worker %s: its runtime is not given and taken for %s", self.worker.spec.url, runtime)
        return f"taken for {runtime}, as it is not given"

    async def _connect(self) -> str:
        address = self.worker.client.addresses.handshake
        try:
            await self.worker.start()
        except BindError as error:
            if self.worker.spec.handshake_address is not None or address not in str(error):
                raise
            raise BindError(
                f"{error}; the port follows from the worker's URL: give it a handshake address of its own, "
                "and have its engines dial that"
            ) from error
        return f"engines dial {address}"

    async def _handshake(self) -> str:
        await self.worker.client.wait_ready()
        return self.worker.client.reason

    async def _discover_model(self) -> str:
        """One engine that is ready is as good as another: all serve the same model."""
        client = self.worker.client
        await client.wait_ready()
        process = client.ready_engines[0].process
        if process is None:
            raise ProcessGoneError("the engine's process cannot be seen from here: the model's directory must be given")
        model = await asyncio.to_thread(launched_model, process.pid)
        self.worker.set_model(model.path, model.names)
        self._check(self.worker)
        return f"{model.path}, as process {process.pid} was started with"

    async def _load_tokenizer(self) -> str:
        source = self.worker.source
        assert source is not None  # given, or found by the step before
        self._model = await self._models.acquire(source)
        return str(source.path)

    async def _register(self) -> str:
        assert self._model is not None
        self.worker.register(self._model)
        return ", ".join(self.worker.names)

    async def _activate(self) -> None:
        self.worker.enter("active")
