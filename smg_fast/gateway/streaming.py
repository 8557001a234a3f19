"""Where an engine's output leaves the process: the two sinks a response can have.

A sink is called by the engine client, in the event loop. The events of a stream go to the client's socket natively;
its sink gets what the socket does not take. The handler's task sleeps meanwhile: it is woken for a reader that is slow,
and for the end.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from .._codec import Connection, Output
from ..transport import EngineError
from .errors import engine_failure
from .exchange import Exchange, response_head

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
        "_exchange",
        "_key",
        "_native",
        "_news",
        "_rest",
        "_slow",
        "_transport",
        "connection",
    )

    def __init__(self, exchange: Exchange, client: FlowControl, created: int) -> None:
        """``created``: now, in seconds since the epoch. Raises ``ConnectionError`` if the client is gone."""
        if exchange.transport is None:
            raise ConnectionResetError("the client is gone")
        self._exchange = exchange
        self._client = client
        self._transport = exchange.transport
        self._chunked = exchange.framed
        if not self._chunked:
            exchange.keep_alive = False
        # Not written on a connection that is to be closed, and its descriptor with it; nor past what still waits there.
        native = self._chunked and not self._transport.is_closing() and not self._transport.get_write_buffer_size()
        head = response_head(self._chunked, exchange.keep_alive, created, "text/event-stream; charset=utf-8")
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
        if not self._slow and (self._native or self._exchange.writing_paused):
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

    async def deliver(self, key: int) -> None:
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
        try:
            await self._until_end(key)
            if self._slow:
                await self._exchange.drain()
            if self._rest and not self._transport.is_closing():
                self._transport.write(self._rest)
                await self._exchange.drain()
        except EngineError:
            raise
        except Exception:
            self._transport.close()  # the answer may have begun: nothing can follow on this connection
            raise

    async def _until_end(self, key: int) -> None:
        while not self._ended:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            if self._slow:
                await self._exchange.drain()
                self._slow = False
                gathered = self._client.resume(key)
                if gathered is not None:
                    self.write(gathered)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n%b" % (len(data), data, _LAST_CHUNK) if self._chunked else data


class BodySink:
    """A whole JSON body, written straight to the connection when all of it is there."""

    __slots__ = ("_body", "_exchange")

    connection = None

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
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

    async def deliver(self, key: int) -> None:
        """Write the answer, once it is there.

        Raises
        ------
        EngineError
            The engine failed.
        ConnectionError
            The client is gone.
        """
        body = await self._body
        exchange = self._exchange
        if exchange.transport is None:
            raise ConnectionResetError("the client is gone")
        head = response_head(exchange.framed, exchange.keep_alive, int(time.time()), "application/json")
        exchange.transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        if exchange.writing_paused:
            await exchange.drain()
