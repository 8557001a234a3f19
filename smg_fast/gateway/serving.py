"""What the routes share: the models, the workers behind them, and the requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType

import msgspec
from aiohttp import web

from ..transport import EngineClient
from ..workers import Registry, UnknownModelError
from .compiler import Compiler
from .errors import ApiError, invalid, unavailable
from .limits import Limits, Terms
from .models import ModelCard, ServedModel


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. ``name`` is the model's, as the client called it."""

    name: str
    model: ServedModel
    client: EngineClient
    terms: Terms


class InFlight:
    """Counts the requests being answered; a context manager around each."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._count += 1
        self._none.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

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
    """``models`` are by every name they go by; each has a worker in ``registry``."""

    def __init__(self, registry: Registry, models: Mapping[str, ServedModel]) -> None:
        self.registry = registry
        self.in_flight = InFlight()
        self.compiler = Compiler()
        self._models = models

    def target(self, name: str | None) -> Target:
        """The worker for a model; without a name for the only one there is.

        Raises
        ------
        ApiError
            404, if there is no such model; 400, if it takes a name to choose one.
        EngineUnavailable
            No engine of the model is ready.
        """
        name, model = self.model(name)
        try:
            client = self.registry.by_model(name).client
        except UnknownModelError as error:  # a model without a worker: the gateway is closing
            raise unavailable(str(error)) from None
        capabilities = client.family.capabilities
        limits = model.limits(client.ready_response, client.engine_count)
        return Target(name, model, client, Terms(capabilities, limits, model.defaults_with(capabilities)))

    def model(self, name: str | None) -> tuple[str, ServedModel]:
        """The model of this name, with the name; without one the only model there is. Raises as ``target`` does."""
        name = name or self._only_name()
        return name, self._model(name)

    def limits(self, model: ServedModel) -> Limits:
        """Of the model's engine, or before there has been one, of its files."""
        told = [worker.client.ready_response for worker in self.registry.workers if model.name in worker.spec.names]
        return model.limits(told[0] if told else None)

    def model_cards(self) -> list[ModelCard]:
        return [self.model_card(name) for name in self._models]

    def model_card(self, name: str) -> ModelCard:
        """Raises ``ApiError``, 404, for an unknown name."""
        model = self._model(name)
        return ModelCard(
            id=name,
            created=model.created,
            root=model.name,
            max_model_len=self.limits(model).max_model_len,
        )

    def check_ready(self) -> None:
        """Raises ``ApiError``, 503, unless there is a worker that takes requests."""
        clients = [worker.client for worker in self.registry.workers]
        if not any(client.ready for client in clients):
            raise unavailable("; ".join(client.reason for client in clients) or "there is no worker")

    def _model(self, name: str) -> ServedModel:
        try:
            return self._models[name]
        except KeyError:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"There is no model {name!r}, only {', '.join(self._models)}",
                param="model",
                code="model_not_found",
            ) from None

    def _only_name(self) -> str:
        if len({id(model) for model in self._models.values()}) != 1:
            raise invalid("model", f"model is required: this gateway serves {', '.join(self._models)}")
        return next(iter(self._models))


GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
