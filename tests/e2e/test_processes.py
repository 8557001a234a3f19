"""Several gateway processes behind one port, as processes: they share engines, die, come back, and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from tests.gateway.support import Program, eventually, free_port, program, simulator

ENDLESS = {"prompt": "hello there", "stream": True, "ignore_eos": True, "max_tokens": 8000}
MODEL = ("--model", str(MODEL_DIRECTORY))
#: So many that the kernel, which deals connections out by chance, leaves no process without any: in one of 10**9 runs.
STREAMS = 32


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@asynccontextmanager
async def running(directory: Path, *arguments: str) -> AsyncIterator[Program]:
    environment = {"SMG_ZMQ_SOCKET_DIR": str(directory / "s")}
    async with program(*arguments, "--port", "0", "--gateway-processes", "2", environment=environment) as gateway:
        yield gateway


def serve(directory: Path, *options: str) -> Any:
    return running(directory, "serve", "--backend", "simulator", *options)


async def processes(gateway: Program) -> list[int]:
    """Process ids by number."""
    return [int((await gateway.line(rf"gateway process {index} started, process (\d+)"))[1]) for index in (0, 1)]


async def ready(gateway: Program) -> str:
    return (await gateway.line(r"ready at (http://[\d.:]+)/v1"))[1]


async def get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        found: dict[str, Any] = await response.json()
        return found


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def ends(gateway: Program, directory: Path, number: signal.Signals, pids: list[int]) -> None:
    """It ends well at a signal, and nothing is left of it."""
    gateway.process.send_signal(number)
    assert await gateway.end() == 0
    assert not [pid for pid in pids if alive(pid)]
    assert not list((directory / "s").iterdir())
    assert "Traceback" not in "".join(gateway.output)


async def gone(pids: list[int]) -> None:
    async def living() -> list[int]:
        return [pid for pid in pids if alive(pid)]

    await eventually(living, lambda pids: not pids)


class Stream:
    """An endless answer, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.events = 0
        self.error: object = None
        self.done = asyncio.create_task(self._read(url))

    async def _read(self, url: str) -> None:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/v1/completions", json=ENDLESS) as answer,
            ):
                assert answer.status == 200, await answer.text()
                async for line in answer.content:
                    self.events += line.startswith(b"data: ")
                    if b'"error"' in line:
                        self.error = line
        except aiohttp.ClientError as error:
            self.error = error

    async def goes_on(self) -> bool:
        before = self.events
        return await eventually(self._events, lambda events: self.done.done() or events > before) > before

    async def _events(self) -> int:
        return self.events


@asynccontextmanager
async def streaming(url: str, count: int = STREAMS) -> AsyncIterator[list[Stream]]:
    """Streams that have begun."""
    streams = [Stream(url) for _ in range(count)]
    try:
        assert all(await asyncio.gather(*(stream.goes_on() for stream in streams)))
        yield streams
    finally:
        for stream in streams:
            stream.done.cancel()
        await asyncio.gather(*(stream.done for stream in streams), return_exceptions=True)


async def shares(session: aiohttp.ClientSession, url: str) -> dict[int, int]:
    """Generations in flight by process, over all workers."""
    found: dict[int, int] = {}
    for worker in (await get(session, f"{url}/loads"))["loads"]:
        found[worker["process"]] = found.get(worker["process"], 0) + worker["load"]["in_flight"]
    return found


async def all_ready(session: aiohttp.ClientSession, url: str) -> None:
    async def look() -> dict[str, Any]:
        return await get(session, f"{url}/workers")

    await eventually(
        look, lambda seen: not seen["silent"] and all(worker["state"] == "ready" for worker in seen["workers"])
    )


async def test_a_killed_process_takes_its_own_streams_and_comes_back(directory: Path) -> None:
    async with serve(directory, "--runtime", "vllm") as gateway, aiohttp.ClientSession() as session:
        pids = await processes(gateway)
        url = await ready(gateway)
        async with streaming(url) as streams:
            before = await shares(session, url)
            assert sum(before.values()) == STREAMS
            assert min(before.values()) > 0
            assert (await get(session, f"{url}/health"))["generations"] == STREAMS
            os.kill(pids[1], signal.SIGKILL)
            await gateway.line("gateway process 1 was killed by SIGKILL; it is started again")
            lost = [stream for stream in streams if not await stream.goes_on()]
            assert len(lost) == before[1]
            pids.append(int((await gateway.line(r"gateway process 1 started, process (\d+)"))[1]))
            await all_ready(session, url)
            async with streaming(url):
                after = await shares(session, url)
                assert sum(after.values()) == before[0] + STREAMS
                assert after[1] > 0

                # Nobody wants what the killed one had asked for, and its successor says so.
                async def running() -> int:
                    engines = [load["engines"][0] for load in (await get(session, f"{url}/loads"))["loads"]]
                    return int(max(engines, key=lambda engine: engine["reported"] or 0)["running"] or 0)

                await eventually(running, lambda count: count == before[0] + STREAMS)
            assert all([await stream.goes_on() for stream in streams if stream not in lost])
        # One that ends well is not the end of all: its engines have to be known to its successor.
        os.kill(pids[0], signal.SIGTERM)
        await gateway.line("gateway process 0 ended with exit code 0; it is started again")
        pids.append(int((await gateway.line(r"gateway process 0 started, process (\d+)"))[1]))
        await all_ready(session, url)
        await ends(gateway, directory, signal.SIGTERM, pids)


async def test_a_killed_engine_ends_the_streams_of_all_processes_at_once(directory: Path) -> None:
    async with serve(directory, "--runtime", "vllm") as gateway, aiohttp.ClientSession() as session:
        pids = await processes(gateway)
        engine = int((await gateway.line(r"the engine started, process (\d+)"))[1])
        url = await ready(gateway)
        port = url.rpartition(":")[2]
        arguments = ("serve", "--backend", "simulator", "--runtime", "vllm", "--gateway-processes", "2", "--port", port)
        async with program(*arguments, environment={"SMG_ZMQ_SOCKET_DIR": str(directory / "other")}) as second:
            assert await second.end() == 1
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in second.output[-1]
        async with streaming(url) as streams:
            assert min((await shares(session, url)).values()) > 0
            os.kill(engine, signal.SIGKILL)
            await asyncio.wait_for(asyncio.gather(*(stream.done for stream in streams)), 1)
            assert all(b"engine 0 has disconnected" in str(stream.error).encode() for stream in streams)
        pids.append(int((await gateway.line(r"the engine started, process (\d+)"))[1]))
        await all_ready(session, url)
        async with streaming(url):
            assert min((await shares(session, url)).values()) > 0
        await ends(gateway, directory, signal.SIGINT, pids)


async def test_two_workers_of_tokenspeed_serve_one_process_each(directory: Path) -> None:
    handshakes = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    workers = [
        argument
        for name, handshake in zip("ab", handshakes, strict=True)
        for argument in ("--worker", f"ipc://{directory}/s/{name}", "--handshake-address", handshake)
    ]
    arguments = ("launch", "--runtime", "tokenspeed", *MODEL, "--served-model-name", "sim", *workers)
    async with running(directory, *arguments) as gateway, aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        pids = await processes(gateway)
        url = (await gateway.line(rf"listens on (http://\S+); engines dial {handshakes[0]}, {handshakes[1]}"))[1]
        async with session.post(f"{url}/v1/completions", json=ENDLESS) as response:
            # The next connection may come to a process that has an engine.
            assert (response.status, response.headers["Connection"]) == (503, "close")
        engines = [await stack.enter_async_context(simulator(handshake, *MODEL)) for handshake in handshakes]
        await all_ready(session, url)
        listed = (await get(session, f"{url}/workers"))["workers"]
        assert [(worker["process"], worker["url"][-1]) for worker in listed] == [(0, "a"), (1, "b")]
        found = await get(session, f"{url}/workers/{listed[1]['id']}")
        assert (found["process"], found["url"]) == (1, listed[1]["url"])
        async with streaming(url) as streams:
            loads = await shares(session, url)
            assert [(await engine.counters()).live for engine in engines] == [loads[0], loads[1]]
            # They do not end by themselves: a second signal does not wait for them.
            gateway.process.send_signal(signal.SIGTERM)
            await gateway.line("gateway .: waiting for")
            for pid in pids:
                os.kill(pid, signal.SIGTERM)  # as systemd does
            assert all(await asyncio.gather(*(stream.goes_on() for stream in streams)))
            gateway.process.send_signal(signal.SIGTERM)
            assert await gateway.end() == 128 + signal.SIGTERM
            assert not [pid for pid in pids if alive(pid)]
            await asyncio.gather(*(stream.done for stream in streams))
            assert all(b"engine_unavailable" in str(stream.error).encode() for stream in streams)
        assert not [path for path in (directory / "s").iterdir() if path.suffix == ".sock"]
        assert "Traceback" not in "".join(gateway.output)


async def test_ranks_of_tokenspeed_are_shared_out(directory: Path) -> None:
    async with serve(directory, "--dp-size", "2") as gateway, aiohttp.ClientSession() as session:
        pids = await processes(gateway)
        url = await ready(gateway)
        async with streaming(url):
            assert min((await shares(session, url)).values()) > 0
        worker, other = (await get(session, f"{url}/workers"))["workers"]
        async with program("workers", "list", "--url", url) as listing:
            assert await listing.end() == 0
            rows = [line.split()[:2] for line in "".join(listing.output).splitlines()]
            assert rows == [["ID", "PROCESS"], [worker["id"], "0"], [other["id"], "1"]]
        for method, path in (("POST", "/workers"), ("PUT", f"/workers/{worker['id']}")):
            async with session.request(method, url + path, json={}) as response:
                assert response.status == 409
                assert "--gateway-processes 1" in (await response.json())["error"]["message"]
        async with session.post(f"{url}/v1/completions", json={"prompt": "a", "data_parallel_rank": 0}) as response:
            assert response.status == 400
            error = (await response.json())["error"]
            assert error["param"] == "data_parallel_rank"
            assert "several gateway processes" in error["message"]
        gateway.process.kill()  # and they end with it
        await gone(pids)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("launch",), "--gateway-processes 2: give it workers with --worker"),
        (
            ("launch", "--runtime", "tokenspeed", *MODEL, "--worker", "ipc:///tmp/smg-fast-none/e"),
            "those of a model are shared out evenly; {model} has 1, which is no multiple of 2",
        ),
        (
            ("launch", "--model", "/nowhere", "--worker", "ipc:///tmp/smg-fast-none/e"),
            "gateway process 0 has not started",
        ),
    ],
)
async def test_what_cannot_be_shared_is_told_at_once(directory: Path, arguments: tuple[str, ...], said: str) -> None:
    async with running(directory, *arguments) as gateway:
        assert await gateway.end() == 1
        assert said.format(model=MODEL_DIRECTORY) in gateway.output[-1]
        assert "Traceback" not in gateway.output[-1]
