"""Engines that step together or not at all: whoever gets a request to a paused group wakes the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest
import zmq

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, WorkerAddresses

from .engine import ABORT, ADD, START_DP_WAVE, Row, ScriptedEngine, VLLMWire
from .response import ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]

RANKS = 3
CURRENT_WAVE = 12  # the position in a request of vLLM 0.32


class Rank(ScriptedEngine):
    """One engine of a group that steps together; see vLLM's ``DPEngineCoreProc``, without a coordinator."""

    def __init__(self, handshake: str, index: int) -> None:
        super().__init__(handshake, index, wire=VLLMWire(ranks=RANKS, index=index))
        self.index = index
        self.wave = 0
        self.running = False
        #: Tokens that each of its requests still wants.
        self.wanted: dict[str, int] = {}
        self.stamps: list[int] = []

    async def take(self, chance: random.Random) -> None:
        """Read some of what has come; for the rest it is as if it were on its way."""
        while chance.random() < 0.7 and await self.input.poll(0):
            kind, payload = await self.input.recv_multipart()
            fields: list[Any] = msgpack.unpackb(payload)
            if kind == ADD:
                add = self.wire.add(fields)
                self.wanted[add.rid] = add.max_new_tokens
                self.stamps.append(fields[CURRENT_WAVE])
            elif kind == ABORT:
                for rid in fields:
                    self.wanted.pop(rid, None)
            elif kind == START_DP_WAVE:
                wave, started = fields
                if started != self.index and wave >= self.wave:
                    self.wave, self.running = wave, True
        if self.wanted:
            self.running = True  # it begins its step, and there is no way back

    async def step(self) -> None:
        rows = []
        for rid in list(self.wanted):
            self.wanted[rid] -= 1
            rows.append(Row(rid, [1], "" if self.wanted[rid] else "length"))
            if not self.wanted[rid]:
                del self.wanted[rid]
        if rows:
            await self.send(*rows)

    async def pause(self) -> None:
        assert isinstance(self.wire, VLLMWire)
        await self.output.send(self.wire.wave(complete=self.wave))
        self.wave, self.running = self.wave + 1, False


@pytest.fixture
async def client(start: Start) -> EngineClient:
    return await start(family("vllm"), engine_count=RANKS)


async def register(handshake: str) -> list[Rank]:
    ranks = [Rank(handshake, index) for index in range(RANKS)]
    for rank in ranks:
        await rank.hello()
        await rank.register()
    return ranks


async def woken(engine: ScriptedEngine) -> list[int]:
    """The wave it shall begin, and the engine that has."""
    kind, payload = await engine.input.recv_multipart()
    assert kind == START_DP_WAVE
    fields: list[int] = msgpack.unpackb(payload)
    return fields


async def nothing_for(*engines: ScriptedEngine) -> None:
    for engine in engines:
        with pytest.raises(zmq.Again):
            await engine.input.recv_multipart(zmq.NOBLOCK)


async def stamp(engine: ScriptedEngine) -> int:
    """The wave that its next request was sent in."""
    kind, payload = await engine.input.recv_multipart()
    assert kind == ADD
    wave: int = msgpack.unpackb(payload)[CURRENT_WAVE]
    return wave


async def complete(client: EngineClient, *ranks: Rank, wave: int) -> None:
    for rank in ranks:
        rank.wave = wave
        await rank.pause()
    await eventually(lambda: client._waves.current == wave + 1)


async def test_a_request_to_a_paused_group_wakes_the_others(
    client: EngineClient, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    ranks = await register(addresses.handshake)
    await ready(client, RANKS)
    first, second, third = ranks
    for wave in (0, 1):
        responses = [await ask(client, tokenizer, f"{wave}a", rank=1)]
        assert await stamp(second) == wave
        assert await woken(first) == await woken(second) == await woken(third) == [wave, None]
        responses.append(await ask(client, tokenizer, f"{wave}b", rank=1))
        assert await stamp(second) == wave
        responses.append(await ask(client, tokenizer, f"{wave}c", rank=0))
        assert await stamp(first) == wave
        await nothing_for(*ranks)  # the group runs already
        await second.send(*(Row(f"{wave}{rid}", [1], "length") for rid in "ab"))
        await first.send(Row(f"{wave}c", [1], "length"))
        for response in responses:
            await response.outputs()
        await complete(client, *ranks, wave=wave)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_request_that_was_on_its_way_when_the_wave_ended_does_not_stand_alone(
    client: EngineClient, addresses: WorkerAddresses, tokenizer: Tokenizer, cancelled: bool
) -> None:
    ranks = await register(addresses.handshake)
    await ready(client, RANKS)
    response = await ask(client, tokenizer, "a", rank=0)
    assert await woken(ranks[1]) == await woken(ranks[2]) == [0, None]
    late = await ask(client, tokenizer, "b", rank=2)
    await ranks[0].send(Row("a", [1], "length"))
    await response.outputs()
    if cancelled:
        client.cancel(late.key)
    # As if the third had not seen its request yet.
    await complete(client, ranks[0], wave=0)
    await nothing_for(ranks[1])
    await complete(client, ranks[2], ranks[1], wave=0)
    assert await woken(ranks[1]) == [1, None]
    if not cancelled:
        await ranks[2].send(Row("b", [1], "length"))
        await late.outputs()
    await complete(client, *ranks, wave=1)
    await nothing_for(ranks[1])
    for rank in ranks:
        rank.close()


async def test_an_engine_that_starts_a_wave_has_the_others_follow(
    client: EngineClient, addresses: WorkerAddresses
) -> None:
    ranks = await register(addresses.handshake)
    await ready(client, RANKS)
    wire = ranks[1].wire
    assert isinstance(wire, VLLMWire)
    await ranks[1].output.send(wire.wave(start=4))
    assert await woken(ranks[0]) == await woken(ranks[2]) == [4, None]
    for rank in ranks:
        rank.close()


async def test_one_engine_is_no_group(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start(family("vllm", vllm_version="0.20.2"))
    wire = VLLMWire(None, ranks=RANKS)
    async with await ScriptedEngine.dial(addresses.handshake, wire=wire) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        assert (await engine.request()).rid == "a"
        await engine.send(Row("a", [1], "length"))
        await response.outputs()
        await nothing_for(engine)


async def test_ranks_that_are_on_their_own_are_left_alone(
    client: EngineClient, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    engines = [await ScriptedEngine.dial(addresses.handshake, index, wire=VLLMWire()) for index in range(RANKS)]
    await ready(client, RANKS)
    response = await ask(client, tokenizer, "a", rank=0)
    assert (await engines[0].request()).rid == "a"
    await engines[0].send(Row("a", [1], "length"))
    await response.outputs()
    await nothing_for(*engines)
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_waits_for_an_engine_that_sleeps(
    client: EngineClient, addresses: WorkerAddresses, tokenizer: Tokenizer, seed: int
) -> None:
    """A group that steps only when all of its engines are active, whatever arrives when: all is answered."""
    chance = random.Random(seed)
    ranks = await register(addresses.handshake)
    await ready(client, RANKS)
    waves = 0

    async def run() -> None:
        nonlocal waves
        while True:
            for rank in ranks:
                await rank.take(chance)
            if all(rank.running for rank in ranks):
                for rank in ranks:
                    await rank.step()
                unfinished = any(rank.wanted for rank in ranks)
                for rank in ranks:
                    rank.running = True
                    if not unfinished:
                        await rank.pause()
                waves += not unfinished
            await asyncio.sleep(0)

    running = asyncio.create_task(run())
    for burst in range(40):
        responses = [
            await ask(client, tokenizer, f"{burst}-{number}", max_tokens=chance.randint(1, 4))
            for number in range(chance.randint(1, 5))
        ]
        if chance.random() < 0.5:
            client.cancel(responses.pop().key)
        await asyncio.gather(*(response.outputs() for response in responses[: chance.randint(0, len(responses))]))
    await eventually(lambda: client.in_flight == 0)
    await eventually(lambda: not any(rank.running for rank in ranks))
    running.cancel()
    assert waves > 5
    assert max(stamp for rank in ranks for stamp in rank.stamps) > 3
    for rank in ranks:
        rank.close()
