"""Engines that do not dial again, as real ones do not, are taken back by the next gateway at their addresses."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, WorkerAddresses
from smg_fast.transport.process import process_of
from smg_fast.transport.survivors import roster_path

from .engine import TOKENSPEED, Row, ScriptedEngine, VLLMWire, Wire
from .gateway import at_work, earlier_gateway
from .response import ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]
Dial = Callable[..., Awaitable[ScriptedEngine]]

PROBE = ["none"]


@pytest.fixture(params=[TOKENSPEED, VLLMWire()], ids=["tokenspeed", "vllm"])
def wire(request: pytest.FixtureRequest) -> Wire:
    chosen: Wire = request.param
    return chosen


class Roster:
    """The file in which a gateway writes its engines down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        known: list[dict[str, Any]] = json.loads(self.path.read_bytes())
        return known

    def write(self, *known: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(known))


@pytest.fixture
def roster(addresses: WorkerAddresses) -> Roster:
    return Roster(roster_path(addresses))


async def outlive(addresses: WorkerAddresses, dial: Dial, *wires: Wire) -> list[ScriptedEngine]:
    """Engines of which each has a request of a gateway that was killed."""
    async with earlier_gateway(wires[0].family, addresses, len(wires)) as gateway:
        engines = []
        for index, wire in enumerate(wires):
            engines.append(await dial(index, wire=wire))
        for engine in engines:
            request = await engine.request()
            await engine.send(Row(request.rid, [1]))
        await at_work(gateway)
    return engines


async def test_an_engine_that_outlived_its_gateway_serves_the_next_one(
    start: Start, addresses: WorkerAddresses, dial: Dial, tokenizer: Tokenizer, wire: Wire
) -> None:
    [engine] = await outlive(addresses, dial, wire)
    client = await start(family(wire.family))
    await client.wait_ready(5)
    assert client.ready_response is not None
    assert client.ready_response.max_model_len == 4096
    assert await engine.abort() == PROBE
    # It still works for the one before.
    await engine.send(Row("earlier-0", [1]))
    assert await engine.abort() == ["earlier-0"]
    response = await ask(client, tokenizer, "a", max_tokens=2)
    assert (await engine.request()).rid == "a"
    await engine.send(Row("a", [1, 2], "length"))
    [output] = await response.outputs()
    assert output.token_ids.tolist() == [1, 2]
    # Its end is noticed like that of any other.
    response = await ask(client, tokenizer, "b")
    engine.close()
    await eventually(response.ended.is_set)
    assert (client.state, client.reason) == ("unhealthy", "engine 0 has disconnected")


async def test_a_group_outlives_two_gateways(
    start: Start, addresses: WorkerAddresses, dial: Dial, tokenizer: Tokenizer
) -> None:
    engines = await outlive(addresses, dial, TOKENSPEED, TOKENSPEED)
    async with earlier_gateway("tokenspeed", addresses, 2) as second:
        for engine in engines:
            assert await engine.abort() == PROBE
            await engine.send(Row((await engine.request()).rid, [1]))
        await at_work(second)
    client = await start(engine_count=2)
    await ready(client, 2)
    for index, engine in enumerate(engines):
        assert await engine.abort() == PROBE
        response = await ask(client, tokenizer, f"a-{index}", rank=index)
        await engine.send(Row((await engine.request()).rid, [1], "length"))
        await response.outputs()


async def test_an_engine_that_dials_again_registers_again(
    start: Start, addresses: WorkerAddresses, dial: Dial, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    [old] = await outlive(addresses, dial, TOKENSPEED)
    old.close()
    async with ScriptedEngine(addresses.handshake) as engine:
        hello = asyncio.create_task(engine.hello())
        client = await start()
        await hello
        await engine.register(max_model_len=2048)
        await client.wait_ready(5)
        assert client.ready_response is not None
        assert client.ready_response.max_model_len == 2048
        response = await ask(client, tokenizer, "a")
        assert (await engine.request()).rid == "a"  # and no probe before
        client.cancel(response.key)
    assert "outlived" not in caplog.text


async def test_another_process_is_not_taken_for_one_that_was_known(
    start: Start, addresses: WorkerAddresses, dial: Dial, roster: Roster, tokenizer: Tokenizer
) -> None:
    [engine] = await outlive(addresses, dial, TOKENSPEED)
    [known] = roster.read()
    me = process_of(f"localhost:0:0:{os.getpid()}")
    assert me is not None
    assert known["process"] == {"pid": me.pid, "started": me.started}
    # The id was given anew.
    roster.write({**known, "process": {"pid": me.pid, "started": me.started - 1}})
    client = await start()
    await engine.send(Row("earlier-0", [1]))
    await eventually(lambda: client._monitor._open)
    await asyncio.sleep(0.1)
    assert (client.state, client.reason) == ("connecting", "engine 0 has not said hello")
    # A successor is welcome all the same.
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)


async def test_an_engine_of_another_family_is_refused(start: Start, addresses: WorkerAddresses, dial: Dial) -> None:
    await outlive(addresses, dial, VLLMWire())
    client = await start(family("tokenspeed"))
    await eventually(lambda: client.state == "unhealthy")
    assert "is vLLM 0.32.0, not TokenSpeed" in client.reason


async def test_a_rank_that_the_worker_does_not_have_any_more_is_left_alone(
    start: Start, addresses: WorkerAddresses, dial: Dial
) -> None:
    first, second = await outlive(addresses, dial, TOKENSPEED, TOKENSPEED)
    client = await start(engine_count=1)
    await client.wait_ready(5)
    assert await first.abort() == PROBE
    assert not await second.input.poll(100)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"index": 0}]', b"\xff"])
async def test_a_file_that_cannot_be_read_is_no_obstacle(
    start: Start, addresses: WorkerAddresses, roster: Roster, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    roster.path.write_bytes(content)
    client = await start()
    assert "cannot read which engines an earlier gateway has left" in caplog.text
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)
        assert [known["index"] for known in roster.read()] == [0]


async def test_what_an_engine_is_remembered_by_may_be_nonsense(
    start: Start, addresses: WorkerAddresses, dial: Dial, roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    await outlive(addresses, dial, TOKENSPEED)
    [known] = roster.read()
    roster.write({**known, "ready_response": "wQ=="})
    client = await start()
    await eventually(lambda: "what engine 0 told an earlier gateway cannot be read" in caplog.text)
    assert client.state == "connecting"


async def test_a_directory_that_cannot_be_written_costs_only_the_memory(
    start: Start, addresses: WorkerAddresses, roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = roster.path.with_suffix(".new")
    client = await start()
    obstacle.mkdir()
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)
    assert "a later gateway will not know engine 0" in caplog.text
    obstacle.rmdir()


async def test_an_engine_that_lives_on_when_its_gateway_ends_serves_the_next_one(
    start: Start, addresses: WorkerAddresses, dial: Dial, tokenizer: Tokenizer, wire: Wire
) -> None:
    first = await start(family(wire.family))
    engine = await dial(0, wire=wire)
    await first.wait_ready(5)
    await first.close(for_good=False)
    second = await start(family(wire.family))
    await second.wait_ready(5)
    assert await engine.abort() == PROBE
    await ask(second, tokenizer, "a")
    assert (await engine.request()).rid == "a"


async def test_nothing_is_kept_when_no_engine_lives_on(
    start: Start, addresses: WorkerAddresses, roster: Roster
) -> None:
    program = await asyncio.create_subprocess_exec("true")
    roster.write(
        {
            "index": 0,
            "process": {"pid": program.pid, "started": 1},
            "peer": f"localhost:0:0:{program.pid}",
            "ready_response": "",
        }
    )
    client = await start()
    assert await program.wait() == 0
    await client.close(for_good=False)
    assert list(roster.path.parent.iterdir()) == []


async def test_a_worker_that_is_closed_for_good_leaves_no_memory(
    start: Start, addresses: WorkerAddresses, roster: Roster
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)
        [known] = roster.read()
        assert known["process"]["pid"] == os.getpid()
        await client.close()
        assert list(roster.path.parent.iterdir()) == []


def test_the_process_of_a_peer() -> None:
    me = process_of(f"localhost:0:0:{os.getpid()}")
    assert me is not None
    assert me.stopped is False
    assert process_of("localhost:0:0:0") is None  # of another namespace
    assert process_of("127.0.0.1") is None
    assert process_of("") is None
