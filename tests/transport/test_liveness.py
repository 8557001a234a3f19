"""Engines die in every way there is; what they had in flight ends, nothing else does, and they may come back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import zmq

from smg_fast._codec import Tokenizer
from smg_fast.transport import EngineClient, EngineFailed, EngineUnavailable, WorkerAddresses

from .engine import Row, ScriptedEngine, tick
from .response import ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]

PROGRAM = Path(__file__).with_name("engine.py")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def process(addresses: WorkerAddresses, index: int = 0) -> AsyncIterator[asyncio.subprocess.Process]:
    """An engine in a process of its own."""
    program = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), addresses.handshake, str(index))
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


async def test_a_killed_engine_fails_what_it_had_and_the_next_one_serves(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with process(addresses) as first:
        await client.wait_ready(10)
        response = await ask(client, tokenizer, "a", max_tokens=1000, stream=True)
        await response.first_chunk()
        first.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineUnavailable, match="engine 0 has disconnected"):
            await response.outputs()
        assert time.monotonic() - killed < 1
    assert (client.state, client.in_flight) == ("unhealthy", 0)
    with pytest.raises(EngineUnavailable, match="engine 0 has disconnected"):
        await ask(client, tokenizer, "b")
    async with process(addresses):
        await client.wait_ready(10)
        await (await ask(client, tokenizer, "c", max_tokens=5)).outputs()


async def test_the_other_engines_of_a_group_go_on(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with process(addresses, 0) as first, process(addresses, 1):
        await ready(client, 2)
        responses = [await ask(client, tokenizer, rid, max_tokens=1000, stream=True) for rid in "ab"]
        for response in responses:
            await response.first_chunk()
        first.kill()
        await eventually(lambda: client.in_flight == 1)
        failed = [response for response in responses if response.ended.is_set()]
        assert [str(response.error) for response in failed] == ["engine 0 has disconnected"]
        assert client.state == "ready"
        assert [engine.index for engine in client.ready_engines] == [1]
        await (await ask(client, tokenizer, "c", max_tokens=5)).outputs()


async def test_a_sibling_on_another_engine_is_stopped(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with await ScriptedEngine.dial(addresses.handshake, 1) as survivor:
        victim = await ScriptedEngine.dial(addresses.handshake, 0)
        await ready(client, 2)
        response = await ask(client, tokenizer, "a-0", "a-1")
        sibling = await survivor.request()
        victim.close()
        with pytest.raises(EngineUnavailable):
            await response.outputs()
        assert await survivor.abort() == [sibling.rid]
        assert client.in_flight == 0


async def test_a_death_notice(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        await engine.output.send(b"ENGINE_CORE_DEAD")
        with pytest.raises(EngineUnavailable, match="engine 0 has died"):
            await response.outputs()
        assert client.state == "unhealthy"


async def test_a_death_notice_is_its_senders_only(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with process(addresses, 1), await ScriptedEngine.dial(addresses.handshake, 0) as engine:
        await ready(client, 2)
        responses = {engine.index: engine for engine in client.engines}
        asked = [await ask(client, tokenizer, rid, max_tokens=1000, stream=True) for rid in "ab"]
        mine = (await engine.request()).rid
        await engine.output.send(b"ENGINE_CORE_DEAD")
        with pytest.raises(EngineUnavailable, match="engine 0 has died"):
            await asked["ab".index(mine)].outputs()
        assert not responses[0].ready
        assert responses[1].ready
        assert client.in_flight == 1


async def test_a_death_notice_that_may_be_anyones_stops_the_generations_of_all(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0) as first,
        await ScriptedEngine.dial(addresses.handshake, 1) as second,
    ):
        await ready(client, 2)
        responses = [await ask(client, tokenizer, rid) for rid in "ab"]
        on_first, on_second = (await first.request()).rid, (await second.request()).rid
        # A process of the engine's that is not the one which registered.
        script = (
            "import zmq; c = zmq.Context(); s = c.socket(zmq.PUSH);"
            f"s.connect('{addresses.output_endpoint}'); s.send(b'ENGINE_CORE_DEAD'); s.close(); c.term()"
        )
        notifier = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        assert await notifier.wait() == 0
        for response in responses:
            with pytest.raises(EngineUnavailable, match="has died"):
                await response.outputs()
        assert await first.abort() == [on_first]
        assert await second.abort() == [on_second]
        assert client.state == "unhealthy"


async def test_a_death_notice_of_a_process_with_two_engines_is_that_of_both(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(engine_count=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0) as first,
        await ScriptedEngine.dial(addresses.handshake, 1) as second,
    ):
        await ready(client, 2)
        responses = [await ask(client, tokenizer, rid) for rid in "ab"]
        on_first, on_second = (await first.request()).rid, (await second.request()).rid
        await second.output.send(b"ENGINE_CORE_DEAD")
        for response in responses:
            with pytest.raises(EngineUnavailable, match="has died"):
                await response.outputs()
        assert await first.abort() == [on_first]
        assert await second.abort() == [on_second]
        assert client.state == "unhealthy"


async def test_a_strangers_hello_takes_no_healthy_engine_down(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        async with ScriptedEngine(addresses.handshake) as stranger:
            await stranger.hello()
        assert client.state == "ready"
        await engine.send(Row("a", [1], "length"))
        await response.outputs()
        response = await ask(client, tokenizer, "b")
        assert [(await engine.request()).rid, (await engine.request()).rid] == ["a", "b"]
        await engine.send(Row("b", [1], "length"))
        await response.outputs()


async def send_and_close(engine: ScriptedEngine, *messages: bytes) -> None:
    """An engine's last words, all of them delivered, and its end, before the gateway's loop has a turn.

    The pauses are for ZeroMQ's own threads, on both sides: to await anything would give the loop its turn.
    """
    sender: zmq.Socket[bytes] = zmq.Socket.shadow(engine.output)
    for message in messages:
        sender.send(message)
    engine.output.close(linger=5000)
    time.sleep(0.1)  # noqa: ASYNC251
    engine.input.close()
    time.sleep(0.1)  # noqa: ASYNC251


async def test_output_that_was_delivered_before_the_end_of_its_engine_counts(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        complete = await ask(client, tokenizer, "a", max_tokens=200)
        partial = await ask(client, tokenizer, "b", max_tokens=201)
        rows = [tick([Row("a", [1], "length" if index == 199 else ""), Row("b", [1])]) for index in range(200)]
        await send_and_close(engine, *rows)
        [output] = await complete.outputs()
        assert (len(output.token_ids), output.finish_reason) == (200, "length")
        with pytest.raises(EngineUnavailable, match="engine 0 has disconnected"):
            await partial.outputs()
        assert client.state == "unhealthy"


async def test_a_death_notice_after_much_output_is_told_as_one(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a", max_tokens=1000)
        await send_and_close(engine, *[tick([Row("a", [1])])] * 200, b"ENGINE_CORE_DEAD")
        with pytest.raises(EngineUnavailable, match="engine 0 has died"):
            await response.outputs()
        await eventually(lambda: not client.engines[0].reachable)
        assert client.reason == "engine 0 has died"


async def test_an_engine_that_restarts_on_its_identity(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as old:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        assert (await old.request()).rid == "a"
        # The old one's connections still stand: a child process that inherited them keeps them open.
        async with ScriptedEngine(addresses.handshake) as new:
            await new.hello()
            assert client.in_flight == 1  # as yet it may be anyone
            await new.register()
            with pytest.raises(EngineUnavailable, match="engine 0 has restarted"):
                await response.outputs()
            await client.wait_ready(5)
            response = await ask(client, tokenizer, "b")
            assert (await new.request()).rid == "b"
            old.close()
            await new.send(Row("b", [1], "length"))
            await response.outputs()
            assert client.ready


async def test_fast_restarts_leave_the_last_one_ready(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    # Each one gets descriptors that the one before has just given back.
    client = await start()
    for _ in range(20):
        async with await ScriptedEngine.dial(addresses.handshake) as engine:
            await client.wait_ready(5)
            response = await ask(client, tokenizer, "a")
            await engine.request()
        with pytest.raises(EngineUnavailable):
            await response.outputs()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        await engine.request()
        await engine.send(Row("a", [1], "length"))
        await response.outputs()


async def test_a_tick_that_cannot_be_read_fails_what_it_may_have_been_about(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        responses = [await ask(client, tokenizer, rid) for rid in "ab"]
        for _ in responses:
            await engine.request()
        await engine.output.send(b"\x93\x01")
        for response in responses:
            with pytest.raises(EngineFailed, match="cannot be read"):
                await response.outputs()
        assert sorted(await engine.abort()) == ["a", "b"]
        assert client.in_flight == 0
        assert "engine 0 sent a message that cannot be read" in caplog.text
        # Once is no reason to give it up.
        response = await ask(client, tokenizer, "c")
        await engine.request()
        await engine.send(Row("c", [1], "length"))
        await response.outputs()


async def test_what_comes_behind_a_lost_tick_does_not_complete_an_answer_with_a_gap(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        await engine.request()
        await asyncio.gather(
            engine.send(Row("a", [1])), engine.output.send(b"\x93\x01"), engine.send(Row("a", [3], "length"))
        )
        with pytest.raises(EngineFailed, match="cannot be read"):
            await response.outputs()


async def test_three_in_a_row_are_enough(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        for rid in "abc":
            assert client.ready
            response = await ask(client, tokenizer, rid)
            await engine.output.send(b"\x93\x01")
            with pytest.raises(EngineFailed):
                await response.outputs()
        assert client.state == "unhealthy"
        assert "3 messages in a row that cannot be read" in client.reason
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)


async def test_a_silent_engine_fails_what_it_owes(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(silence_timeout=0.2)
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        await asyncio.sleep(0.3)  # owing nothing, it may be as silent as it likes
        assert client.ready
        response = await ask(client, tokenizer, "a")
        await engine.request()
        with pytest.raises(EngineUnavailable, match=r"has said nothing for 0\.2 s"):
            await response.outputs()
        assert await engine.abort() == ["a"]
        assert (client.state, client.accepting) == ("unhealthy", True)
        # One request at a time tries it; its answer makes it ready again.
        trial = await ask(client, tokenizer, "b")
        assert not client.accepting
        with pytest.raises(EngineUnavailable):
            await ask(client, tokenizer, "c")
        await engine.request()
        await engine.send(Row("b", [1], "length"))
        await trial.outputs()
        assert client.ready


async def test_an_engine_that_speaks_is_not_silent(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(silence_timeout=0.5)
    async with await ScriptedEngine.dial(addresses.handshake) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        for _ in range(26):  # 2.6 times as long as it may be silent
            await asyncio.sleep(0.05)
            await engine.send(Row("a", [1]))
        await engine.send(Row("a", [1], "length"))
        await response.outputs()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open descriptors in /proc")
async def test_close_leaves_nothing(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    directory = addresses.input.parent
    loop_tasks = asyncio.all_tasks()
    descriptors = None
    for _ in range(5):
        client = await start()
        async with await ScriptedEngine.dial(addresses.handshake) as engine:
            await client.wait_ready(5)
            response = await ask(client, tokenizer, "a")
            await engine.request()
            await client.close()
            with pytest.raises(EngineUnavailable, match="closes"):
                await response.outputs()
            assert await asyncio.wait_for(engine.abort(), 5) == ["a"]
        assert (client.state, client.in_flight, list(directory.iterdir())) == ("closed", 0, [])
        with pytest.raises(EngineUnavailable, match="closed"):
            await ask(client, tokenizer, "b")
        await client.close()
        # The first round may open descriptors that stay, of the event loop or of libzmq.
        now = open_descriptors()
        assert descriptors is None or now <= descriptors
        descriptors = now
    assert asyncio.all_tasks() == loop_tasks


async def test_a_gateway_that_was_killed_leaves_no_obstacle(start: Start, addresses: WorkerAddresses) -> None:
    script = (
        "import zmq, os, sys; c = zmq.Context(); s = c.socket(zmq.ROUTER); t = c.socket(zmq.PULL);"
        f"s.bind('{addresses.input_endpoint}'); t.bind('{addresses.output_endpoint}'); os._exit(9)"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await killed.wait() == 9
    assert addresses.input.is_socket()
    client = await start()
    async with await ScriptedEngine.dial(addresses.handshake):
        await client.wait_ready(5)
