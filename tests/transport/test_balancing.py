"""The next request goes to the engine with the least to do, as far as can be known."""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Awaitable, Callable, Sequence

import msgpack
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, EngineUnavailable
from smg_fast.transport.load import EngineLoad, pressure

from .engine import TOKENSPEED, Row, ScriptedEngine, VLLMWire, Wire, tick
from .response import ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]
Dial = Callable[..., Awaitable[ScriptedEngine]]
#: An engine's account of its load: the engine's index, requests running and waiting, and the pages of its KV cache
#: that are in use, of a hundred.
Tell = Callable[[int, int, int, int], bytes]

RANKS = 4


def tell_tokenspeed(index: int, running: int, waiting: int, pages: int) -> bytes:
    return tick([], [index, running, waiting, pages, 100])


def tell_vllm(index: int, running: int, waiting: int, pages: int) -> bytes:
    stats = {"num_running_reqs": running, "num_waiting_reqs": waiting, "kv_cache_usage": pages / 100}
    return bytes(msgpack.packb([index, [], stats]))


@pytest.fixture(params=["tokenspeed", "vllm"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tell(runtime: str) -> Tell:
    return tell_vllm if runtime == "vllm" else tell_tokenspeed


@pytest.fixture
async def client(start: Start, runtime: str) -> EngineClient:
    return await start(family(runtime), engine_count=RANKS)


@pytest.fixture
async def engines(client: EngineClient, dial: Dial, runtime: str) -> list[ScriptedEngine]:
    wires: Sequence[Wire] = [VLLMWire(index=index) if runtime == "vllm" else TOKENSPEED for index in range(RANKS)]
    engines = [await dial(index, wire=wire) for index, wire in enumerate(wires)]
    await ready(client, RANKS)
    return engines


async def told(client: EngineClient, engine: ScriptedEngine, message: bytes) -> None:
    """The engine has told of its load, and the gateway has heard it."""
    before = client.engines[engine.index].load
    await engine.output.send(message)
    await eventually(lambda: client.engines[engine.index].load is not before)


async def place(client: EngineClient, tokenizer: Tokenizer, count: int, name: str = "r") -> dict[int, int]:
    """Send so many requests at once; how many came to each engine."""
    before = collections.Counter({engine.index: engine.in_flight for engine in client.engines})
    for number in range(count):
        await ask(client, tokenizer, f"{name}-{number}")
    after = collections.Counter({engine.index: engine.in_flight for engine in client.engines})
    return dict(after - before)


async def test_a_burst_within_one_report_spreads(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    for engine in engines:
        await told(client, engine, tell(engine.index, engine.index, 0, 0))
    # Nothing is heard of the engines between these: the least loaded is so for a moment only.
    assert await place(client, tokenizer, 42) == {0: 12, 1: 11, 2: 10, 3: 9}


async def test_what_others_have_sent_counts(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    await told(client, engines[0], tell(0, 5, 4, 10))
    for engine in engines[1:]:
        await told(client, engine, tell(engine.index, 1, 0, 10))
    # Until the others have as much to do as the first; then it takes its share.
    assert await place(client, tokenizer, 24, "a") == {1: 8, 2: 8, 3: 8}
    assert await place(client, tokenizer, 8, "b") == dict.fromkeys(range(RANKS), 2)


async def test_what_ends_after_a_report_does_not_count(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    response = await ask(client, tokenizer, *map(str, range(8)), rank=2)
    await told(client, engines[2], tell(2, 8, 0, 0))
    client.cancel(response.key)
    # The engine has not been heard since.
    assert await place(client, tokenizer, 4) == dict.fromkeys(range(RANKS), 1)


async def test_a_full_cache_keeps_requests_away(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    for index, pages in enumerate([90, 0, 0, 50]):
        await told(client, engines[index], tell(index, 1, 0, pages))
    # One more request would be the second: 2 / (1 - 0.9) is 20, and 2 / (1 - 0.5) is 4.
    assert await place(client, tokenizer, 5) == {1: 2, 2: 2, 3: 1}


async def test_the_account_of_an_idle_engine_is_forgotten(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    """Some count what ends with a tick in that tick, and say no more when nothing is left."""
    await told(client, engines[0], tell(0, 64, 0, 80))
    assert await place(client, tokenizer, 3, "a") == {1: 1, 2: 1, 3: 1}
    await eventually(lambda: client.engines[0].pressure == 1)
    assert await place(client, tokenizer, 1, "b") == {0: 1}


@pytest.mark.parametrize("load", [(), (1,)], ids=["tagged", "with its rank"])
async def test_engines_that_tell_nothing_of_their_load_are_compared_by_what_they_were_sent(
    start: Start, dial: Dial, tokenizer: Tokenizer, load: tuple[int, ...]
) -> None:
    client = await start(engine_count=2)
    engines = [await dial(index) for index in range(2)]
    await ready(client, 2)
    first = await ask(client, tokenizer, "a", "b", "c", rank=0)
    await engines[0].output.send(tick([Row("a", [1], "length")], load))
    await eventually(lambda: client.engines[0].in_flight == 2)
    assert [engine.load for engine in client.engines] == [None, None]
    assert await place(client, tokenizer, 2, "d") == {1: 2}
    client.cancel(first.key)


async def test_a_load_without_a_snapshot_of_the_cache_is_none(start: Start, dial: Dial, tokenizer: Tokenizer) -> None:
    client = await start()
    engine = await dial()
    await client.wait_ready(5)
    response = await ask(client, tokenizer, "a")
    await engine.output.send(tick([Row("a", [1], "length")], [0, 7, 7, 0, 0]))
    await response.outputs()
    assert client.engines[0].load is None


async def test_the_only_engine_may_call_itself_what_it_likes(start: Start, dial: Dial, tokenizer: Tokenizer) -> None:
    client = await start(family("vllm"))
    engine = await dial(wire=VLLMWire(index=3))
    await client.wait_ready(5)
    await told(client, engine, tell_vllm(3, 2, 1, 25))
    load = client.engines[0].load
    assert load is not None
    assert (load.running, load.waiting, load.kv_usage) == (2, 1, 0.25)


async def test_an_engine_that_is_none_of_the_group_is_told_of_once(
    client: EngineClient,
    engines: list[ScriptedEngine],
    tokenizer: Tokenizer,
    tell: Tell,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        await engines[0].output.send(tell(RANKS, 9, 9, 90))
    await told(client, engines[0], tell(0, 0, 0, 0))
    assert caplog.text.count("engine 4, which this worker does not have, tells of its load") == 1
    assert await place(client, tokenizer, RANKS) == dict.fromkeys(range(RANKS), 1)


async def test_a_restarted_engine_begins_without_a_load(
    client: EngineClient, engines: list[ScriptedEngine], dial: Dial, tell: Tell
) -> None:
    await told(client, engines[1], tell(1, 50, 50, 99))
    assert client.engines[1].pressure > 100
    engines[1].close()
    await ready(client, RANKS - 1)
    await dial(1, wire=engines[1].wire)
    await ready(client, RANKS)
    assert (client.engines[1].load, client.engines[1].pressure) == (None, 1.0)


async def test_the_pressure_of_a_worker_is_that_of_its_least_loaded_ready_engine(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    for engine in engines:
        await told(client, engine, tell(engine.index, 9 - engine.index, 0, 0))
    assert client.pressure == 7
    engines[3].close()
    await ready(client, RANKS - 1)
    assert client.pressure == 8
    for engine in engines[:3]:
        engine.close()
    await ready(client, 0)
    assert client.pressure == math.inf


async def test_what_an_operator_sees_of_the_engines(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer, tell: Tell
) -> None:
    await ask(client, tokenizer, "a", "b", rank=1)
    await told(client, engines[1], tell(1, 2, 1, 20))
    engines[3].close()
    await ready(client, RANKS - 1)
    first, second, _, last = client.engine_statuses
    assert (first.state, first.reason, first.load, first.pressure) == ("ready", "engine 0 is ready", None, 1.0)
    assert (second.in_flight, second.pressure) == (2, (2 + 1 + 1) / (1 - 0.2))
    assert second.load is not None
    assert (second.load.running, second.load.waiting, second.load.kv_usage) == (2, 1, 0.2)
    assert 0 <= second.load.age < 10
    assert (last.state, last.reason) == ("lost", "engine 3 has disconnected")
    assert last.since >= first.since


@pytest.mark.parametrize("usage", [-1.0, 0.0, 1.0, 7.5, math.nan])
def test_no_account_makes_a_pressure_that_cannot_be_compared(usage: float) -> None:
    load = EngineLoad(running=1, waiting=0, kv_usage=usage, in_flight=5, heard=math.inf)
    assert 6 <= pressure(5, load) <= 600


async def test_draining_takes_no_more_and_lets_what_is_in_flight_end(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer
) -> None:
    responses = [await ask(client, tokenizer, rid, rank=0) for rid in "ab"]
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0)
    assert (client.state, client.ready, client.accepting, client.pressure) == ("draining", False, False, math.inf)
    with pytest.raises(EngineUnavailable, match="takes no more requests"):
        await ask(client, tokenizer, "c")
    # An engine that comes meanwhile changes nothing.
    engines[1].close()
    await eventually(lambda: not client.engines[1].connected)
    assert not client.ready
    await engines[0].send(Row("a", [1], "length"))
    await responses[0].outputs()
    assert not draining.done()
    await engines[0].send(Row("b", [1], "length"))
    await responses[1].outputs()
    await asyncio.wait_for(draining, 5)
    await client.drain()


async def test_draining_ends_with_the_client(
    client: EngineClient, engines: list[ScriptedEngine], tokenizer: Tokenizer
) -> None:
    response = await ask(client, tokenizer, "a")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.drain(), 0.05)
    assert client.in_flight == 1
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineUnavailable, match="closes"):
        await response.outputs()
    await asyncio.wait_for(draining, 5)
