"""An engine's side of TokenSpeed's wire, one step at a time, written with msgpack alone.

As a program it is an engine that can be killed: it answers a request of up to 100 tokens at once, and of a longer one
only the first token.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import zmq
import zmq.asyncio

ADD, ABORT = b"\x00", b"\x01"


class Add(NamedTuple):
    """A request as the engine reads it."""

    rid: str
    input_ids: list[int]
    max_new_tokens: int


class Row(NamedTuple):
    """One generation's share of a tick."""

    rid: str
    ids: Sequence[int]
    finish: str = ""


def tick(rows: Sequence[Row], load: Sequence[int] = ()) -> bytes:
    """``load``: engine index, running, waiting, active and total pages."""
    columns: list[list[Any]] = [
        [row.rid for row in rows],
        [list(row.ids) for row in rows],
        [row.finish for row in rows],
        [1] * len(rows),
        [len(row.ids) for row in rows],
        [0] * len(rows),
        [[] for _ in rows],
        [[] for _ in rows],
    ]
    return bytes(msgpack.packb(["BatchTokenIDOutSlim", *columns, *load]))


class ScriptedEngine:
    """Does what it is told. ``async with`` it, or close it."""

    def __init__(self, handshake: str, index: int = 0, *, receive_limit: int = 1000) -> None:
        self.identity = index.to_bytes(2, "little")
        self._context = zmq.asyncio.Context()
        self._context.linger = 0
        self._handshake = self._dealer(handshake)
        self._receive_limit = receive_limit
        self.input: zmq.asyncio.Socket
        self.output: zmq.asyncio.Socket

    @classmethod
    async def dial(cls, handshake: str, index: int = 0, **options: Any) -> ScriptedEngine:
        """An engine that has registered."""
        engine = cls(handshake, index, **options)
        await engine.hello()
        await engine.register()
        return engine

    async def hello(self) -> None:
        await self._say("HELLO")
        addresses = msgpack.unpackb(await self._handshake.recv())["addresses"]
        self._input_address, self._output_address = addresses["inputs"][0], addresses["outputs"][0]

    async def register(self, max_model_len: int = 4096) -> None:
        await self._say("READY")
        self.output = self._context.socket(zmq.PUSH)
        self.output.sndhwm = 0
        self.output.connect(self._output_address)
        self.input = self._dealer(self._input_address, self._receive_limit)
        await self.input.send(msgpack.packb({"max_model_len": max_model_len, "prefix_granularity": 16, "extra": None}))

    async def request(self) -> Add:
        type_byte, payload = await self.input.recv_multipart()
        assert type_byte == ADD, msgpack.unpackb(payload)
        fields = msgpack.unpackb(payload)
        return Add(fields[1], fields[4], fields[5][0])

    async def abort(self) -> list[str]:
        type_byte, payload = await self.input.recv_multipart()
        assert type_byte == ABORT, msgpack.unpackb(payload)
        rids: list[str] = msgpack.unpackb(payload)
        return rids

    async def send(self, *rows: Row, load: Sequence[int] = ()) -> None:
        await self.output.send(tick(rows, load))

    async def say_handshake(self, payload: bytes) -> None:
        await self._handshake.send(payload)

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def __aenter__(self) -> ScriptedEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _dealer(self, address: str, receive_limit: int = 1000) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self.identity)
        socket.rcvhwm = receive_limit
        socket.rcvtimeo = 10_000  # a test that waits in vain ends
        socket.connect(address)
        return socket

    async def _say(self, status: str) -> None:
        message = {"status": status, "local": True, "headless": True, "parallel_config_hash": None}
        await self._handshake.send(msgpack.packb(message))


async def main(handshake: str, index: int) -> None:
    engine = await ScriptedEngine.dial(handshake, index)
    while True:
        request = await engine.request()
        if request.max_new_tokens > 100:
            await engine.send(Row(request.rid, [1]))
        else:
            await engine.send(Row(request.rid, [1] * request.max_new_tokens, "length"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
