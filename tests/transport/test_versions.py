"""Which version of its wire an engine speaks, and what becomes of one whose wire is not known."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, EngineUnavailable, WorkerAddresses

from .engine import ADD, Row, ScriptedEngine, VLLMWire
from .response import ask, eventually, nothing_for, ready

Start = Callable[..., Awaitable[EngineClient]]
Dial = Callable[..., Awaitable[ScriptedEngine]]

LAYOUTS = json.loads((Path(__file__).parents[1] / "data" / "vllm-layouts.json").read_text())


async def elements(engine: ScriptedEngine) -> int:
    """How many the next request has: every second version or so has one more."""
    type_byte, payload = await engine.input.recv_multipart()
    fields: list[Any] = msgpack.unpackb(payload)
    assert type_byte == ADD
    return len(fields)


async def serves(client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer, version: str) -> None:
    """It takes a request in the layout of a version, and is understood."""
    response = await ask(client, tokenizer, version)
    assert await elements(engine) == len(LAYOUTS[version]["EngineCoreRequest"])
    await engine.send(Row(version, [1], "length"))
    [output] = await response.outputs()
    assert output.token_ids.tolist() == [1]


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.28.0", "0.33.0"])
async def test_the_engine_tells_its_version(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer, version: str
) -> None:
    client = await start(family("vllm", vllm_version="0.32.0"))  # which counts only where the engine is silent
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(version)) as engine:
        await client.wait_ready(5)
        await serves(client, engine, tokenizer, version)


async def test_the_version_of_an_engine_that_does_not_tell_is_configured(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(family("vllm", vllm_version="0.20.2"))
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(None)) as engine:
        await client.wait_ready(5)
        await serves(client, engine, tokenizer, "0.20.2")


@pytest.mark.parametrize("reported", ["dev", "0.1.dev1+g0123456", "0.11.2"])
async def test_where_the_reported_version_says_nothing_the_configured_one_counts(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, reported: str
) -> None:
    client = await start(family("vllm", vllm_version="0.20.2"))
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(reported)) as engine:
        await client.wait_ready(5)
        await serves(client, engine, tokenizer, "0.20.2")
    [warning] = [record.message for record in caplog.records if reported in record.message]
    assert "it is spoken to as 0.20.2, the configured version" in warning


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "engine 0 does not report its version of vLLM: give it with --vllm-version"),
        ("0.11.0", r"engine 0 cannot be used: .*0\.11\.0 is older than 0\.12\.0.* with --vllm-version"),
        ("dev", 'engine 0 cannot be used: "dev" is not a version of vLLM.* with --vllm-version'),
    ],
)
async def test_an_engine_whose_wire_is_not_known_is_not_used(
    start: Start,
    addresses: WorkerAddresses,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
    version: str | None,
    reason: str,
) -> None:
    client = await start(family("vllm"))

    def refusals() -> list[int]:
        return [record.levelno for record in caplog.records if "vLLM" in record.message]

    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(version)) as engine:
        await eventually(lambda: client.state == "unhealthy")
        with pytest.raises(EngineUnavailable, match=reason):
            await ask(client, tokenizer, "a")
        await engine.send(Row("a", [1]))  # nobody asked, nobody listens
        await nothing_for(client, engine)
        await engine.hello()
        await engine.register()
        await eventually(lambda: len(refusals()) == 2)
        await nothing_for(client, engine)
        assert client.state == "unhealthy"
    assert refusals() == [logging.ERROR] * 2
    assert "cannot be read" not in caplog.text
    # The one that comes after it may be of use.
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire()) as engine:
        await client.wait_ready(5)
        await serves(client, engine, tokenizer, "0.32.0")


@pytest.mark.parametrize(
    ("expected", "version", "reason"),
    [
        ("tokenspeed", "0.32.0", r"engine 0 is vLLM 0\.32\.0, not TokenSpeed: say --runtime vllm"),
        ("vllm", "tokenspeed-0.1.1", r"engine 0 is tokenspeed-0\.1\.1, not vLLM: say --runtime tokenspeed"),
    ],
)
async def test_an_engine_of_another_family_is_not_used(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer, expected: str, version: str, reason: str
) -> None:
    client = await start(family(expected))
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(version)) as engine:
        await eventually(lambda: client.state == "unhealthy")
        with pytest.raises(EngineUnavailable, match=reason):
            await ask(client, tokenizer, "a")
        await nothing_for(client, engine)


async def test_a_newer_version_is_taken_for_the_newest_that_is_known(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start(family("vllm"))
    async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire("0.99.1")) as engine:
        await client.wait_ready(5)
        await serves(client, engine, tokenizer, list(LAYOUTS)[-1])
    [warning] = [record.message for record in caplog.records if "0.99.1" in record.message]
    assert f"newer than {list(LAYOUTS)[-1]}" in warning


async def test_engines_of_a_worker_speak_one_wire(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(family("vllm"), engine_count=3)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0, wire=VLLMWire("0.32.0")) as first,
        await ScriptedEngine.dial(addresses.handshake, 2, wire=VLLMWire("0.32.1")),  # the same wire
    ):
        await ready(client, 2)
        async with await ScriptedEngine.dial(addresses.handshake, 1, wire=VLLMWire("0.24.0")) as other:
            await eventually(lambda: "engine 1 speaks another version of the wire" in client.reason)
            assert client.state == "ready"
            await first.send(Row("nobody's", [1]))
            assert await first.abort() == ["nobody's"]
            await nothing_for(client, other)
            response = await ask(client, tokenizer, "a", rank=0)
            with pytest.raises(EngineUnavailable, match="engine 1 speaks another version of the wire"):
                await ask(client, tokenizer, "b", rank=1)
            assert (await first.request()).rid == "a"
            await first.send(Row("a", [1], "length"))
            await response.outputs()


async def test_versions_of_one_wire_are_one(start: Start, addresses: WorkerAddresses) -> None:
    """vLLM 0.24 lays its messages out as 0.22.1 did."""
    client = await start(family("vllm", vllm_version="0.22.1"), engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0, wire=VLLMWire("0.22.1")),
        await ScriptedEngine.dial(addresses.handshake, 1, wire=VLLMWire("0.24.0")),
    ):
        await ready(client, 2)


async def test_an_engine_that_restarts_in_another_version(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(family("vllm"))
    for version in ("0.32.0", "0.24.0", "0.32.0"):
        async with await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(version)) as engine:
            await client.wait_ready(5)
            await serves(client, engine, tokenizer, version)
        await eventually(lambda: not client.ready)


async def test_a_group_changes_its_version_when_none_of_the_other_is_left(
    start: Start, dial: Dial, tokenizer: Tokenizer
) -> None:
    client = await start(family("vllm"), engine_count=3)
    old = [await dial(index, wire=VLLMWire("0.24.0")) for index in range(3)]
    await ready(client, 3)
    old[0].close()
    old[1].close()
    await ready(client, 1)
    new = [await dial(0, wire=VLLMWire("0.32.0"))]
    await eventually(lambda: "engine 0 speaks another version" in client.reason)
    gone = await dial(1, wire=VLLMWire("0.32.0"))
    await eventually(lambda: "engine 1 speaks another version" in client.reason)
    gone.close()
    await eventually(lambda: not client.engines[1].connected)
    old[2].close()
    # The one that has waited serves at once; the one that came after it and has gone does not.
    await eventually(lambda: client.engines[0].ready)
    new.append(await dial(2, wire=VLLMWire("0.32.0")))
    await ready(client, 2)
    for engine, rid in zip(new, "ab", strict=True):
        response = await ask(client, tokenizer, rid, rank=engine.index)
        assert await elements(engine) == len(LAYOUTS["0.32.0"]["EngineCoreRequest"])
        await engine.send(Row(rid, [1], "length"))
        await response.outputs()


@pytest.mark.parametrize("version", [None, "0.24.0"])
async def test_what_nobody_says_who_serves_concerns_nobody(
    start: Start,
    dial: Dial,
    addresses: WorkerAddresses,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
    version: str | None,
) -> None:
    """One has not registered, the other is refused; neither has a say in what the engine beside it does."""
    client = await start(family("vllm"), engine_count=2)
    first = await dial(0, wire=VLLMWire("0.32.0"))
    await ready(client, 1)
    response = await ask(client, tokenizer, "a")
    stranger = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.transport.stranger", addresses.handshake, "1"),
        *(() if version is None else (version,)),
        stdin=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    await eventually(lambda: f"engine 1 {'is starting' if version is None else 'speaks another'}" in client.reason)
    await stranger.communicate(b"\n")
    assert stranger.returncode == 0
    # What comes after it has been read has been read after it.
    stream = await ask(client, tokenizer, "b", stream=True)
    await first.send(Row("b", [1]))
    await stream.first_chunk()
    await first.send(Row("a", [1], "length"), Row("b", [1], "length"))
    [output] = await response.outputs()
    assert output.token_ids.tolist() == [1]
    await stream.outputs()
    assert [(await first.request()).rid, (await first.request()).rid] == ["a", "b"]
    await nothing_for(client, first)
    assert client.engines[0].ready
    assert "cannot be read" not in caplog.text
