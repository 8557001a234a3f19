"""Which revision of the wire a worker's requests are written in."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import aiohttp
import msgpack
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from tests.gateway.support import PATIENCE, free_port, program, simulator
from tests.transport.engine import ADD, Row, ScriptedEngine

COMPLETION = {"prompt": "hello there", "max_tokens": 1}


def launch(directory: str, handshake: str, *options: str) -> list[str]:
    return [
        *("launch", "--port", "0", "--worker", f"ipc://{directory}/e", "--runtime", "tokenspeed"),
        *("--model", str(MODEL_DIRECTORY), "--handshake-address", handshake, *options),
    ]


async def complete(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.post(f"{url}/v1/completions", json=COMPLETION) as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize(
    ("options", "elements"), [((), 25), (("--request-form", "tagged"), 25), (("--request-form", "tuple"), 5)]
)
async def test_the_operator_chooses_the_form_of_requests(options: tuple[str, ...], elements: int) -> None:
    handshake = f"tcp://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        async with (
            program(*launch(directory, handshake, *options)) as running,
            aiohttp.ClientSession() as session,
        ):
            url = (await running.line(r"listens on (http://[\d.:]+)"))[1]
            async with await ScriptedEngine.dial(handshake) as engine:
                await running.line("engine 0 is ready")
                answer = asyncio.create_task(complete(session, url))
                type_byte, payload = await engine.input.recv_multipart()
                fields = msgpack.unpackb(payload)
                assert (type_byte, len(fields)) == (ADD, elements)
                if elements == 5:
                    assert len(fields[2]) == 13
                await engine.send(Row(fields[0] if elements == 5 else fields[1], [1], "length"))
                usage = (await asyncio.wait_for(answer, PATIENCE))["usage"]
                assert usage["completion_tokens"] == 1
            running.process.terminate()
            assert await running.end() == 0


async def test_the_first_form_is_served_end_to_end() -> None:
    handshake = f"tcp://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        async with (
            program(*launch(directory, handshake, "--request-form", "tuple")) as running,
            aiohttp.ClientSession() as session,
        ):
            url = (await running.line(r"listens on (http://[\d.:]+)"))[1]
            async with simulator(handshake):
                await running.line("engine 0 is ready")
                assert (await complete(session, url))["usage"]["completion_tokens"] == 1
                running.process.terminate()
                assert await running.end() == 0
