"""``smg-fast`` as a user runs it: how it starts, what it says, how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.prompts.encoder import LONG_CHAT

from .support import COMMAND, PATIENCE, Program, events, eventually, free_port, gateway, program, simulator, texts

CHAT = {"messages": [{"role": "user", "content": "hello there"}]}
ENDLESS = {**CHAT, "stream": True, "ignore_eos": True, "max_tokens": 8000}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


def serve(directory: Path, *options: str) -> list[str]:
    return ["serve", "--backend", "simulator", "--port", "0", *options]


def launch(directory: Path, handshake: str, *options: str) -> list[str]:
    return [
        *("launch", "--port", "0", "--worker", f"ipc://{directory}/e", "--runtime", "tokenspeed"),
        *("--model", str(MODEL_DIRECTORY), "--handshake-address", handshake, *options),
    ]


def at(directory: Path) -> dict[str, str]:
    return {"SMG_ZMQ_SOCKET_DIR": str(directory)}


async def ready(running: Program) -> str:
    return (await running.line(r"ready at (http://[\d.:]+)/v1"))[1]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not waited for does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    async def look() -> bool:
        return alive(pid)

    await eventually(look, lambda lives: not lives)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_serve_prints_a_command_that_works(directory: Path) -> None:
    async with program(*serve(directory), environment=at(directory)) as running:
        await ready(running)
        curl = await running.line("^curl ")
        if not await asyncio.to_thread(lambda: any(Path(p, "curl").exists() for p in os.environ["PATH"].split(":"))):
            pytest.skip("curl is not installed")
        process = await asyncio.create_subprocess_shell(f"{curl.string} -s", stdout=asyncio.subprocess.PIPE)
        answer, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert texts(events(answer)) == "Hello, who are you?"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_serve_leaves_nothing_behind(directory: Path, number: signal.Signals) -> None:
    async with program(*serve(directory), environment=at(directory)) as running:
        engine = int((await running.line(r"engine started, process (\d+)"))[1])
        await ready(running)
        assert len([name for name in files(directory) if name.endswith(".sock")]) == 2
        running.process.send_signal(number)
        assert await running.end() == 0
        assert not alive(engine)
        assert files(directory) == []
        assert "Traceback" not in "".join(running.output)


async def test_the_engine_goes_when_the_gateway_is_killed(directory: Path) -> None:
    async with program(*serve(directory), environment=at(directory)) as running:
        engine = int((await running.line(r"engine started, process (\d+)"))[1])
        await ready(running)
        running.process.kill()
        await running.process.wait()
        await gone(engine)


async def test_serve_starts_a_dead_engine_again(directory: Path) -> None:
    async with program(*serve(directory), environment=at(directory)) as running, aiohttp.ClientSession() as session:
        engine = int((await running.line(r"engine started, process (\d+)"))[1])
        url = await ready(running)
        async with session.post(f"{url}/v1/chat/completions", json=ENDLESS) as response:
            await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
            os.kill(engine, signal.SIGKILL)
            rest = events(await asyncio.wait_for(response.content.read(), PATIENCE))
            assert "error" in rest[-1]
        await running.line("the engine was killed by SIGKILL; it is started again")
        await running.line(r"INFO engine 0 is ready")
        async with session.post(f"{url}/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200


async def test_requests_in_flight_are_finished_before_the_end(directory: Path) -> None:
    async with program(*serve(directory, "--tick-ms", "100"), environment=at(directory)) as running:
        url = await ready(running)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as response,
        ):
            await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
            running.process.terminate()
            await running.line("waiting for 1 requests")
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"{url}/health")
            rest = events(await asyncio.wait_for(response.content.read(), PATIENCE))
            assert rest[-1] == "[DONE]"
        assert await running.end() == 0


# Takes half a second, of the two that a template may take.
SLOW_TEMPLATE = """
{%- set start = strftime_now('%s%f') | int -%}
{%- for _ in range(99999) if strftime_now('%s%f') | int < start + 500000 %}{% endfor -%}
{%- for message in messages %}{{ message.content }} {% endfor -%}
"""


async def test_a_request_that_is_still_being_read_is_finished_before_the_end(directory: Path) -> None:
    template = directory / "slow.jinja"
    template.write_text(SLOW_TEMPLATE)
    handshake = f"tcp://127.0.0.1:{free_port()}"
    options = launch(directory, handshake, "--chat-template", str(template))
    async with program(*options) as running, aiohttp.ClientSession() as session:
        url = (await running.line(r"listens on (http://[\d.:]+);"))[1]

        async def ask() -> int:
            many = {"messages": CHAT["messages"] * LONG_CHAT, "max_tokens": 1}
            async with session.post(f"{url}/v1/chat/completions", json=many) as response:
                return response.status

        async def health() -> dict[str, Any]:
            async with session.get(f"{url}/health") as response:
                answer: dict[str, Any] = await response.json()
                return answer

        async with simulator(handshake):
            await running.line(r"INFO engine 0 is ready")
            asked = asyncio.ensure_future(ask())
            seen = await eventually(health, lambda health: health["requests"] == 1)
            assert seen["generations"] == 0
            running.process.terminate()
            await running.line("waiting for 1 requests")
            assert await asyncio.wait_for(asked, PATIENCE) == 200
            assert await running.end() == 0


async def test_requests_in_flight_get_a_bounded_time(directory: Path) -> None:
    options = serve(directory, "--tick-ms", "50", "--shutdown-timeout", "0.3")
    async with program(*options, environment=at(directory)) as running, aiohttp.ClientSession() as session:
        url = await ready(running)
        async with session.post(f"{url}/v1/chat/completions", json=ENDLESS) as response:
            await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
            running.process.terminate()
            rest = events(await asyncio.wait_for(response.content.read(), PATIENCE))
            assert "error" in rest[-1]
        assert await running.end() == 0
        assert files(directory) == []


async def test_a_second_signal_ends_it_at_once(directory: Path) -> None:
    """All of it: the requests, the engine, the sockets."""
    async with program(*serve(directory, "--tick-ms", "50"), environment=at(directory)) as running:
        engine = int((await running.line(r"engine started, process (\d+)"))[1])
        url = await ready(running)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=ENDLESS) as response,
        ):
            await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
            running.process.terminate()
            await running.line("waiting for 1 requests")
            started = time.monotonic()
            running.process.terminate()
            assert await running.end() == 128 + signal.SIGTERM
            assert time.monotonic() - started < 2
            assert not alive(engine)
            rest = events(await asyncio.wait_for(response.content.read(), PATIENCE))
            assert rest[-1]["error"]["code"] == "engine_unavailable"
        assert files(directory) == []
        assert "Traceback" not in "".join(running.output)


async def test_a_second_signal_leaves_the_engines_that_others_have_started(directory: Path) -> None:
    handshake = f"tcp://127.0.0.1:{free_port()}"
    async with program(*launch(directory, handshake)) as running, aiohttp.ClientSession() as session:
        url = (await running.line(r"listens on (http://[\d.:]+);"))[1]
        async with simulator(handshake, "--tick-ms", "50") as engine:
            await running.line(r"INFO engine 0 is ready")
            async with session.post(f"{url}/v1/chat/completions", json=ENDLESS) as response:
                await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
                running.process.send_signal(signal.SIGINT)
                await running.line("waiting for 1 requests")
                running.process.send_signal(signal.SIGINT)
                assert await running.end() == 128 + signal.SIGINT
                rest = events(await asyncio.wait_for(response.content.read(), PATIENCE))
                assert rest[-1]["error"]["code"] == "engine_unavailable"
            assert (await engine.idle()).aborted == 1
            # Which engines there are is for the next gateway to know.
            assert files(directory) == ["e-engines.json"]


async def test_a_signal_does_not_wait_for_a_model_to_be_loaded(directory: Path) -> None:
    """Not even for the thread that does it, which nothing can end."""
    template = directory / "template"
    os.mkfifo(template)

    async def being_read() -> int | None:
        try:
            return os.open(template, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    options = launch(directory, f"tcp://127.0.0.1:{free_port()}", "--chat-template", str(template))
    async with program(*options) as running:
        writer = await eventually(being_read, lambda writer: writer is not None)
        assert writer is not None
        running.process.terminate()
        assert await running.end() == 0
        assert files(directory) == ["template"]
        os.close(writer)
        assert "Traceback" not in "".join(running.output)


async def test_launch_serves_engines_that_come_and_go(directory: Path) -> None:
    handshake = f"tcp://127.0.0.1:{free_port()}"
    options = launch(directory, handshake, "--served-model-name", "one", "two")
    async with program(*options) as running, aiohttp.ClientSession() as session:
        url = (await running.line(r"listens on (http://[\d.:]+); engines dial " + re.escape(handshake)))[1]
        async with session.get(f"{url}/ready") as response:
            assert response.status == 503
        async with simulator(handshake):
            await running.line(r"INFO engine 0 is ready")
            for name in ("one", "two"):
                async with session.post(f"{url}/v1/chat/completions", json={**CHAT, "model": name}) as response:
                    assert (await response.json())["model"] == name
        await running.line("engine 0 has disconnected")
        running.process.send_signal(signal.SIGINT)
        assert await running.end() == 0


async def test_an_address_in_use_is_told_in_one_line(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        async with program(*serve(directory, "--port", port), environment=at(directory)) as running:
            assert await running.end() == 1
            assert running.output == [f"smg-fast: cannot listen on 127.0.0.1:{port}: Address already in use\n"]
        async with program(*launch(directory, f"tcp://127.0.0.1:{port}")) as running:
            assert await running.end() == 1
            (line,) = running.output
            assert line.startswith(f"smg-fast: cannot bind tcp://127.0.0.1:{port}: Address already in use")
    assert files(directory) == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--runtime", "nonsense"], 1, "unknown runtime 'nonsense'; known: vllm, tokenspeed"),
        (["--worker", "tcp://127.0.0.1:5"], 2, "argument --worker: worker URL"),
        (
            ["--worker", "ipc:///tmp/a\tb"],
            2,
            r"argument --worker: worker URL: all characters must be printable, and '\t'",
        ),
        (["--handshake-address", "nonsense"], 2, "argument --handshake-address: handshake address 'nonsense'"),
        (["--handshake-address", "tcp://127.0.0.1:0"], 2, "argument --handshake-address: handshake address"),
        (["--handshake-address", "tcp://192.0.2.1:5"], 2, "192.0.2.1 is no address of this host"),
        (["--served-model-name", "m", "a\nb"], 2, r"argument --served-model-name: all characters must be printable"),
        (["--served-model-name", "a?b"], 2, "argument --served-model-name: the characters ? # % \\ cannot be in it"),
        (["--model", "/nonexistent"], 1, "/nonexistent: not a directory"),
        (["--chat-template", "/nonexistent"], 1, "/nonexistent"),
        (["--port", "70000"], 2, "argument --port: Expected `int` <= 65535, got '70000'"),
        (["--port", "http"], 2, "argument --port"),
        (["--max-body-size", "0"], 2, "argument --max-body-size"),
        (["--log-level", "loud"], 2, "argument --log-level"),
        (["--frobnicate"], 2, "unrecognized arguments: --frobnicate"),
    ],
)
async def test_wrong_options_of_launch(directory: Path, options: list[str], code: int, message: str) -> None:
    async with program(*launch(directory, "tcp://127.0.0.1:1"), *options) as running:
        assert await running.end() == code
        assert message in running.output[-1]
        assert "Traceback" not in running.output[-1]


async def test_wrong_options_of_the_engine_are_found_before_anything_is_started(directory: Path) -> None:
    async with program(*serve(directory, "--tick-ms", "soon"), environment=at(directory)) as running:
        assert await running.end() == 2
        assert "argument --tick-ms" in running.output[-1]
    async with program(*serve(directory, "--frobnicate"), environment=at(directory)) as running:
        assert await running.end() == 2
        assert "--frobnicate" in running.output[-1]


@pytest.mark.parametrize("command", [[], ["launch"], ["serve"], ["simulate"]])
async def test_help(command: list[str]) -> None:
    async with program(*command, "--help") as running:
        assert await running.end() == 0
        assert "usage: smg-fast" in running.output[-1]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["workers", "list"]])
async def test_whoever_reads_the_output_may_leave(arguments: list[str], unbuffered: str) -> None:
    """As ``head`` does: nothing is said about it."""
    async with gateway() as server:
        url = ("--url", server.url) if arguments[0] == "workers" else ()
        reader, writer = os.pipe()
        os.close(reader)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            *url,
            stdout=writer,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        os.close(writer)
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert said == b""
        # argparse takes no notice if it fails to write at once.
        assert process.returncode == 128 + signal.SIGPIPE or ("--help" in arguments and process.returncode == 0)
