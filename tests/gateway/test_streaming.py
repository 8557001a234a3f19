"""Slow readers, clients that vanish, engines that die: in a gateway in this process, with an engine in another."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest

from smg_fast.gateway.server import GatewayServer

from .support import PATIENCE, events, eventually, gateway, served, simulator, texts

ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 8000}


def chat(text: str = "hello there", **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **parameters}


async def post(url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        return response.status, await response.read()


async def send(url: str, body: dict[str, Any], **options: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection whose reading is up to the caller; ``options`` are of the socket."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 12)
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


def unchunked(answer: bytes) -> bytes:
    """Body of a chunked answer."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    return body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_vanishes_aborts_its_generations(stream: bool) -> None:
    async with served("--tick-ms", "5") as (server, engine):
        reader, writer = await send(server.url, chat(stream=stream, n=3, **ENDLESS))
        if stream:
            await asyncio.wait_for(reader.readuntil(b"content"), PATIENCE)
        await eventually(engine.counters, lambda counters: counters.live == 3)
        writer.transport.abort()
        counters = await engine.idle()
        assert (counters.aborted, counters.finished) == (3, 0)
        assert await server.gateway.in_flight.wait_none(PATIENCE)


@pytest.mark.parametrize("until", ["the middle", "the end"])
async def test_a_reader_that_is_slow_loses_nothing_and_delays_nobody(until: str) -> None:
    body = chat(" ".join(map(str, range(500))), n=20, logprobs=True, ignore_eos=True, max_tokens=6000)
    total = 20 * 6000  # some 12 MB, of which the kernel takes 4
    async with served("--tick-ms", "2", "--tokens-per-tick", "16") as (server, engine):
        (worker,) = server.gateway.registry.workers
        reader, writer = await send(server.url, {**body, "stream": True}, SO_RCVBUF=4096)
        wanted = total if until == "the end" else total * 3 // 4
        await eventually(engine.counters, lambda counters: counters.tokens >= wanted)
        # Nothing was read, and what the kernel does not take is not gathered as text; others are served meanwhile.
        assert buffered(server) < 1 << 20
        status, _ = await asyncio.wait_for(post(server.url, chat()), PATIENCE)
        assert status == 200
        assert len(server.gateway.in_flight) == 1
        assert worker.client.in_flight == (0 if until == "the end" else 20)
        stream = events(unchunked(await asyncio.wait_for(reader.read(), 60)))
        writer.close()
        status, whole = await asyncio.wait_for(post(server.url, body), PATIENCE)
        assert stream[-1] == "[DONE]"
        for choice in json.loads(whole)["choices"]:
            assert texts(stream, choice["index"]) == choice["message"]["content"]
            assert logprobs(stream, choice["index"]) == choice["logprobs"]["content"]


def buffered(server: GatewayServer) -> int:
    """Bytes that wait in this process to be sent."""
    assert server._runner.server is not None
    transports = [handler.transport for handler in server._runner.server.connections]
    return sum(transport.get_write_buffer_size() for transport in transports if transport is not None)


def logprobs(stream: list[Any], index: int) -> list[Any]:
    choices = [choice for event in stream[:-1] for choice in event["choices"] if choice["index"] == index]
    return [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]


async def test_a_slow_reader_that_vanishes_is_forgotten() -> None:
    async with served("--tick-ms", "1", "--tokens-per-tick", "8") as (server, engine):
        _, writer = await send(server.url, chat(stream=True, logprobs=True, **ENDLESS), SO_RCVBUF=4096)
        await eventually(engine.counters, lambda counters: counters.live == 1)
        writer.transport.abort()
        await engine.idle()
        assert await server.gateway.in_flight.wait_none(PATIENCE)


async def test_an_engine_that_dies_ends_its_streams_with_an_error_event() -> None:
    async with served("--tick-ms", "5") as (server, engine), aiohttp.ClientSession() as session:
        body = chat(stream=True, **ENDLESS)
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
            first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
            await engine.kill()
            stream = events(first + await asyncio.wait_for(response.content.read(), PATIENCE))
        assert response.status == 200
        assert list(stream[-1]) == ["error"]
        assert stream[-1]["error"]["type"] == "server_error"
        assert "[DONE]" not in stream
        assert sum("error" in event for event in stream) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_dies_before_the_first_byte_is_an_error_of_its_own(stream: bool) -> None:
    async with served("--tick-ms", "60000") as (server, engine):
        asked = asyncio.create_task(post(server.url, chat(stream=stream)))
        await eventually(engine.counters, lambda counters: counters.live == 1)
        await engine.kill()
        status, body = await asyncio.wait_for(asked, PATIENCE)
        assert status == 503
        assert json.loads(body)["error"]["code"] == "engine_unavailable"


async def test_an_engine_that_comes_back_serves_again() -> None:
    async with gateway() as server:
        for _ in range(2):
            async with simulator(server.handshakes[0]) as engine:
                await asyncio.wait_for(server.wait_ready(), PATIENCE)
                status, _ = await post(server.url, chat())
                assert status == 200
                await engine.kill()
            status, _ = await eventually(lambda: post(server.url, chat()), lambda answer: answer[0] != 200)
            assert status == 503


async def test_output_that_cannot_be_read_fails_the_request_and_not_the_next() -> None:
    async with served("--ragged-after", "2", "--tick-ms", "1") as (server, _):
        status, body = await post(server.url, chat("one two three four five six"))
        assert status == 500
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        status, _ = await post(server.url, chat("hi"))
        assert status == 200


async def test_many_at_once_each_get_their_own() -> None:
    async with served("--tick-ms", "2", "--max-running", "64") as (server, engine):
        sayings = [f"{number} " * (number % 17 + 1) for number in range(150)]

        async def ask(number: int) -> None:
            status, body = await post(server.url, chat(sayings[number], stream=number % 3 != 0))
            assert status == 200
            if number % 3:
                assert texts(events(body)) == sayings[number]
            else:
                assert json.loads(body)["choices"][0]["message"]["content"] == sayings[number]

        await asyncio.wait_for(asyncio.gather(*map(ask, range(len(sayings)))), 60)
        counters = await engine.counters()
        assert (counters.finished, counters.live) == (150, 0)
        assert len(server.gateway.in_flight) == 0


async def test_clients_that_vanish_in_the_middle_harm_nobody() -> None:
    """Their connections close while output for them is on its way."""
    async with served("--tick-ms", "1", "--max-running", "1000") as (server, engine):
        saying = " ".join(map(str, range(400)))

        async def stay() -> None:
            status, body = await post(server.url, chat(saying, stream=True))
            assert (status, texts(events(body))) == (200, saying)

        async def vanish() -> None:
            reader, writer = await send(server.url, chat(stream=True, **ENDLESS))
            await reader.readuntil(b"content")
            await reader.readuntil(b"content")
            writer.transport.abort()

        await asyncio.wait_for(asyncio.gather(*(f() for _ in range(20) for f in (stay, *[vanish] * 4))), 60)
        counters = await engine.idle()
        assert (counters.finished, counters.aborted) == (20, 80)
        assert await server.gateway.in_flight.wait_none(PATIENCE)
