"""``smg-fast serve``: engines and gateway as one program, from their start to their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from tests.engines.programs import interpreter
from tests.gateway.support import COMMAND, PATIENCE, Program, eventually, program

ENDLESS = {"prompt": "hello there", "ignore_eos": True, "max_tokens": 8000}

#: Passes for ``python -m tokenspeed.cli``: shows how it was started, and becomes the simulator.
TOKENSPEED = """
import os, sys
print("arguments:", *sys.argv[1:], "; GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
options = dict(zip(sys.argv, sys.argv[1:]))
handshake = f"tcp://{options['--data-parallel-address']}:{options['--data-parallel-rpc-port']}"
arguments = ["--handshake", handshake, "--index", options["--zmq-engine-index"], "--model", options["--model"]]
os.execv(sys.executable, [sys.executable, "-m", "smg_fast", "simulate", *arguments, "--tick-ms", "1"])
"""

#: Passes for ``vllm serve --headless``: starts the ranks, and ends all when one has ended.
VLLM = """
import os, signal, subprocess, sys
print("arguments:", *sys.argv[1:], flush=True)
options = dict(zip(sys.argv, sys.argv[1:]))
handshake = f"tcp://{options['--data-parallel-address']}:{options['--data-parallel-rpc-port']}"
simulate = [sys.executable, "-m", "smg_fast", "simulate", "--runtime", "vllm", "--model", sys.argv[2]]
simulate += ["--handshake", handshake, "--exit-with-parent", str(os.getpid()), "--index"]
ranks = range(int(options["--data-parallel-size-local"]))
engines = [subprocess.Popen([*simulate, str(rank)]) for rank in ranks]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ranks:", *[engine.pid for engine in engines], flush=True)
os.wait()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@asynccontextmanager
async def serve(directory: Path, backend: str, *options: str, **environment: str) -> AsyncIterator[Program]:
    arguments = ("serve", "--backend", backend, "--model", str(MODEL_DIRECTORY), "--port", "0", *options)
    async with program(*arguments, environment={"SMG_ZMQ_SOCKET_DIR": str(directory / "s"), **environment}) as running:
        yield running


async def listening(running: Program) -> str:
    return (await running.line(r"listening on (http://[\d.:]+)"))[1]


async def pids(running: Program, count: int) -> list[int]:
    started = [
        await running.line(r"(?:engine (\d+)|the engine|the group of engines) started, process (\d+)")
        for _ in range(count)
    ]
    return [int(match[2]) for match in sorted(started, key=lambda match: int(match[1] or 0))]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def gone(*pids: int) -> None:
    """Wait until processes have ended: whom a killed one has started dies a little later."""

    async def lasting() -> list[int]:
        return [pid for pid in pids if alive(pid)]

    await asyncio.wait_for(eventually(lasting, lambda pids: not pids), 2)


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if f"\nPPid:\t{pid}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


async def complete(session: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"prompt": "hello there", "max_tokens": 2, **fields}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        return response.status, await response.json()


async def served_by(session: aiohttp.ClientSession, url: str, rank: int) -> None:
    """Wait until an engine answers."""

    async def ask() -> int:
        return (await complete(session, url, data_parallel_rank=rank))[0]

    await eventually(ask, lambda status: status == 200)


async def ends(running: Program, number: signal.Signals, directory: Path) -> None:
    """It ends well at a signal, and nothing is left of it."""
    engines = children(running.process.pid)
    theirs = [pid for engine in engines for pid in children(engine)]
    assert engines
    running.process.send_signal(number)
    assert await running.end() == 0
    assert not [pid for pid in engines if alive(pid)]
    await gone(*theirs)
    assert list((directory / "s").iterdir()) == []
    assert "Traceback" not in "".join(running.output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_killed_rank_comes_back_and_the_other_serves_on(directory: Path, number: signal.Signals) -> None:
    async with serve(directory, "simulator", "--dp-size", "2") as running, aiohttp.ClientSession() as session:
        url = await listening(running)
        engines = await pids(running, 2)
        for rank in (0, 1):
            await served_by(session, url, rank)
        steady, doomed = (
            asyncio.ensure_future(complete(session, url, **ENDLESS, data_parallel_rank=rank)) for rank in (0, 1)
        )

        async def in_flight() -> int:
            async with session.get(f"{url}/health") as response:
                return int((await response.json())["generations"])

        await eventually(in_flight, lambda count: count == 2)
        os.kill(engines[1], signal.SIGKILL)
        status, body = await asyncio.wait_for(doomed, 1)
        assert status >= 500
        assert "engine 1" in body["error"]["message"]
        await running.line("engine 1 was killed by SIGKILL; it is started again")
        assert not steady.done()
        await served_by(session, url, 1)
        assert alive(engines[0])
        steady.cancel()
        await ends(running, number, directory)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_while_engines_load_the_gateway_answers_and_the_terminal_tells(
    directory: Path, number: signal.Signals
) -> None:
    async with (
        serve(directory, "simulator", "--slow-load", "3600") as running,
        aiohttp.ClientSession() as session,
    ):
        url = await listening(running)
        for method, path in (("GET", "/ready"), ("POST", "/v1/completions")):
            async with session.request(method, f"{url}{path}", json={"prompt": "hello"}) as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) > 0
        await running.line(r"the engine loads, for \d+ s now; it said last: .*engine 0 dials")
        started = time.monotonic()
        await ends(running, number, directory)
        assert time.monotonic() - started < 10


async def test_sockets_that_a_killed_gateway_has_left_go_at_the_next_start(directory: Path) -> None:
    async with serve(directory, "simulator") as running:
        await running.line("ready at")
        running.process.kill()
        await running.process.wait()
        left = sorted((directory / "s").glob("*"))
        assert len([path for path in left if path.suffix == ".sock"]) == 2
    async with serve(directory, "simulator") as running:
        await running.line("ready at")
        assert not any(path.exists() for path in left)
        await ends(running, signal.SIGTERM, directory)


async def test_tokenspeed_has_an_engine_for_each_rank(directory: Path) -> None:
    python = interpreter(directory, "tokenspeed", {"cli/__init__.py": "", "cli/__main__.py": TOKENSPEED})
    options = ("--dp-size", "2", "--tokenspeed-python", python, "--", "--tp", "2", "--max-model-len", "512")
    async with (
        serve(directory, "tokenspeed", *options, CUDA_VISIBLE_DEVICES="0,2,4,6") as running,
        aiohttp.ClientSession() as session,
    ):
        url = await listening(running)
        found = [await running.line(r"arguments: (serve --headless .*) ; GPUs (\S+)") for _ in range(2)]
        commands = {(said := match[1].split())[said.index("--zmq-engine-index") + 1]: match for match in found}
        assert [commands[rank][2] for rank in ("0", "1")] == ["0,2", "4,6"]
        for match in found:
            assert f" --model {MODEL_DIRECTORY} " in match[1]
            assert match[1].endswith(" --grammar-backend xgrammar --enable-output-logprobs --tp 2 --max-model-len 512")
        assert len({re.findall(r"--port (\d+) --dist-init-addr 127.0.0.1:(\d+)", match[1])[0] for match in found}) == 2
        for rank in (0, 1):
            await served_by(session, url, rank)
        status, body = await complete(session, url, logprobs=0)
        assert status == 200
        assert len(body["choices"][0]["logprobs"]["token_logprobs"]) == 2
        await ends(running, signal.SIGTERM, directory)


async def test_vllm_starts_its_ranks_itself_and_all_come_back(directory: Path) -> None:
    python = interpreter(directory, "vllm", {"entrypoints/cli/main.py": VLLM})
    async with (
        serve(directory, "vllm", "--dp-size", "2", "--vllm-python", python) as running,
        aiohttp.ClientSession() as session,
    ):
        url = await listening(running)
        await running.line("arguments: .* --headless --data-parallel-size 2 --data-parallel-size-local 2 ")
        killed, other = (int(pid) for pid in (await running.line(r"ranks: (\d+) (\d+)")).groups())
        for rank in (0, 1):
            await served_by(session, url, rank)
        os.kill(killed, signal.SIGKILL)
        await running.line("the group of engines ended with exit code 0; it is started again")
        await gone(other)
        await running.line("ranks: ")
        for rank in (0, 1):
            await served_by(session, url, rank)
        await ends(running, signal.SIGTERM, directory)


@pytest.mark.parametrize(
    ("backend", "options", "said"),
    [
        ("simulator", ["--", "--index", "3"], "--index is decided here, by the gateway"),
        ("simulator", ["--", "--model", "x"], "--model is for the gateway too: give it before --"),
        ("simulator", ["--dp-size", "0"], "argument --dp-size: Expected `int` >= 1, got '0'"),
        ("tokenspeed", ["--", "--port", "1"], "--port is decided here, so that no two engines have the same ports"),
        (
            "tokenspeed",
            ["--dp-size", "2", "--", "--tp", "2"],
            "2 x 2 GPUs are needed, and CUDA_VISIBLE_DEVICES lists 3: 0,1,2",
        ),
        ("tokenspeed", ["--tokenspeed-python", sys.executable], f"the interpreter {sys.executable} has no tokenspeed"),
    ],
)
async def test_what_cannot_be_is_told_at_once(directory: Path, backend: str, options: list[str], said: str) -> None:
    python = interpreter(directory, "tokenspeed")
    environment = {"SMG_FAST_TOKENSPEED_PYTHON": python, "CUDA_VISIBLE_DEVICES": "0,1,2"}
    async with serve(directory, backend, *options, **environment) as running:
        assert await running.end() == 2
        assert said in " ".join("".join(running.output).split())
    assert not (directory / "s").exists()


async def test_a_socket_directory_that_others_could_change_is_refused(directory: Path) -> None:
    (directory / "elsewhere").mkdir(0o700)
    (directory / "s").symlink_to(directory / "elsewhere")
    async with serve(directory, "simulator") as running:
        assert await running.end() == 1
        assert f"the socket directory {directory}/s is a symbolic link" in running.output[-1]
    assert not list((directory / "elsewhere").iterdir())


class Screen:
    """A terminal that ``smg-fast serve`` writes to."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        arguments = ("serve", "--model", str(MODEL_DIRECTORY), "--port", "0", *options)
        own = {"SMG_ZMQ_SOCKET_DIR": str(directory / "s"), **environment}
        self._starting = asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **own}
        )
        self._slave = slave
        self._reader = asyncio.StreamReader()
        self.seen = ""

    async def __aenter__(self) -> Screen:
        self._process = await self._starting
        os.close(self._slave)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(self._master, "rb", buffering=0)
        )
        self._transport = transport
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._transport.close()

    async def shows(self, pattern: str) -> re.Match[str]:
        """What is written up to the pattern."""
        while (match := re.search(pattern, self.seen)) is None:
            read = await asyncio.wait_for(self._reader.read(4096), PATIENCE)
            assert read, f"it ended without {pattern!r}: {self.seen!r}"
            self.seen += read.decode()
        return match

    async def ends(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), PATIENCE)


async def test_on_a_terminal_one_line_is_rewritten(directory: Path) -> None:
    async with Screen(directory, "--backend", "simulator", "--slow-load", "2.2") as screen:
        for seconds in (1, 2):
            await screen.shows(rf"\r\x1b\[Kthe engine loads, 0:0{seconds}  [^\r\n]*engine 0 dials")
        await screen.shows("smg-fast is ready at")
        assert not re.search(r"engine 0 dials[^\r\n]*\r\n", screen.seen), "it was also shown as a line"
        assert await screen.ends(signal.SIGINT) == 0


async def test_on_a_terminal_what_a_failing_engine_said_is_shown(directory: Path) -> None:
    python = interpreter(
        directory, "tokenspeed", {"cli/__init__.py": "", "cli/__main__.py": "print('no such GPU'); exit(3)"}
    )
    async with Screen(directory, "--backend", "tokenspeed", "--tokenspeed-python", python) as screen:
        await screen.shows(r"no such GPU\r\n(.*\n)*.*the engine ended with exit code 3; it is started again in 0.5 s")
        assert await screen.ends(signal.SIGTERM) == 0
