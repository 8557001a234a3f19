"""Clients' connections.

Nearly all that comes asks plainly for an answer: a POST with a body of a told length. Such requests are read here,
without the machinery that HTTP takes otherwise, which costs a fifth of a short answer. The first request that is not so
makes the connection aiohttp's, with all that follows on it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from http import HTTPStatus
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from .._codec import RequestHead
from .completions import ENDPOINTS, Endpoint
from .errors import ApiError, malformed, told
from .exchange import response_head
from .serving import Gateway

#: Seconds an idle connection is kept: longer than load balancers do, so that it is they who close it.
KEEPALIVE = 120.0
#: Bytes of later requests that are read while one is being answered.
_READ_AHEAD = 64 << 10


class Service(msgspec.Struct, frozen=True):
    """What requests are answered with.

    Attributes
    ----------
    max_body_size : int
        Bytes.
    strict : bool
        Whether names that a request does not have are refused.
    alone : bool
        Whether no other process listens on the port. Otherwise a client that cannot be served here may find another
        process with its next connection.
    """

    gateway: Gateway
    max_body_size: int
    strict: bool
    alone: bool


class Runner(web.AppRunner):
    """Listens with connections that are ``PlainConnection``; aiohttp has no other way to say so."""

    def __init__(self, app: web.Application, service: Service, **settings: Any) -> None:
        """``settings`` are aiohttp's."""
        super().__init__(app, access_log=None, handler_cancellation=True, keepalive_timeout=KEEPALIVE, **settings)
        self._service = service

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        cast("_Server", server).serve(self._service)
        return server


class _Server(web.Server):
    """aiohttp's, which has connections of both kinds."""

    service: Service
    plain: set[PlainConnection]
    closing: bool

    def serve(self, service: Service) -> None:
        self.service = service
        self.plain = set()
        self.closing = False

    def __call__(self) -> PlainConnection:  # type: ignore[override]
        return PlainConnection(self)

    def others(self) -> web.RequestHandler:
        """A connection for requests of any kind."""
        return _AiohttpConnection(self, loop=self._loop, **self._kwargs)

    def pre_shutdown(self) -> None:
        self.closing = True
        for connection in list(self.plain):
            connection.close_when_idle()
        super().pre_shutdown()

    async def shutdown(self, timeout: float | None = None) -> None:
        await asyncio.gather(self._shutdown_plain(timeout), super().shutdown(timeout))

    async def _shutdown_plain(self, timeout: float | None) -> None:
        tasks = {connection.task for connection in self.plain if connection.task is not None}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for connection in list(self.plain):
            connection.close()


class PlainConnection(asyncio.Protocol):
    """A connection, and the ``Exchange`` of the request that is being answered on it."""

    framed = True

    __slots__ = (
        "_ahead",
        "_body",
        "_drained",
        "_endpoint",
        "_idle_since",
        "_loop",
        "_missing",
        "_rank",
        "_server",
        "_timer",
        "keep_alive",
        "task",
        "transport",
        "writing_paused",
    )

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.keep_alive = True
        self.writing_paused = False
        #: What answers the request at hand, from its head on.
        self.task: asyncio.Task[None] | None = None
        self._endpoint: Endpoint[Any] | None = None
        self._rank: str | None = None
        self._body: list[bytes] = []
        self._missing = 0
        self._ahead = b""
        self._drained: asyncio.Future[None] | None = None
        self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(KEEPALIVE, self._check_idle)

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._server.plain.add(self)

    def data_received(self, data: bytes) -> None:
        if self.task is not None:
            self._read_ahead(self._ahead + data)
        elif self._endpoint is not None:
            self._add(self._endpoint, data)
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_lost(self, error: BaseException | None) -> None:
        self._leave()
        if self.task is not None:
            self.task.cancel()
        elif self._endpoint is not None:  # the body will not come any more
            self._server.service.gateway.in_flight.end()

    async def drain(self) -> None:
        """As ``Exchange`` has it."""
        if self.transport is None:
            raise ConnectionResetError("the client is gone")
        if self.writing_paused:
            self._drained = self._loop.create_future()
            await self._drained

    # --- the server's side ---

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def close_when_idle(self) -> None:
        self.keep_alive = False
        if self._endpoint is None:
            self.close()

    # --- requests, one after the other ---

    def _take(self, data: bytes) -> None:
        """Begin with a request that ``data`` is the beginning of."""
        head = RequestHead.parse(data)
        endpoint = None if head is None else ENDPOINTS.get(head.path)
        if head is None or endpoint is None or head.content_length > self._server.service.max_body_size:
            self._hand_over(data)
            return
        self._server.service.gateway.in_flight.begin()
        self._endpoint = endpoint
        self._rank = head.rank
        self.keep_alive = head.keep_alive and not self._server.closing
        self._missing = head.content_length
        self._add(endpoint, data[head.size :])

    def _add(self, endpoint: Endpoint[Any], data: bytes) -> None:
        """Take more of the body, and begin with the answer when that is all of it."""
        self._body.append(data[: self._missing])
        rest = data[self._missing :]
        self._missing -= len(data) - len(rest)
        if self._missing:
            return
        body = b"".join(self._body)
        self._body = []
        self.task = self._loop.create_task(self._see_through(endpoint, body))
        self.task.add_done_callback(self._end)  # it may be cancelled before it begins
        if rest:
            self._read_ahead(rest)

    def _read_ahead(self, data: bytes) -> None:
        """Keep what later requests begin with, and read no more than that needs."""
        self._ahead = data
        transport, more = self.transport, len(data) <= _READ_AHEAD
        if transport is None or more == transport.is_reading():
            return
        if more:
            transport.resume_reading()
        else:
            transport.pause_reading()

    async def _see_through(self, endpoint: Endpoint[Any], body: bytes) -> None:
        service = self._server.service
        try:
            try:
                await endpoint.answer(self, service.gateway, body, self._rank, strict=service.strict)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - the outermost border; ``told`` logs what nobody foresaw
                self._refuse(told(error, "POST", endpoint.path))
            if self.writing_paused:
                await self.drain()
        except ConnectionError:
            self.keep_alive = False

    def _refuse(self, error: ApiError) -> None:
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE and not self._server.service.alone:
            self.keep_alive = False
        if self.transport is None or self.transport.is_closing():
            return
        head = response_head(True, self.keep_alive, int(time.time()), "application/json", error.status)
        more = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items()).encode("ascii")
        body = error.body
        self.transport.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (head, more, len(body), body))

    def _end(self, task: asyncio.Task[None]) -> None:
        """The request at hand is answered: it is the next one's turn."""
        self.task = None
        self._endpoint = None
        self._server.service.gateway.in_flight.end()
        if self.transport is None or self.transport.is_closing():
            return
        if not self.keep_alive:
            self.transport.close()
            return
        self._idle_since = self._loop.time()
        if self._ahead:
            ahead = self._ahead
            self._read_ahead(b"")
            self._take(ahead)

    def _hand_over(self, data: bytes) -> None:
        """Let aiohttp have the connection from the request on that ``data`` begins with."""
        transport = self.transport
        if transport is None:
            return
        self._leave()
        others = self._server.others()
        transport.set_protocol(others)
        others.connection_made(transport)
        others.data_received(data)

    def _leave(self) -> None:
        self.transport = None
        self._timer.cancel()
        self._server.plain.discard(self)

    def _check_idle(self) -> None:
        idle = 0.0 if self._endpoint is not None else self._loop.time() - self._idle_since
        if idle >= KEEPALIVE:
            self.close()
        else:
            self._timer = self._loop.call_later(KEEPALIVE - idle, self._check_idle)


class _AiohttpConnection(web.RequestHandler):
    """Has an ``ErrorBody`` for what never comes as far as the application: bytes that are no HTTP."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """As aiohttp's, which would have a request wait for ever for the rest of a body that turns out to be none."""
        super().data_received(data)
        error = getattr(self._messages[-1][0], "exc", None) if self._messages else None
        if not isinstance(error, HttpProcessingError):
            return
        # It may be the body of the request at hand, or of the last of those that wait for their turn.
        bodies = [body for _, body in list(self._messages)[-2:-1]]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof():
                body.set_exception(web.RequestPayloadError(error.message))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """As aiohttp's, which logs it, but for the body; the connection is closed after it."""
        told = super().handle_error(request, status, exc, message)
        if not isinstance(exc, HttpProcessingError):
            return told
        response = malformed("The request is no valid HTTP", exc).response()
        response.force_close()
        return response
