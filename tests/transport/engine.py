"""An engine's side of both wires, one step at a time, written with msgpack alone.

As a program it is an engine that can be killed: it answers a request of up to 100 tokens at once, and of a longer one
only the first token.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgpack
import zmq
import zmq.asyncio

ADD, ABORT, START_DP_WAVE = b"\x00", b"\x01", b"\x02"


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


class Wire(Protocol):
    """What engines of a family say, and how they read what they are told."""

    @property
    def family(self) -> str: ...

    def registration(self, max_model_len: int) -> dict[str, Any]: ...

    def add(self, fields: list[Any]) -> Add: ...

    def tick(self, rows: Sequence[Row]) -> bytes: ...


class TokenSpeedWire:
    family = "tokenspeed"

    def registration(self, max_model_len: int) -> dict[str, Any]:
        return {
            "max_model_len": max_model_len,
            "prefix_granularity": 16,
            "vllm_version": "tokenspeed-0.1.1",
            "extra": None,
        }

    def add(self, fields: list[Any]) -> Add:
        return Add(fields[1], fields[4], fields[5][0])

    def tick(self, rows: Sequence[Row]) -> bytes:
        return tick(rows)


@dataclass(frozen=True)
class VLLMWire:
    """vLLM's, in the versions from 0.18 on. ``version`` is what the engine reports, ``ranks`` the size of its group."""

    version: str | None = "0.32.0"
    ranks: int = 1
    index: int = 0
    family: str = "vllm"

    def registration(self, max_model_len: int) -> dict[str, Any]:
        told: dict[str, Any] = {"max_model_len": max_model_len, "block_size": 16, "data_parallel_size": self.ranks}
        return told if self.version is None else {**told, "vllm_version": self.version}

    def add(self, fields: list[Any]) -> Add:
        return Add(fields[0], fields[1], fields[3].get("max_tokens", 16))

    def tick(self, rows: Sequence[Row]) -> bytes:
        reasons = {"": None, "stop": 0, "length": 1}
        outputs = [[row.rid, list(row.ids), None, None, None, reasons[row.finish]] for row in rows]
        return bytes(msgpack.packb([self.index, outputs]))

    def wave(self, *, complete: int | None = None, start: int | None = None) -> bytes:
        return bytes(msgpack.packb([self.index, [], None, 0.0, None, None, complete, start]))


TOKENSPEED = TokenSpeedWire()


def tick(rows: Sequence[Row], load: Sequence[int] = ()) -> bytes:
    """One of TokenSpeed's. ``load``: engine index, running, waiting, active and total pages."""
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

    def __init__(self, handshake: str, index: int = 0, *, wire: Wire = TOKENSPEED, receive_limit: int = 1000) -> None:
        self.wire = wire
        self.index = index
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
        self._input_address = addresses["inputs"][0]
        self.output = self._context.socket(zmq.PUSH)
        self.output.sndhwm = 0
        self.output.connect(addresses["outputs"][0])

    async def register(self, max_model_len: int = 4096) -> None:
        await self._say("READY")
        self.input = self._dealer(self._input_address, self._receive_limit)
        await self.input.send(msgpack.packb(self.wire.registration(max_model_len)))

    async def request(self) -> Add:
        type_byte, payload = await self.input.recv_multipart()
        assert type_byte == ADD, msgpack.unpackb(payload)
        return self.wire.add(msgpack.unpackb(payload))

    async def abort(self) -> list[str]:
        type_byte, payload = await self.input.recv_multipart()
        assert type_byte == ABORT, msgpack.unpackb(payload)
        rids: list[str] = msgpack.unpackb(payload)
        return rids

    async def send(self, *rows: Row) -> None:
        await self.output.send(self.wire.tick(rows))

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
