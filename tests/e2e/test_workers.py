"""Workers of a gateway that runs, from its command line and from ``smg-fast workers``."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from tests.gateway.support import PATIENCE, Program, eventually, free_port, program, simulator


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


async def listening(running: Program) -> str:
    return (await running.line(r"smg-fast listens on (http://[\d.:]+);"))[1]


async def workers(url: str, action: str, *arguments: str) -> tuple[int, str]:
    """``smg-fast workers``: its exit code, and what it said."""
    async with program("workers", action, "--url", url, *arguments) as running:
        code = await running.end()
        return code, "".join(running.output)


async def listed(url: str) -> list[dict[str, Any]]:
    code, said = await workers(url, "list", "--json")
    assert code == 0, said
    found: list[dict[str, Any]] = json.loads(said)["workers"]
    return found


async def test_a_worker_comes_and_goes_from_the_terminal(directory: Path) -> None:
    path, handshake = f"ipc://{directory}/s/e", f"tcp://127.0.0.1:{free_port()}"
    async with program("launch", "--port", "0") as running, aiohttp.ClientSession() as session:
        url = await listening(running)
        assert (await workers(url, "list"))[1].split() == (
            ["ID", "STATE", "SINCE", "READY", "IN", "FLIGHT", "PRIORITY", "RUNTIME", "MODEL", "URL"]
        )
        options = ["--runtime", "tokenspeed", "--model", str(MODEL_DIRECTORY), "--served-model-name", "one", "two"]
        options += ["--handshake-address", handshake, "--priority", "7", "--label", "rack=4", "--label", "by=me"]
        code, said = await workers(url, "add", path, *options)
        added = re.fullmatch(rf"worker (\S+) at {re.escape(path)} is \S+\n", said)
        assert code == 0
        assert added is not None

        async with simulator(handshake):
            (worker,) = await eventually(lambda: listed(url), lambda found: found[0]["state"] == "ready")
            assert (worker["id"], worker["priority"], worker["labels"]) == (added[1], 7, {"rack": "4", "by": "me"})
            row = (await workers(url, "list"))[1].splitlines()[1].split()
            assert [*row[:2], *row[3:]] == [added[1], "ready", "1/1", "0", "7", "tokenspeed", "one,two", path]
            async with session.post(f"{url}/v1/completions", json={"prompt": "hello", "model": "two"}) as response:
                assert response.status == 200

            code, said = await workers(url, "add", path, *options)
            assert code == 1
            assert f"there is a worker at {path} already" in said
            assert await workers(url, "remove", f"{path}2") == (
                1,
                f"smg-fast workers: there is no worker at {path}2\n",
            )
            code, said = await workers(url, "remove", path, "--timeout", "5")
            assert (code, said) == (0, f"worker {added[1]} at {path} is draining\n")
            await eventually(lambda: listed(url), lambda found: found == [])
        code, said = await workers(url, "remove", added[1])
        assert code == 1
        assert added[1] in said
        assert not list((directory / "s").iterdir())
        running.process.terminate()
        assert await running.end() == 0


async def test_one_gateway_has_workers_of_several_models(directory: Path) -> None:
    handshakes = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    common = ["--model", str(MODEL_DIRECTORY), "--runtime", "tokenspeed"]
    each = [
        ["--worker", f"ipc://{directory}/e{place}", "--handshake-address", handshake, "--served-model-name", name]
        for place, (handshake, name) in enumerate(zip(handshakes, ("first", "second"), strict=True))
    ]
    async with (
        program("launch", "--port", "0", *common, *each[0], *each[1], "--runtime", "vllm") as running,
        aiohttp.ClientSession() as session,
        simulator(handshakes[0], "--text", "one"),
        simulator(handshakes[1], "--text", "two", "--runtime", "vllm"),
    ):
        line = await running.line(r"smg-fast listens on (http://[\d.:]+); engines dial (.*)$")
        assert line[2].split(", ") == handshakes

        async def ask(model: str) -> str:
            body = {"prompt": "hello", "model": model, "max_tokens": 9}
            async with session.post(f"{line[1]}/v1/completions", json=body) as response:
                answer = await response.json()
                return str(answer["choices"][0]["text"]) if response.status == 200 else ""

        for name, text in (("first", "one"), ("second", "two")):
            assert await eventually(lambda name=name: ask(name), bool) == text  # type: ignore[misc]
        running.process.terminate()
        assert await asyncio.wait_for(running.end(), PATIENCE) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "/m"], "there are options for workers and no --worker"),
        (["--worker", "ipc:///a", "--engine-count", "0"], "argument --engine-count: Expected `int` >= 1, got '0'"),
    ],
)
async def test_options_that_no_worker_can_have(options: list[str], said: str) -> None:
    async with program("launch", "--port", "0", *options) as running:
        assert await running.end() == 2
        assert said in running.output[-1]
