"""Requests reach engines, output reaches sinks, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgpack
import pytest
import zmq

from smg_fast._codec import Connection, Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast.engines import GenerationRequest, SamplingParams, family
from smg_fast.transport import EngineBusy, EngineClient, EngineFailed, EngineUnavailable, WorkerAddresses

from .engine import ADD, TOKENSPEED, Row, ScriptedEngine, VLLMWire, Wire
from .response import Response, ask, eventually, fill, nothing_for, ready

Start = Callable[..., Awaitable[EngineClient]]


@pytest.fixture(params=[TOKENSPEED, VLLMWire()], ids=["tokenspeed", "vllm"])
def wire(request: pytest.FixtureRequest) -> Wire:
    chosen: Wire = request.param
    return chosen


@pytest.fixture
async def client(start: Start, wire: Wire) -> EngineClient:
    return await start(family(wire.family))


@pytest.fixture
async def engine(client: EngineClient, addresses: WorkerAddresses, wire: Wire) -> AsyncIterator[ScriptedEngine]:
    async with await ScriptedEngine.dial(addresses.handshake, wire=wire) as engine:
        await client.wait_ready(5)
        yield engine


async def test_a_generation_from_request_to_output(
    client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    response = await ask(client, tokenizer, "a", max_tokens=3)
    assert await engine.request() == ("a", [1, 2, 3], 3)
    assert client.in_flight == 1
    ids = tokenizer.encode("one two").tolist()
    for id in ids[:-1]:
        await engine.send(Row("a", [id]))
    await engine.send(Row("a", ids[-1:], "stop"))
    [output] = await response.outputs()
    assert (output.text, output.token_ids.tolist(), output.finish_reason) == ("one two", ids, "stop")
    assert client.in_flight == 0
    assert client.engines[0].in_flight == 0


async def test_a_request_id_in_flight_is_refused_and_the_first_goes_on(
    client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    response = await ask(client, tokenizer, "a")
    with pytest.raises(ValueError, match="in flight"):
        await ask(client, tokenizer, "a")
    assert client.in_flight == 1
    await engine.send(Row("a", [1], "length"))
    await response.outputs()


async def test_cancel_reaches_the_engine(client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    response = await ask(client, tokenizer, "a-0", "a-1")
    await engine.request()
    await engine.request()
    client.cancel(response.key)
    assert sorted(await engine.abort()) == ["a-0", "a-1"]
    assert client.in_flight == 0
    client.cancel(response.key)
    other = await ask(client, tokenizer, "b")
    assert (await engine.request()).rid == "b"  # and no second abort
    client.cancel(other.key)


async def test_a_stop_string_stops_the_engine(
    client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    response = await ask(client, tokenizer, "a", stop=["two"])
    await engine.request()
    await engine.send(Row("a", tokenizer.encode("one two three").tolist()))
    [output] = await response.outputs()
    assert output.text == "one "
    assert await engine.abort() == ["a"]
    assert client.in_flight == 0


async def test_a_generation_nobody_knows_is_stopped(client: EngineClient, engine: ScriptedEngine) -> None:
    await engine.send(Row("of an earlier gateway", [1]))
    assert await engine.abort() == ["of an earlier gateway"]


async def test_a_generation_nobody_knows_is_stopped_on_an_engine_that_comes_later(
    start: Start, addresses: WorkerAddresses
) -> None:
    """Its output may be there before it can be told anything."""
    client = await start(engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0) as first,
        ScriptedEngine(addresses.handshake, 1) as late,
    ):
        await ready(client, 1)
        await late.hello()
        await late.send(Row("of an earlier gateway", [1]))
        assert await first.abort() == ["of an earlier gateway"]
        await late.register()
        assert await late.abort() == ["of an earlier gateway"]
        late.close()
        await ready(client, 1)
        async with await ScriptedEngine.dial(addresses.handshake, 1) as successor:
            await ready(client, 2)
            await nothing_for(client, successor)


async def test_generations_go_to_the_engine_with_the_least_to_do(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0) as first,
        await ScriptedEngine.dial(addresses.handshake, 1) as second,
    ):
        await ready(client, 2)
        pair = await ask(client, tokenizer, "a-0", "a-1")
        on_first, on_second = (await first.request()).rid, (await second.request()).rid
        assert sorted([on_first, on_second]) == ["a-0", "a-1"]
        await first.send(Row(on_first, [1], "length"))
        await eventually(lambda: client.in_flight == 1)
        await ask(client, tokenizer, "b")
        assert (await first.request()).rid == "b"
        client.cancel(pair.key)
        assert await second.abort() == [on_second]
        await ask(client, tokenizer, "c")
        assert (await second.request()).rid == "c"


async def test_a_generation_goes_to_the_rank_it_names(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=3)
    assert client.engine_count == 3
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0),
        await ScriptedEngine.dial(addresses.handshake, 2) as named,
    ):
        await ready(client, 2)
        for rid in "abc":
            await ask(client, tokenizer, rid, rank=2)
            assert (await named.request()).rid == rid
        with pytest.raises(EngineUnavailable, match=r"^engine 1 has not said hello$"):
            await ask(client, tokenizer, "d", rank=1)
        with pytest.raises(ValueError, match="there is no engine 3, only 0 to 2"):
            await ask(client, tokenizer, "e", rank=3)
        assert client.in_flight == 3


async def test_equals_take_turns(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start(engine_count=3)
    engines = [await ScriptedEngine.dial(addresses.handshake, index) for index in range(3)]
    await ready(client, 3)
    served = []
    for number in range(6):
        response = await ask(client, tokenizer, str(number))
        served.append(next(engine.index for engine in client.engines if engine.in_flight))
        client.cancel(response.key)
    assert served[:3] == served[3:]
    assert sorted(served[:3]) == [0, 1, 2]
    for engine in engines:
        engine.close()


async def test_a_burst_leaves_the_loop_its_turns(
    client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    count = 10_000
    response = await ask(client, tokenizer, "a", max_tokens=count)
    await engine.request()
    sender: zmq.Socket[bytes] = zmq.Socket.shadow(engine.output)  # sends without a turn of the loop
    for index in range(count):
        sender.send(engine.wire.tick([Row("a", [1], "length" if index == count - 1 else "")]))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    [output] = await response.outputs()
    other.cancel()
    assert len(output.token_ids) == count
    assert turns >= count // 64


async def test_a_registration_is_read_though_a_send_has_taken_in_its_news(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0),
        ScriptedEngine(addresses.handshake, 1) as late,
    ):
        await ready(client, 1)
        await late.hello()
        await late.register()
        for rid in "abc":
            time.sleep(0.05)  # noqa: ASYNC251 - it arrives bit by bit, and the loop has no turn to see it
            await ask(client, tokenizer, rid)
        await ready(client, 2)


async def test_sending_is_bounded(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start(send_timeout=0.05)
    async with await ScriptedEngine.dial(addresses.handshake, receive_limit=1) as engine:
        await client.wait_ready(5)
        responses = await fill(client, tokenizer)
        assert client.in_flight == len(responses)
        # Aborts that find no room wait for it.
        for response in responses:
            client.cancel(response.key)
        assert client.in_flight == 0
        for _ in responses:
            assert (await engine.request()).rid.startswith("fill-")
        aborted: list[str] = []
        while len(aborted) < len(responses):
            aborted += await asyncio.wait_for(engine.abort(), 5)
        assert sorted(aborted) == sorted(f"fill-{index}" for index in range(len(responses)))


async def test_aborts_that_wait_for_room_outlive_the_loss_of_an_engine_that_is_still_connected(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(send_timeout=0.05)
    async with await ScriptedEngine.dial(addresses.handshake, receive_limit=1) as engine:
        await client.wait_ready(5)
        responses = await fill(client, tokenizer)
        for _ in range(3):
            await engine.output.send(b"\x93\x01")
        for response in responses:
            with pytest.raises(EngineFailed):
                await response.outputs()
        await eventually(lambda: "3 messages in a row that cannot be read" in client.reason)
        for _ in responses:
            await engine.request()
        assert sorted(await engine.abort()) == sorted(f"fill-{index}" for index in range(len(responses)))


async def test_a_request_cancelled_while_it_waits_leaves_nothing(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(send_timeout=0.1, engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0) as quick,
        await ScriptedEngine.dial(addresses.handshake, 1, receive_limit=1),
    ):
        await ready(client, 2)
        running: set[str] = set()  # on the quick engine

        async def work() -> None:
            while True:
                type_byte, payload = await quick.input.recv_multipart()
                fields = msgpack.unpackb(payload)
                if type_byte == ADD:
                    running.add(fields[1])
                else:
                    running.difference_update(fields)

        working = asyncio.create_task(work())

        def siblings_run() -> bool:
            return any(rid.startswith("w-") for rid in running)

        filled = await fill(client, tokenizer)
        await eventually(lambda: len(running) == client.engines[0].in_flight)
        # The first sibling goes to the quick engine, which has one less to do; the second has to wait for the other.
        for rid in sorted(running):
            if client.engines[0].in_flight >= client.engines[1].in_flight:
                client.cancel(filled[int(rid.removeprefix("fill-"))].key)
        before = client.in_flight
        waiting = asyncio.create_task(ask(client, tokenizer, "w-0", "w-1", "w-2", "w-3"))
        await eventually(siblings_run)
        assert client.in_flight == before + 4
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert client.in_flight == before
        await eventually(lambda: not siblings_run())
        working.cancel()


async def test_an_engine_that_cannot_be_reached_is_lost(
    client: EngineClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.input.close()
    # No turn of the loop in which the monitor could be read: the router is the first to know.
    responses: list[Response] = []

    async def ask_on() -> None:
        while True:
            responses.append(await ask(client, tokenizer, str(len(responses))))

    with pytest.raises(EngineUnavailable, match="engine 0 cannot be reached"):
        await ask_on()
    assert client.in_flight == 0
    assert client.state == "unhealthy"
    for response in responses:
        with pytest.raises(EngineUnavailable, match="engine 0 cannot be reached"):
            await response.outputs()


def test_uvloop_serves_engines_too(addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def serve(engine: subprocess.Popen[bytes]) -> None:
        client = EngineClient(family("tokenspeed"), addresses)
        await client.start()
        await client.wait_ready(10)
        responses = [await ask(client, tokenizer, str(number), max_tokens=50) for number in range(200)]
        for response in responses:
            [output] = await response.outputs()
            assert len(output.token_ids) == 50
        response = await ask(client, tokenizer, "last", max_tokens=1000)
        engine.kill()
        with pytest.raises(EngineUnavailable, match="engine 0 has disconnected"):
            await response.outputs()
        await client.close()

    program = Path(__file__).with_name("engine.py")
    with subprocess.Popen([sys.executable, str(program), addresses.handshake, "0"]) as engine:
        try:
            with contextlib.closing(uvloop.new_event_loop()) as loop:
                loop.run_until_complete(serve(engine))
        finally:
            engine.kill()


async def test_not_a_byte_of_a_response_goes_out_before_all_of_it_is_sent(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2, send_timeout=0.2)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    async with (
        await ScriptedEngine.dial(addresses.handshake) as quick,
        await ScriptedEngine.dial(addresses.handshake, 1, receive_limit=1) as full,
    ):
        await ready(client, 2)
        await fill(client, tokenizer, rank=1)
        with ours, theirs:
            sink = Response()

            async def generate() -> int:
                return await client.generate(
                    sink,
                    format=ResponseFormat.chat(id="c", model="m", created=0, stream=True),
                    options=TextOptions(),
                    tokenizer=tokenizer,
                    prompts=[Prompt(TokenIds([1]))],
                    requests=[
                        GenerationRequest(
                            rid=f"c-{rank}",
                            prompt_ids=TokenIds([1]),
                            sampling=SamplingParams(max_tokens=4),
                            data_parallel_rank=rank,
                        )
                        for rank in (0, 1)
                    ],
                    connection=Connection(b"head", fd=ours.fileno(), chunked=True),
                )

            waiting = asyncio.create_task(generate())
            request = await quick.request()
            await quick.send(Row(request.rid, tokenizer.encode("hello").tolist()))
            with pytest.raises(EngineBusy):
                await waiting
            assert await quick.abort() == ["c-0"]
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            assert (sink.chunks, full.index) == ([], 1)
