"""Engines come in any order, as often as they like; whoever makes no sense is passed over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgpack
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.transport import BindError, EngineClient, EngineUnavailable, WorkerAddresses

from .engine import Row, ScriptedEngine
from .response import ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]


async def test_without_engines_the_worker_is_connecting(start: Start, tokenizer: Tokenizer) -> None:
    client = await start(engine_count=2)
    assert (client.state, client.ready, client.ready_response) == ("connecting", False, None)
    with pytest.raises(EngineUnavailable, match="engine 0 has not said hello; engine 1 has not said hello"):
        await client.wait_ready(0.01)
    with pytest.raises(EngineUnavailable):
        await ask(client, tokenizer, "a")


async def test_an_engine_that_comes_after_the_gateway(start: Start, addresses: WorkerAddresses) -> None:
    client = await start()
    async with ScriptedEngine(addresses.handshake) as engine:
        await engine.hello()
        assert (client.state, client.reason) == ("connecting", "engine 0 is starting")
        await engine.register(max_model_len=2048)
        await client.wait_ready(5)
        assert client.state == "ready"
        assert client.ready_response is not None
        assert (client.ready_response.max_model_len, client.ready_response.block_size) == (2048, 16)


async def test_an_engine_that_comes_before_the_gateway(start: Start, addresses: WorkerAddresses) -> None:
    async with ScriptedEngine(addresses.handshake) as engine:
        hello = asyncio.create_task(engine.hello())
        await asyncio.sleep(0)
        client = await start()
        await hello
        await engine.register()
        await client.wait_ready(5)


async def test_an_engine_whose_gateway_went_while_it_loaded_registers_with_the_next_one(
    start: Start, addresses: WorkerAddresses
) -> None:
    first = await start()
    async with ScriptedEngine(addresses.handshake) as engine:
        await engine.hello()
        await first.close()
        client = await start()
        await engine.register()
        await client.wait_ready(5)


@pytest.mark.parametrize("seed", range(3))
async def test_engines_of_a_group_in_any_order(start: Start, addresses: WorkerAddresses, seed: int) -> None:
    client = await start(engine_count=4)
    engines = [ScriptedEngine(addresses.handshake, index) for index in range(4)]
    steps = [(engine.hello, engine.register) for engine in engines]
    order = random.Random(seed).sample([0, 0, 1, 1, 2, 2, 3, 3], 8)
    done = [0] * 4
    for index in order:
        await steps[index][done[index]]()
        done[index] += 1
    await ready(client, 4)
    assert [engine.index for engine in client.ready_engines] == [0, 1, 2, 3]
    for engine in engines:
        engine.close()


async def test_hello_said_twice_is_answered_twice_and_ends_nothing(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with ScriptedEngine(addresses.handshake) as engine:
        await engine.hello()
        await engine.hello()
        await engine.register()
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        await engine.hello()
        assert client.ready
        await engine.send(Row("a", [1], "length"))
        await response.outputs()


HELLO = {"status": "HELLO", "local": True, "headless": True}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93", msgpack.packb({"status": "WHAT", "local": True, "headless": True}), msgpack.packb([1])],
)
async def test_a_handshake_that_makes_no_sense_is_passed_over(
    start: Start, addresses: WorkerAddresses, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start()
    async with ScriptedEngine(addresses.handshake) as engine:
        await engine.say_handshake(payload)
        await engine.hello()
        await engine.register()
        await client.wait_ready(5)
    assert "handshake of engine 0" in caplog.text


async def test_an_unknown_identity_is_passed_over(
    start: Start, addresses: WorkerAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start()
    async with ScriptedEngine(addresses.handshake, 1) as stranger:
        await stranger.say_handshake(msgpack.packb(HELLO))
        async with await ScriptedEngine.dial(addresses.handshake) as engine:
            await client.wait_ready(5)
            # The same on the input socket, whose addresses a stranger may know.
            stranger._input_address = engine._input_address
            await stranger.register()
            await eventually(lambda: "registration of an unknown identity, 0100" in caplog.text)
            await eventually(lambda: "handshake from an unknown identity, 0100" in caplog.text)
            assert len(client.ready_engines) == 1


async def test_a_registration_that_cannot_be_read_is_passed_over(
    start: Start, addresses: WorkerAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        await engine.input.send(b"\xc1")
        await eventually(lambda: "registration of engine 0 cannot be read" in caplog.text)
        assert client.ready


async def test_a_second_gateway_at_the_address_is_refused_and_disturbs_nothing(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        with pytest.raises(BindError, match="in use"):
            await start()
        response = await ask(client, tokenizer, "a")
        await engine.send(Row("a", [1], "length"))
        await response.outputs()
        assert client.ready
