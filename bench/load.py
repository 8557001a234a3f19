"""Closed-loop load: connections that send the next request as soon as one has been answered."""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from dataclasses import dataclass, field
from typing import cast

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Load:
    """What is asked for: ``streams`` answers of ``tokens`` tokens at a time, for ``seconds``."""

    model: str
    streams: int
    seconds: float
    tokens: int = 128
    stream: bool = True
    logprobs: bool = False
    prompt: str = "What is the capital of France? " * 8

    def body(self) -> bytes:
        """A chat whose answer has exactly so many tokens."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.tokens,
            "stream": self.stream,
            "temperature": 0,
            "ignore_eos": True,
        }
        if self.logprobs:
            body["logprobs"] = True
        return json.dumps(body).encode()


@dataclass
class Answers:
    """What came back. Times are in seconds; ``gaps`` lie between two arrivals at one connection."""

    requests: int = 0
    errors: list[str] = field(default_factory=list)
    first: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[float] = field(default_factory=lambda: array("d"))


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, answers: Answers, end: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._answers = answers
        self._end = end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._ask()

    def _ask(self) -> None:
        self._head = b""
        self._left: int | None = None  # bytes of a body of known length
        self._tail = b""
        self._has_content = False
        self._last = self._asked = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._head:
            self._head, _, data = data.partition(b"\r\n\r\n")
            if not self._head.startswith(b"HTTP/1.1 200"):
                self._fail(self._head.partition(b"\r\n")[0].decode())
                return
            length = _LENGTH.search(self._head)
            self._left = int(length[1]) if length else None
        if not data:
            return
        if self._has_content:
            self._answers.gaps.append(now - self._last)
        else:
            self._has_content = True
            self._answers.first.append(now - self._asked)
        self._last = now
        if self._left is not None:
            self._left -= len(data)
            is_over = self._left == 0
        else:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            is_over = self._tail == _LAST_CHUNK
        if is_over:
            self._answers.requests += 1
            if now < self._end:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            if time.perf_counter() < self._end:
                self._answers.errors.append("the connection broke")
            self.done.set_result(None)

    def _fail(self, why: str) -> None:
        self._answers.errors.append(why)
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)


async def run(host: str, port: int, load: Load) -> Answers:
    """Put the load on a gateway; returns when the last answer is whole."""
    body = load.body()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    answers = Answers()
    loop = asyncio.get_running_loop()
    end = time.perf_counter() + load.seconds
    connections = []
    for _ in range(load.streams):
        _, connection = await loop.create_connection(lambda: _Connection(request, answers, end), host, port)
        connections.append(connection)
    await asyncio.gather(*(connection.done for connection in connections))
    return answers
