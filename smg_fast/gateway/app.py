"""The routes, put together."""

from __future__ import annotations

import msgspec
from aiohttp import HttpVersion11, web

from .._codec import __version__
from .body import STRICT
from .completions import ENDPOINTS
from .connections import Service
from .errors import ApiError, errors_middleware, quiet_malformed_requests
from .models import ModelList
from .processes import PROCESS, GatewayProcess, all_processes_middleware
from .serving import GATEWAY
from .tokenization import detokenize, tokenize
from .workers import add_worker, change_worker, get_worker, list_loads, list_workers, remove_worker

#: Paths of APIs that clients may know from elsewhere, and what they are called.
_UNSUPPORTED = {
    "/v1/messages": "the Messages API",
    "/v1/messages/count_tokens": "the Messages API",
    "/v1/responses": "the Responses API",
    "/v1/responses/{id}": "the Responses API",
    "/v1/embeddings": "the Embeddings API",
}


def create_app(service: Service, process: GatewayProcess | None = None) -> web.Application:
    """The HTTP application. ``process``: which one this is, of several."""
    quiet_malformed_requests()
    app = web.Application(middlewares=[errors_middleware], client_max_size=service.max_body_size)
    app[GATEWAY] = service.gateway
    if process is not None:
        app[PROCESS] = process
        app.middlewares.insert(0, all_processes_middleware)
    app[STRICT] = service.strict
    app.add_routes(
        [
            *(web.post(path, endpoint.handle, expect_handler=on_expect) for path, endpoint in ENDPOINTS.items()),
            web.get("/v1/models", list_models),
            web.get("/v1/models/{id:.+}", get_model),
            web.post("/tokenize", tokenize, expect_handler=on_expect),
            web.post("/detokenize", detokenize, expect_handler=on_expect),
            web.post("/workers", add_worker, expect_handler=on_expect),
            web.get("/workers", list_workers),
            web.get("/workers/{id}", get_worker),
            web.put("/workers/{id}", change_worker, expect_handler=on_expect),
            web.delete("/workers/{id}", remove_worker),
            web.get("/loads", list_loads),
            web.get("/version", version),
            web.get("/health", health),
            web.get("/ready", ready),
            *(web.route("*", path, unsupported) for path in _UNSUPPORTED),
        ]
    )
    return app


async def list_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: every name a model goes by."""
    return _json(ModelList(data=request.app[GATEWAY].model_cards()))


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``"""
    return _json(request.app[GATEWAY].model_card(request.match_info["id"]))


async def version(request: web.Request) -> web.Response:
    """``GET /version``: this gateway's own."""
    return _json(Version(version=__version__))


async def health(request: web.Request) -> web.Response:
    """``GET /health``: this process is alive; how much it has in flight."""
    gateway = request.app[GATEWAY]
    generations = sum(worker.client.in_flight for worker in gateway.registry.workers)
    return _json(Health(status="alive", requests=len(gateway.in_flight), generations=generations))


async def ready(request: web.Request) -> web.Response:
    """``GET /ready``: an engine takes requests; else 503, with the reason."""
    request.app[GATEWAY].check_ready()
    return _json(Status(status="ready"))


async def unsupported(request: web.Request) -> web.Response:
    """An endpoint of the APIs that this gateway has no part of. Raises ``ApiError``, 404."""
    assert request.match_info.route.resource is not None
    what = _UNSUPPORTED[request.match_info.route.resource.canonical]
    raise ApiError(404, f"{request.path}: {what} is not supported by this server", code="unsupported_endpoint")


async def on_expect(request: web.Request) -> web.Response | None:
    """Ask for a body whose client waits to be asked; 417 for another expectation, which only HTTP/1.1 has."""
    if request.version < HttpVersion11:
        return None
    expected = request.headers["Expect"]
    if expected.lower() != "100-continue":
        return ApiError(417, f"Unknown expectation: {expected}", code="unknown_expectation").response()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


class Status(msgspec.Struct, frozen=True):
    status: str


class Version(msgspec.Struct, frozen=True):
    version: str


class Health(msgspec.Struct, frozen=True):
    """``requests`` are clients' that wait for their answer, ``generations`` sequences that engines work on."""

    status: str
    requests: int
    generations: int


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
