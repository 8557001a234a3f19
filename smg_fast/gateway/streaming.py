"""Where an engine's output leaves the process: the two sinks a response can have.

A sink is called by the engine client, in the event loop. The events of a stream go to the client's socket natively;
its sink gets what the socket does not take. The handler's task sleeps meanwhile: it is woken for a reader that is slow,
and for the end.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import time
from typing import Protocol

from aiohttp import HttpVersion, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

from .._codec import Connection, Output
from ..transport import EngineError
from .errors import engine_failure

_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class FlowControl(Protocol):
    """The part of an engine client that a slow reader needs."""

    def pause(self, key: int) -> None: ...

    def resume(self, key: int) -> bytes | None: ...


class EventStream:
    """Server-sent events, written straight to the connection: all of the answer, its status line and framing included.

    A client of HTTP/1.0 knows no framing: it gets what is inside, and the end of the connection ends its answer.

    Attributes
    ----------
    connection : Connection
        What the engine client has to know to write it.
    """

    __slots__ = (
        "_chunked",
        "_client",
        "_ended",
        "_error",
        "_keep_alive",
        "_key",
        "_native",
        "_news",
        "_request",
        "_rest",
        "_slow",
        "_transport",
        "connection",
    )

    def __init__(self, request: web.Request, client: FlowControl, created: int) -> None:
        """``created``: now, in seconds since the epoch. Raises ``ConnectionError`` if the client is gone."""
        if request.transport is None:
            raise ConnectionResetError("the client is gone")
        self._request = request
        self._client = client
        self._transport = request.transport
        self._chunked = request.version >= HttpVersion11
        self._keep_alive = self._chunked and bool(request.keep_alive)
        # Not written on a connection that is to be closed, and its descriptor with it; nor past what still waits there.
        native = self._chunked and not self._transport.is_closing() and not self._transport.get_write_buffer_size()
        head = _head(request.version, self._keep_alive, created, "text/event-stream; charset=utf-8")
        self.connection = Connection(
            b"%bCache-Control: no-cache\r\n%b\r\n" % (head, _CHUNKED if self._chunked else b""),
            fd=self._transport.get_extra_info("socket").fileno() if native else None,
            chunked=self._chunked,
        )
        self._key: int | None = None
        self._news = asyncio.Event()
        self._slow = False
        self._native = native
        self._ended = False
        self._rest = b""
        self._error: EngineError | None = None

    # --- the sink ---

    def write(self, chunk: bytes) -> None:
        if self._transport.is_closing():
            return  # the client is gone, and the handler about to learn of it
        if self._native and not self._slow:
            # From the first byte that waits here until the last is gone, the socket is not written to natively.
            self._transport.set_write_buffer_limits(high=0)
        self._transport.write(chunk)
        if not self._slow and (self._native or self._request.protocol.writing_paused):
            self._slow = True
            if self._key is not None:
                self._client.pause(self._key)
            self._news.set()

    def end(self, data: bytes | list[Output]) -> None:
        assert isinstance(data, bytes)
        self._rest = data
        self._ended = True
        self._news.set()

    def fail(self, error: EngineError, *, begun: bool) -> None:
        if begun:
            self.end(self._framed(b"data: " + engine_failure(error).body + b"\n\n"))
        else:
            self._error = error
            self._news.set()

    # --- the answer ---

    async def deliver(self, key: int) -> web.StreamResponse:
        """See the response with this key through to its end.

        Raises
        ------
        EngineError
            The engine failed before there was anything to send; afterwards a failure is the stream's last event.
        ConnectionError
            The client is gone.
        """
        self._key = key
        if self._slow:
            self._client.pause(key)
        while not self._ended:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            if self._slow:
                await self._request.writer.drain()
                self._slow = False
                gathered = self._client.resume(key)
                if gathered is not None:
                    self.write(gathered)
        if self._slow:
            await self._request.writer.drain()
        if self._rest and not self._transport.is_closing():
            self._transport.write(self._rest)
            await self._request.writer.drain()
        return _WrittenResponse(self._keep_alive)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n%b" % (len(data), data, _LAST_CHUNK) if self._chunked else data


class _WrittenResponse(web.StreamResponse):
    """For aiohttp: an answer that is on its way already."""

    def __init__(self, keep_alive: bool) -> None:
        super().__init__()
        self._usable = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may be used again."""
        return self._usable


class BodySink:
    """A whole JSON body, written straight to the connection when all of it is there."""

    __slots__ = ("_body", "_request")

    connection = None

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def write(self, chunk: bytes) -> None:
        raise AssertionError("a body comes at its end, whole")

    def end(self, data: bytes | list[Output]) -> None:
        assert isinstance(data, bytes)
        if not self._body.done():
            self._body.set_result(data)

    def fail(self, error: EngineError, *, begun: bool) -> None:
        if not self._body.done():
            self._body.set_exception(error)

    async def deliver(self, key: int) -> web.StreamResponse:
        """The answer, once it is there.

        Raises
        ------
        EngineError
            The engine failed.
        ConnectionError
            The client is gone.
        """
        body = await self._body
        request = self._request
        transport, keep_alive = request.transport, bool(request.keep_alive)
        if transport is None:
            raise ConnectionResetError("the client is gone")
        head = _head(request.version, keep_alive, int(time.time()), "application/json")
        transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        if request.protocol.writing_paused:
            await request.writer.drain()
        return _WrittenResponse(keep_alive)


@functools.lru_cache(maxsize=8)
def _head(version: HttpVersion, keep_alive: bool, second: int, content_type: str) -> bytes:
    """The status line and the headers that every answer has; ``second`` is now, since the epoch."""
    lines = [
        f"HTTP/{'1.1' if version >= HttpVersion11 else '1.0'} 200 OK",
        f"Content-Type: {content_type}",
        f"Date: {email.utils.formatdate(second, usegmt=True)}",
        f"Server: {SERVER_SOFTWARE}",
    ]
    if keep_alive != (version >= HttpVersion11):
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    return "\r\n".join([*lines, ""]).encode("ascii")
