"""What the routes share: the models, the workers behind them, and the requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from types import TracebackType
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from .._codec import ReadyResponse
from ..transport import EngineClient, EngineUnavailable
from ..workers import Registry, UnknownModelError, Worker, reasons
from .compiler import Compiler
from .errors import ApiError, invalid, unavailable
from .limits import Limits, Terms
from .models import ModelCard, ServedModel

_NO_WORKER = "there is no worker"


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. ``name`` is the model's, as the client called it."""

    name: str
    model: ServedModel
    worker: Worker[ServedModel]
    terms: Terms

    @property
    def client(self) -> EngineClient:
        return self.worker.client


class InFlight:
    """Counts the requests being answered; a context manager around each."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        self._count += 1
        self._none.clear()

    def end(self) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __len__(self) -> int:
        return self._count

    async def wait_none(self, timeout: float) -> bool:
        """Wait until there is none; ``False`` after ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._none.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True


class Gateway:
    """``removal_timeout``: seconds that requests in flight may still take when their worker is removed."""

    def __init__(self, registry: Registry[ServedModel], *, removal_timeout: float) -> None:
        self.registry = registry
        self.removal_timeout = removal_timeout
        self.in_flight = InFlight()
        self.compiler = Compiler()
        self._terms: WeakKeyDictionary[Worker[ServedModel], tuple[ReadyResponse | None, Terms]] = WeakKeyDictionary()

    def targets(self, name: str | None) -> Iterator[Target]:
        """Workers of a model for a request to be checked against, the best first; without a name the only one's.

        After the first come those with other terms, as what one refuses another may take: such as are ready, then such
        as may be again, which ``settled`` does not choose.

        Raises
        ------
        ApiError
            404, if there is no such model; 400, if it takes a name to choose one.
        EngineUnavailable
            No engine of the model is ready.
        """
        name = name or self._only_name()
        try:
            first = self._target(name, self.registry.by_model(name))
        except UnknownModelError:
            raise self._unknown_model(name) from None
        yield first
        tried = [first.terms]
        others = self.other_targets(first)
        others += [
            self._target(name, worker)
            for worker in self.registry.serving(name)
            if worker.state == "unhealthy" and worker.loaded
        ]
        for other in others:
            if other.terms not in tried:
                tried.append(other.terms)
                yield other

    def settled(self, target: Target) -> Target:
        """Where the request goes now that it is sent: on the same terms, to whoever has the least to do.

        What was checked took its time, in which others have been sent. Raises ``EngineUnavailable``.
        """
        name = target.name

        def fits(worker: Worker[ServedModel]) -> bool:
            if worker is target.worker:
                return True
            return worker.model is target.model and self._target(name, worker).terms == target.terms

        try:
            worker = self.registry.next(name, fits)
        except UnknownModelError:  # removed meanwhile
            raise EngineUnavailable(f"the workers of {name} are gone") from None
        return target if worker is target.worker else msgspec.structs.replace(target, worker=worker)

    def other_targets(self, lost: Target) -> list[Target]:
        """Where a request may go that one worker has lost, or does not take, the best first."""
        return [self._target(lost.name, worker) for worker in self.registry.others(lost.name, lost.worker)]

    def model(self, name: str | None) -> tuple[str, ServedModel]:
        """The model of this name, with the name; without one the only model there is. It takes no engine.

        Raises as ``target`` does.
        """
        name = name or self._only_name()
        return name, self._loaded(name).model

    def limits(self, model: ServedModel) -> Limits:
        """Of the model's engine, or before there has been one, of its files."""
        clients = [worker.client for worker in self.registry.workers if worker.loaded and worker.model is model]
        return model.limits(next((told for client in clients if (told := client.ready_response) is not None), None))

    def model_cards(self) -> list[ModelCard]:
        return [self.model_card(name) for name in self.registry.names()]

    def model_card(self, name: str) -> ModelCard:
        """Raises ``ApiError``, 404, for an unknown name, and ``EngineUnavailable`` before the model is loaded."""
        worker = self._loaded(name)
        return ModelCard(
            id=name,
            created=worker.model.created,
            root=worker.names[0],
            max_model_len=self.limits(worker.model).max_model_len,
        )

    def check_ready(self) -> None:
        """Raises ``ApiError``, 503, unless there is a worker that takes requests."""
        workers = self.registry.workers
        if not any(worker.ready for worker in workers):
            raise unavailable(reasons(workers) or _NO_WORKER)

    def _target(self, name: str, worker: Worker[ServedModel]) -> Target:
        return Target(name, worker.model, worker, self._terms_of(worker))

    def _terms_of(self, worker: Worker[ServedModel]) -> Terms:
        """They change when an engine comes that says another thing of itself."""
        client, model = worker.client, worker.model
        told = client.ready_response
        known = self._terms.get(worker)
        if known is not None and known[0] is told:
            return known[1]
        capabilities = client.family.capabilities
        limits = model.limits(told, client.engine_count, shared_out=client.shared_out)
        terms = Terms(capabilities, limits, model.defaults_with(capabilities))
        self._terms[worker] = told, terms
        return terms

    def _loaded(self, name: str) -> Worker[ServedModel]:
        """A worker whose model is loaded, if there is one."""
        try:
            workers = self.registry.serving(name)
        except UnknownModelError:
            raise self._unknown_model(name) from None
        return next((worker for worker in workers if worker.loaded), workers[0])

    def _unknown_model(self, name: str) -> ApiError:
        return ApiError(
            HTTPStatus.NOT_FOUND,
            f"There is no model {name!r}, only {', '.join(self.registry.names()) or 'workers to come'}",
            param="model",
            code="model_not_found",
        )

    def _only_name(self) -> str:
        """Of the only model that is known; its first."""
        workers = [worker for worker in self.registry.workers if worker.state != "failed"]
        known = [worker for worker in workers if worker.source is not None]
        if not known:
            raise unavailable(reasons(workers) or _NO_WORKER)
        if len({worker.source for worker in known}) > 1:
            names = dict.fromkeys(name for worker in known for name in worker.names)
            raise invalid("model", f"model is required: this gateway serves {', '.join(names)}")
        return known[0].names[0]


GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
