"""The routes, put together."""

from __future__ import annotations

import msgspec
from aiohttp import web

from .completions import chat_completions, completions
from .errors import errors_middleware
from .models import ModelList
from .serving import GATEWAY, Gateway


def create_app(gateway: Gateway, *, max_body_size: int) -> web.Application:
    """The HTTP application. ``max_body_size`` is in bytes."""
    app = web.Application(middlewares=[errors_middleware], client_max_size=max_body_size)
    app[GATEWAY] = gateway
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", list_models),
            web.get("/v1/models/{id:.+}", get_model),
            web.get("/health", health),
            web.get("/ready", ready),
        ]
    )
    return app


async def list_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: every name a model goes by."""
    return _json(ModelList(data=request.app[GATEWAY].model_cards()))


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``"""
    return _json(request.app[GATEWAY].model_card(request.match_info["id"]))


async def health(request: web.Request) -> web.Response:
    """``GET /health``: this process is alive; how much it has in flight."""
    gateway = request.app[GATEWAY]
    generations = sum(worker.client.in_flight for worker in gateway.registry.workers)
    return _json(Health(status="alive", requests=len(gateway.in_flight), generations=generations))


async def ready(request: web.Request) -> web.Response:
    """``GET /ready``: an engine takes requests; else 503, with the reason."""
    request.app[GATEWAY].check_ready()
    return _json(Status(status="ready"))


class Status(msgspec.Struct, frozen=True):
    status: str


class Health(msgspec.Struct, frozen=True):
    """``requests`` are clients' that wait for their answer, ``generations`` sequences that engines work on."""

    status: str
    requests: int
    generations: int


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
