"""A worker: a URL, the client that serves it, and where it is in its life."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from ..engines import VLLM, EngineFamily, family
from ..names import UnfitNameError, check_model_name
from ..transport import ClientState, EngineClient, EngineStatus, EngineUnavailable, worker_addresses
from ..transport.engine import EngineState
from .models import ModelSource
from .spec import ConnectionMode, WorkerSpec
from .workflow import Event

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

#: ``registered``: its model can be asked for; ``active``: it takes requests whenever an engine does.
Phase = Literal["registering", "registered", "active", "draining", "failed", "removed"]
WorkerState = Literal["registering", "connecting", "ready", "unhealthy", "draining", "failed", "removed"]

_LEAVING: tuple[Phase, ...] = ("draining", "removed")


class Worker(Generic[ModelT]):
    """One registered URL.

    Attributes
    ----------
    id : str
        Opaque, and fit for a URL.
    spec : WorkerSpec
        As it was given.
    client : EngineClient
        The frontend of its engines.
    labels, priority : dict of str, int
        Those of the spec, until they are changed.
    source, names : ModelSource or None, tuple of str
        What its model is made from (two workers for which that is the same are replicas), and all names of the model,
        its own first; as long as they are not known there are none.
    turn : int
        When a request went to it last, as the registry counts.
    created, since : float
        When it was registered and when it came into its state, in seconds since the epoch.
    history : list of Event
        What happened in its registration.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        """Nothing is bound yet. Raises ``AddressError`` or ``ValueError`` for a spec that cannot be served."""
        if spec.engine_count < 1:
            raise ValueError(f"a worker has at least one engine, got {spec.engine_count}")
        self.id = secrets.token_hex(6)
        self.spec = spec
        self.labels = spec.labels
        self.priority = spec.priority
        self.source: ModelSource | None = None
        self.names = spec.served_model_names
        if spec.model is not None:
            self.set_model(spec.model)
        self.client = EngineClient(
            _family(spec),
            worker_addresses(spec.url, spec.handshake_address),
            engine_count=spec.engine_count,
            share=spec.share,
            silence_timeout=spec.silence_timeout,
            on_change=self._on_change,
        )
        self.turn = 0
        self.created = self.since = time.time()
        self.history: list[Event] = []
        self._model: ModelT | None = None
        self._phase: Phase = "registering"
        self._why: str | None = None
        self._told: WorkerState = "registering"
        self._changed = asyncio.Event()

    @property
    def family(self) -> EngineFamily:
        return self.client.family

    @property
    def connection_mode(self) -> ConnectionMode:
        """What engines are reached by."""
        return self.spec.connection_mode or "zmq"

    @property
    def engines(self) -> list[EngineStatus]:
        """Every engine, for the operator. One whose worker is no more has nothing to dial, whatever it was before."""
        engines = self.client.engine_statuses
        if self._phase not in ("failed", "removed"):
            return engines
        return [
            msgspec.structs.replace(
                engine,
                state=EngineState.ABSENT.name.lower(),
                reason=f"engine {engine.index} has nothing to dial: the worker is closed",
                since=self.since,
                load=None,
            )
            for engine in engines
        ]

    def set_model(self, path: Path, names: tuple[str, ...] = ()) -> None:
        """Its model, and what that is called unless the spec says so; without names as its directory or file is.

        Raises ``UnfitNameError``.
        """
        template = self.spec.chat_template
        self.source = ModelSource(
            path.resolve(), None if template is None else template.resolve(), self.spec.generation_config
        )
        called = self.spec.served_model_names or names or (self.source.path.name.removesuffix(".gguf"),)
        try:
            for name in called:
                check_model_name(name)
        except UnfitNameError as error:
            raise UnfitNameError(f"the model {str(path)!r} has to be given another name: {error}") from None
        self.names = called

    # --- its life ---

    @property
    def state(self) -> WorkerState:
        """Where it is in its life; once it is registered, that is its engines' affair."""
        if self._phase == "active":
            return "ready" if self.client.ready else "unhealthy"
        if self._phase == "registering" or self._phase == "registered":
            return self._state_before_service(self.client.state)
        return self._phase

    @property
    def reason(self) -> str:
        """Why it is in its state, in words."""
        if self._why is not None:
            return self._why
        return "it is being registered" if self.state == "registering" else self.client.reason

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self._phase == "active" and self.client.ready

    @property
    def accepting(self) -> bool:
        """Whether a request may be tried on it: it is ready, or an engine that was silent is due for a trial."""
        return self._phase == "active" and self.client.accepting

    @property
    def loaded(self) -> bool:
        """Whether its model is loaded."""
        return self._model is not None

    @property
    def model(self) -> ModelT:
        """Its model, loaded. Raises ``EngineUnavailable`` before that."""
        if self._model is None:
            raise EngineUnavailable(self.reason)
        return self._model

    async def wait_for(self, fits: Callable[[WorkerState], bool]) -> WorkerState:
        """Return its state as soon as that is one that is waited for."""
        while not fits(self.state):
            await self._changed.wait()
        return self.state

    async def start(self) -> None:
        """Bind the sockets; engines may come any time after. Raises ``BindError``."""
        await self.client.start()
        self._on_change()

    def register(self, model: ModelT) -> None:
        """Its model is loaded."""
        self._model = model
        self.enter("registered")

    def enter(self, phase: Phase, why: str | None = None) -> None:
        """Go on to another phase of its life; ``why`` counts until the next. There is no way back from its removal."""
        if self._phase in _LEAVING and phase not in _LEAVING:
            return
        self._phase, self._why = phase, why
        self._on_change()

    async def close(self, *, for_good: bool = True) -> None:
        """End what is in flight, remove the sockets and let the model go. ``for_good``: see ``EngineClient.close``."""
        await self.client.close(for_good=for_good)
        self._model = None

    def _state_before_service(self, engines: ClientState) -> WorkerState:
        waits = self.source is None and engines in ("connecting", "unhealthy")
        if self._phase == "registering" and not waits:
            return "registering"
        return "unhealthy" if engines == "unhealthy" else "connecting"

    def _on_change(self) -> None:
        """Its state may be another one. Of its beginning and its end the registry tells."""
        state = self.state
        if state == self._told:
            return
        self._told, self.since = state, time.time()
        if self._phase in ("registered", "active"):
            level = logging.WARNING if state == "unhealthy" else logging.INFO
            logger.log(level, "worker %s is %s: %s", self.spec.url, state, self.reason)
        self._changed.set()
        self._changed.clear()


def _family(spec: WorkerSpec) -> EngineFamily:
    return family(
        spec.runtime or VLLM.name,
        request_form=spec.request_form,
        vllm_version=spec.vllm_version,
        structured_outputs_backend=spec.structured_outputs_backend,
        max_logprobs=spec.max_logprobs,
    )
