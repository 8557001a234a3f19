"""``smg-fast serve --backend vllm``, with a program in the place of vLLM that is the simulator on vLLM's wire."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from tests.gateway.support import PATIENCE, Program, program

#: It shows its arguments, and dials when a line is written to the fifo in its environment.
ENGINE = """
import os, sys
print("arguments:", *sys.argv[1:], flush=True)
print("loading weights", flush=True)
options = dict(zip(sys.argv[2:], sys.argv[3:]))
open(os.environ["LOADED"]).read()
handshake = f"tcp://{options['--data-parallel-address']}:{options['--data-parallel-rpc-port']}"
arguments = ["simulate", "--runtime", "vllm", "--handshake", handshake, "--model", sys.argv[2]]
os.execv(sys.executable, [sys.executable, "-m", "smg_fast", *arguments, "--tick-ms", "1"])
"""
COMPLETION = {"prompt": "hello there", "max_tokens": 2, "logprobs": 3}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@pytest.fixture
def interpreter(directory: Path) -> str:
    main = directory / "packages" / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(ENGINE)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={directory / "packages"}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


@pytest.fixture
def environment(directory: Path, interpreter: str) -> dict[str, str]:
    fifo = directory / "loaded"
    os.mkfifo(fifo)
    return {"SMG_ZMQ_SOCKET_DIR": str(directory / "s"), "SMG_FAST_VLLM_PYTHON": interpreter, "LOADED": str(fifo)}


def serve(*options: str, model: Path = MODEL_DIRECTORY) -> list[str]:
    return ["serve", "--backend", "vllm", "--model", str(model), "--port", "0", *options]


async def listening(running: Program) -> str:
    return (await running.line(r"listening on (http://[\d.:]+)"))[1]


async def complete(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any], Any]:
    async with session.post(f"{url}/v1/completions", json=COMPLETION) as response:
        return response.status, await response.json(), response.headers.get("Retry-After")


async def test_one_command_serves_a_model(directory: Path, environment: dict[str, str]) -> None:
    options = ("--served-model-name", "m", "--max-logprobs", "3", "--", "--max-model-len", "512", "--port", "1")
    async with (
        program(*serve(*options), environment=environment) as running,
        aiohttp.ClientSession() as session,
    ):
        url = await listening(running)
        arguments = (await running.line("arguments: (.*)"))[1]
        assert arguments.startswith(f"serve {MODEL_DIRECTORY} --headless --data-parallel-address 127.0.0.1 ")
        assert arguments.endswith(" --max-logprobs 3 --max-model-len 512 --port 1")
        await running.line("loading weights")
        status, body, retry_after = await complete(session, url)
        assert status == 503
        assert body["error"]["message"]
        assert int(retry_after) > 0
        await asyncio.to_thread(Path(environment["LOADED"]).write_text, "")
        await running.line("ready at .* with model 'm'")
        status, body, _ = await complete(session, url)
        assert status == 200
        assert len(body["choices"][0]["logprobs"]["top_logprobs"]) == 2
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.end(), PATIENCE) == 0
    assert list((directory / "s").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--", "--headless"], "--headless means nothing here: engines start without a server"),
        (
            ["--data-parallel-size", "2"],
            "--data-parallel-size is decided here: --dp-size says how many engines there are",
        ),
        (["--", "--max-logprobs", "5"], "--max-logprobs is for the gateway too: give it before --"),
        (["--", "--served_model_name=x"], "--served-model-name is for the gateway too: give it before --"),
        (["--vllm-python", sys.executable], f"the interpreter {sys.executable} has no vllm"),
        (["--structured-outputs-backend", "magic"], "invalid choice: 'magic'"),
    ],
)
async def test_what_cannot_be_is_told_at_once(environment: dict[str, str], options: list[str], said: str) -> None:
    async with program(*serve(*options), environment=environment) as running:
        assert await running.end() == 2
        assert said in "".join(running.output)


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("launch", ("--runtime", "tokenspeed", "--vllm-version", "0.32.0"), "--vllm-version is an option of"),
        ("launch", ("--runtime", "vllm", "--request-form", "tagged"), "--request-form is an option of"),
        ("launch", ("--request-form", "tuple"), "--request-form is an option of"),
        ("simulator", ("--max-logprobs", "20"), "--max-logprobs is an option of"),
        ("simulator", ("--structured-outputs-backend", "guidance"), "--structured-outputs-backend is an option of"),
    ],
)
async def test_an_option_of_another_runtime_is_refused_before_anything_is_bound(
    directory: Path, command: str, options: tuple[str, ...], said: str
) -> None:
    model, sockets = str(MODEL_DIRECTORY), directory / "s"
    arguments = {
        "launch": ("launch", "--worker", f"ipc://{sockets}/e", "--model", model),
        "simulator": ("serve", "--backend", "simulator", "--model", model),
    }[command]
    environment = {"SMG_ZMQ_SOCKET_DIR": str(sockets)}
    async with program(*arguments, "--port", "0", *options, environment=environment) as running:
        assert await running.end() == 1
        assert said in running.output[-1]
    assert not sockets.exists()


@pytest.mark.parametrize(("given", "said"), [("-2", "`int` >= -1"), ("1001", "`int` <= 1000")])
async def test_a_limit_of_logprobs_has_its_limits(environment: dict[str, str], given: str, said: str) -> None:
    async with program(*serve("--max-logprobs", given), environment=environment) as running:
        assert await running.end() == 2
        assert f"argument --max-logprobs: Expected {said}, got '{given}'" in "".join(running.output)


async def test_there_is_no_model_that_comes_along(environment: dict[str, str]) -> None:
    async with program("serve", "--backend", "vllm", environment=environment) as running:
        assert await running.end() == 2
        assert "argument --model: give the model's directory" in "".join(running.output)


async def test_the_simulator_passes_for_vllm_of_any_version(directory: Path) -> None:
    options = ("--backend", "simulator", "--port", "0", "--runtime", "vllm", "--vllm-version", "0.20.2")
    async with (
        program("serve", *options, environment={"SMG_ZMQ_SOCKET_DIR": str(directory)}) as running,
        aiohttp.ClientSession() as session,
    ):
        url = await listening(running)
        await running.line("ready at ")
        status, _, _ = await complete(session, url)
        assert status == 200
        running.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(running.end(), PATIENCE) == 0
