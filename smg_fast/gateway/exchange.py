"""One request and the way its answer goes, whoever has read the request."""

from __future__ import annotations

import asyncio
import email.utils
import functools
from http import HTTPStatus
from typing import Protocol

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE


class Exchange(Protocol):
    """What an answer needs of its connection.

    Attributes
    ----------
    framed : bool
        Whether the client speaks HTTP/1.1, and knows how to tell where an answer ends.
    keep_alive : bool
        Whether the connection may be used again. An answer may rule it out, and is begun with what it is then.
    """

    framed: bool
    keep_alive: bool

    @property
    def transport(self) -> asyncio.Transport | None:
        """``None`` once the client is gone."""

    @property
    def writing_paused(self) -> bool:
        """Whether more is waiting to be sent than should."""

    async def drain(self) -> None:
        """Return when writing is not paused. Raises ``ConnectionError`` if the client is gone."""


class AiohttpExchange:
    """The ``Exchange`` of a request that aiohttp has read."""

    __slots__ = ("_http", "framed", "keep_alive")

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self.framed = http.version >= HttpVersion11
        self.keep_alive = bool(http.keep_alive)

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._http.transport

    @property
    def writing_paused(self) -> bool:
        return self._http.protocol.writing_paused

    async def drain(self) -> None:
        await self._http.writer.drain()


class WrittenResponse(web.StreamResponse):
    """For aiohttp: an answer that is on its way already."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._usable = exchange.keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may be used again."""
        return self._usable


@functools.lru_cache(maxsize=16)
def response_head(framed: bool, keep_alive: bool, second: int, content_type: str, status: int = 200) -> bytes:
    """The status line and the headers that every answer has, each with its line's end.

    ``framed`` and ``keep_alive`` as an ``Exchange`` has them; ``second`` is now, since the epoch.
    """
    lines = [
        f"HTTP/{'1.1' if framed else '1.0'} {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        f"Date: {email.utils.formatdate(second, usegmt=True)}",
        f"Server: {SERVER_SOFTWARE}",
    ]
    if keep_alive != framed:
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    return "\r\n".join([*lines, ""]).encode("ascii")
