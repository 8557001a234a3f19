"""Where an engine's output leaves the process: the two sinks a response can have.

A sink is called by the engine client, in the event loop, once per tick with news. The handler's task sleeps meanwhile:
it is woken for the first chunk, for a reader that got slow, and for the end.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import HttpVersion11, web

from .._codec import Output
from ..transport import EngineError
from .errors import engine_failure

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class FlowControl(Protocol):
    """The part of an engine client that a slow reader needs."""

    def pause(self, key: int) -> None: ...

    def resume(self, key: int) -> bytes | None: ...


class EventStream:
    """Server-sent events, written straight to the connection.

    Chunks come framed for HTTP/1.1 and are written as they are. A client of HTTP/1.0 knows no framing: it gets what is
    inside, and the end of the connection is the end of its answer.
    """

    __slots__ = ("_client", "_data", "_error", "_first", "_framed", "_key", "_news", "_request", "_slow", "_transport")

    def __init__(self, request: web.Request, client: FlowControl) -> None:
        self._request = request
        self._client = client
        self._framed = request.version >= HttpVersion11
        self._key = 0
        self._news = asyncio.Event()
        self._first: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._slow = False
        self._data: bytes | None = None
        self._error: EngineError | None = None

    def write(self, chunk: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._first.append(chunk)
            self._news.set()
            return
        if transport.is_closing():
            return  # the client is gone, and the handler about to learn of it
        transport.write(chunk if self._framed else _unframed(chunk))
        if self._request.protocol.writing_paused and not self._slow:
            self._slow = True
            self._client.pause(self._key)
            self._news.set()

    def end(self, data: bytes | list[Output]) -> None:
        assert isinstance(data, bytes)
        self._data = data
        self._news.set()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._news.set()

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
        await self._news.wait()
        if self._error is not None and not self._first:
            raise self._error
        response = web.StreamResponse(headers=_HEADERS)
        if not self._framed:
            response.force_close()
        await response.prepare(self._request)  # sends the headers, so what is written from here on comes after them
        self._open()
        while self._data is None and self._error is None:
            self._news.clear()
            if self._slow:
                await self._request.writer.drain()
                self._slow = False
                gathered = self._client.resume(key)
                if gathered is not None:
                    self.write(gathered)
            else:
                await self._news.wait()
        await response.write_eof(self._data if self._data is not None else self._error_event())
        return response

    def _error_event(self) -> bytes:
        assert self._error is not None
        return b"data: " + engine_failure(self._error).body + b"\n\n"

    def _open(self) -> None:
        """From here on ``write`` writes to the connection."""
        self._transport = self._request.transport
        if self._transport is None:
            raise ConnectionResetError("the client is gone")
        first, self._first = self._first, []
        for chunk in first:
            self.write(chunk)


class BodySink:
    """A whole JSON body, sent when all of it is there."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def write(self, chunk: bytes) -> None:
        raise AssertionError("a body comes at its end, whole")

    def end(self, data: bytes | list[Output]) -> None:
        assert isinstance(data, bytes)
        if not self._body.done():
            self._body.set_result(data)

    def fail(self, error: EngineError) -> None:
        if not self._body.done():
            self._body.set_exception(error)

    async def deliver(self, key: int) -> web.StreamResponse:
        """The answer, once it is there. Raises ``EngineError`` if the engine failed."""
        return web.Response(body=await self._body, content_type="application/json")


def _unframed(chunk: bytes) -> bytes:
    """The data of one HTTP/1.1 chunk: its size, in hexadecimal, and two line ends are the framing."""
    return chunk[chunk.index(b"\r\n") + 2 : -2]
