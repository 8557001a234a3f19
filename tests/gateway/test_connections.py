"""What a client sees does not depend on how requests come: in which pieces, one behind the other, how phrased."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway import connections

from .support import PATIENCE, eventually, gateway, served, serving, simulator

COMPLETIONS = b"/v1/completions"
PROMPT = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
TEXT = "hellohe"


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        text: str = json.loads(self.body)["choices"][0]["text"]
        return text


class Client:
    """One connection, and nothing between it and the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Each is sent when the one before is likely to have come."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer that begins."""
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode()
        status, *lines = head.splitlines()[:-1]
        return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines)

    async def body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await asyncio.wait_for(self._reader.readexactly(int(headers["content-length"])), PATIENCE)
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n0\r\n\r\n"), PATIENCE)

    async def answer(self) -> Answer:
        status, headers = await self.head()
        return Answer(status, headers, await self.body(headers))

    async def until_end(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), PATIENCE)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    host, port = url.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    try:
        yield client
    finally:
        client.close()


def post(*lines: bytes, path: bytes = COMPLETIONS, request: dict[str, Any] | None = None, **more: Any) -> bytes:
    body = json.dumps({**(request or PROMPT), **more}).encode()
    head = [b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join([*head, b"", body])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--max-body-size", "1", "--tick-ms", "1") as url:
        yield url


async def test_a_request_in_two_pieces(url: str) -> None:
    """Wherever it is cut, one after the other on one connection, and each on its own."""
    request = post()
    async with connected(url) as client:
        for cut in range(len(request)):
            await client.send(request[:cut], request[cut:])
            assert (await client.answer()).text == TEXT, cut
    for cut in range(0, len(request), 7):
        async with connected(url) as client:
            await client.send(request[:cut], request[cut:])
            assert (await client.answer()).text == TEXT, cut


async def test_a_request_in_single_bytes(url: str) -> None:
    async with connected(url) as client:
        await client.send(*(bytes([byte]) for byte in post()))
        assert (await client.answer()).text == TEXT


@pytest.mark.parametrize("pieces", [1, 2, 5, 50])
async def test_requests_of_all_kinds_one_behind_the_other(url: str, pieces: int) -> None:
    """They are answered one by one, in their order, also where the connection has to change hands between them."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
    sent = b"".join(
        [
            post(echo=True),
            post(stream=True),
            post(max_tokens=0),
            post(request=chat, path=b"/v1/chat/completions"),
            b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n",
            post(),
            post(stream=True),
        ]
    )
    size = -(-len(sent) // pieces)
    async with connected(url) as client:
        await client.send(*(sent[at : at + size] for at in range(0, len(sent), size)))
        answers = [await client.answer() for _ in range(7)]
    assert [answer.status for answer in answers] == [200, 200, 400, 200, 200, 200, 200]
    assert answers[0].text == "hello" + TEXT
    assert answers[1].body.count(b"data: ") == answers[6].body.count(b"data: ") > 1
    assert json.loads(answers[3].body)["object"] == "chat.completion"
    assert "version" in json.loads(answers[4].body)
    assert answers[5].text == TEXT


async def test_many_requests_sent_before_any_is_answered(url: str) -> None:
    """More of them than are read ahead."""
    count = 3 * connections._READ_AHEAD // len(post(user="x" * 4_000))
    async with connected(url) as client:

        async def read() -> None:
            for _ in range(count):
                assert (await client.answer()).text == TEXT

        await asyncio.gather(client.send(*(post(user="x" * 4_000) for _ in range(count))), read())


@pytest.mark.parametrize(
    "lines",
    [
        (b"content-type: application/json",),
        (b"Content-Type: application/json; charset=utf-8",),
        (b"Connection: keep-alive",),
        (b"Connection: Keep-Alive, X-Nothing",),
        (b"X-data-parallel-rank: 0",),
        (b"Trailer: X-Nothing", b"X-data-parallel-rank: 0"),
        tuple(b"X-%d: %b" % (number, b"y" * 90) for number in range(100)),
        tuple(b"X-%d: y" % number for number in range(60)),
        (b"X-Bytes: \xe4\xf6\xfc",),
    ],
)
async def test_heads_that_say_the_same(url: str, lines: tuple[bytes, ...]) -> None:
    async with connected(url) as client:
        for _ in range(2):
            await client.send(post(*lines))
            assert (await client.answer()).text == TEXT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [(), (b"Trailer: X-Nothing",)])
async def test_the_connection_is_closed_when_the_client_asks_for_it(
    url: str, stream: bool, more: tuple[bytes, ...]
) -> None:
    async with connected(url) as client:
        await client.send(post(b"Connection: close", *more, stream=stream))
        answer = await client.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await client.until_end() == b""


@pytest.mark.parametrize("more", [(), (b"Trailer: X-Nothing",)])
async def test_answers_have_the_same_headers_however_the_request_was_read(url: str, more: tuple[bytes, ...]) -> None:
    async with connected(url) as client:
        for request, names in (
            (post(*more), {"content-type", "content-length", "date", "server"}),
            (post(*more, stream=True), {"content-type", "transfer-encoding", "cache-control", "date", "server"}),
            (post(*more, max_tokens=-1), {"content-type", "content-length", "date", "server"}),
            (post(*more, model="?"), {"content-type", "content-length", "date", "server"}),
        ):
            await client.send(request)
            answer = await client.answer()
            assert set(answer.headers) == names
            assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d gmt", answer.headers["date"])


async def test_a_rank_that_is_none(url: str) -> None:
    for more in ((), (b"Trailer: X-Nothing",)):
        async with connected(url) as client:
            await client.send(post(b"X-data-parallel-rank: one", *more))
            answer = await client.answer()
            assert answer.status == 400
            assert json.loads(answer.body)["error"]["param"] == "X-data-parallel-rank"


@pytest.mark.parametrize(
    "lines",
    [
        (b"Transfer-Encoding: chunked",),
        (b"Content-Length: 3",),
        (b"Content-Length : 3",),
        (b" folded",),
        (b"X: a\0b",),
    ],
)
async def test_a_head_with_two_meanings_is_refused(url: str, lines: tuple[bytes, ...]) -> None:
    """A second request hidden in what may be a body is not answered."""
    async with connected(url) as client:
        await client.send(post(*lines) + post())
        received = await client.until_end()
        assert re.findall(rb"HTTP/1\.\d (\d+)", received) == [b"400"]


async def test_a_body_that_is_too_large(url: str) -> None:
    async with connected(url) as client:
        await client.send(post(user="x" * (1 << 20)))
        answer = await client.answer()
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["code"] == "body_too_large"


async def test_a_client_that_goes_away_before_its_body_has_come() -> None:
    async with gateway() as server:

        async def in_flight() -> int:
            return len(server.gateway.in_flight)

        async with connected(server.url) as client:
            await client.send(post()[:-5])
            await eventually(in_flight, lambda count: count == 1)
        await eventually(in_flight, lambda count: count == 0)


async def test_a_client_that_goes_away_with_another_request_behind() -> None:
    """The generation is stopped, and the request that waited for it is not begun."""
    async with served("--tick-ms", "5") as (server, engine):
        async with connected(server.url) as client:
            await client.send(post(max_tokens=900) + post())
            await eventually(engine.counters, lambda counters: counters.adds == 1)
        after = await engine.idle()
        assert (after.adds, after.aborted) == (1, 1)
        assert len(server.gateway.in_flight) == 0


async def test_idle_connections_are_closed_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE", 0.3)
    async with gateway() as server:
        async with connected(server.url) as client:
            assert await client.until_end() == b""
        async with connected(server.url) as client:
            await client.send(post())
            assert (await client.answer()).status == 503
            assert await client.until_end() == b""


async def test_a_request_whose_body_is_slow_to_come_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE", 0.3)
    async with gateway() as server, connected(server.url) as client, connected(server.url) as idle:
        request = post()
        await client.send(request[:-5])
        assert await idle.until_end() == b""  # for so long
        await client.send(request[-5:])
        assert (await client.answer()).status == 503


async def test_a_stop_closes_idle_connections_and_waits_for_the_others() -> None:
    async with AsyncExitStack() as stack:
        async with gateway() as server:
            own = ("--runtime", "tokenspeed", "--model", str(MODEL_DIRECTORY))
            engine = await stack.enter_async_context(simulator(server.handshakes[0], *own, "--tick-ms", "20"))
            await asyncio.wait_for(server.wait_ready(), PATIENCE)
            idle, busy = [await stack.enter_async_context(connected(server.url)) for _ in range(2)]
            await idle.send(post())
            await idle.answer()
            await busy.send(post(max_tokens=10) + post())
            await eventually(engine.counters, lambda counters: counters.adds == 2)
        # It has been stopped.
        assert await idle.until_end() == b""
        assert (await busy.answer()).text.startswith(TEXT)
        assert await busy.until_end() == b""


async def test_a_stop_ends_what_does_not_end_by_itself() -> None:
    """Each with an error: a whole answer, a stream, and a stream on a connection that aiohttp reads."""
    async with AsyncExitStack() as stack:
        async with gateway(shutdown_timeout=0) as server:
            own = ("--runtime", "tokenspeed", "--model", str(MODEL_DIRECTORY))
            engine = await stack.enter_async_context(simulator(server.handshakes[0], *own, "--tick-ms", "50"))
            await asyncio.wait_for(server.wait_ready(), PATIENCE)
            whole, stream, other = [await stack.enter_async_context(connected(server.url)) for _ in range(3)]
            await whole.send(post(max_tokens=900) + post())
            await stream.send(post(max_tokens=900, stream=True) + post())
            await other.send(post(b"Trailer: X-Nothing", max_tokens=900, stream=True) + post())
            heads = [await client.head() for client in (stream, other)]
            await eventually(engine.counters, lambda counters: counters.adds == 3)
        # It has been stopped.
        answer = await whole.answer()
        assert answer.status == 503
        assert json.loads(answer.body)["error"]["code"] == "engine_unavailable"
        assert await whole.until_end() == b""
        for client, (status, headers) in zip((stream, other), heads, strict=True):
            assert status == 200
            assert b"engine_unavailable" in await client.body(headers)
            assert await client.until_end() == b""


async def test_clients_that_go_away_with_refusals_to_come() -> None:
    """Each is refused as its turn comes, and the client may go at any moment of it."""
    async with gateway() as server:
        for count in range(60):
            async with connected(server.url) as client:
                await client.send(post(max_tokens=0) * (3 + count))
                if count % 2:
                    await client.answer()

        async def in_flight() -> int:
            return len(server.gateway.in_flight)

        await eventually(in_flight, lambda count: count == 0)


@pytest.mark.parametrize("together", [1, 100])
@pytest.mark.parametrize("request_", [post(), post(model="?" * 900), post(b"Trailer: X-Nothing", model="?" * 900)])
async def test_a_client_that_does_not_read_is_not_read_from(request_: bytes, together: int) -> None:
    """Neither its requests nor their answers gather here, however many it sends."""
    async with served("--tick-ms", "0") as (server, _):
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.setblocking(False)
            sent = idle = 0
            # For as long as it takes something from time to time.
            while idle < 50:
                try:
                    sent += client.send(request_ * together)
                    idle = 0
                    await asyncio.sleep(0)
                except BlockingIOError:
                    idle += 1
                    await asyncio.sleep(0.01)
                assert sent < 16 << 20
        assert len(server.gateway.in_flight) <= 1


async def test_a_connection_that_has_changed_hands_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE", 0.3)
    async with served("--tick-ms", "50") as (server, _), connected(server.url) as client:
        await client.send(post(b"Trailer: X-Nothing", max_tokens=12))
        assert (await client.answer()).text.startswith(TEXT)
