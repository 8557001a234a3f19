"""Engines that step together or not at all: whoever gets a request to a paused group wakes the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgpack
import pytest

from smg_fast._codec import Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, EngineUnavailable, WorkerAddresses

from .engine import ABORT, ADD, START_DP_WAVE, Row, ScriptedEngine, VLLMWire
from .response import Response, ask, eventually, fill, nothing_for, ready

Start = Callable[..., Awaitable[EngineClient]]
Dial = Callable[..., Awaitable[ScriptedEngine]]

RANKS = 3
CURRENT_WAVE = 12  # the position in a request of vLLM 0.32


class Rank(ScriptedEngine):
    """One engine of a group that steps together; see vLLM's ``DPEngineCoreProc``, without a coordinator."""

    def __init__(self, handshake: str, index: int) -> None:
        super().__init__(handshake, index, wire=VLLMWire(ranks=RANKS, index=index))
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


@pytest.fixture
async def ranks(client: EngineClient, addresses: WorkerAddresses) -> AsyncIterator[list[Rank]]:
    """The group, registered; each is closed at the end."""
    ranks = [Rank(addresses.handshake, index) for index in range(RANKS)]
    for rank in ranks:
        await rank.hello()
        await rank.register()
    await ready(client, RANKS)
    yield ranks
    for rank in ranks:
        rank.close()


async def woken(engine: ScriptedEngine) -> list[int]:
    """The wave it shall begin, and the engine that has."""
    kind, payload = await engine.input.recv_multipart()
    assert kind == START_DP_WAVE
    fields: list[int] = msgpack.unpackb(payload)
    return fields


async def stamp(engine: ScriptedEngine) -> int:
    """The wave that its next request was sent in."""
    kind, payload = await engine.input.recv_multipart()
    assert kind == ADD
    wave: int = msgpack.unpackb(payload)[CURRENT_WAVE]
    return wave


async def heard(client: EngineClient, tokenizer: Tokenizer, *engines: ScriptedEngine) -> None:
    """The client has read all that they said: they end what only its dispatcher knows of."""
    for engine in engines:
        last, rid = Response(), f"the last of {engine.index}"
        client._dispatcher.open(
            last, ResponseFormat.outputs(), tokenizer, TextOptions(), [rid], [Prompt(TokenIds([1]))]
        )
        await engine.send(Row(rid, [1], "length"))
        await last.outputs()


async def complete(client: EngineClient, tokenizer: Tokenizer, *ranks: Rank, wave: int) -> None:
    for rank in ranks:
        rank.wave = wave
        await rank.pause()
    await heard(client, tokenizer, *ranks)


async def test_a_request_to_a_paused_group_wakes_the_others(
    client: EngineClient, ranks: list[Rank], tokenizer: Tokenizer
) -> None:
    first, second, third = ranks
    for wave in (0, 1):
        responses = [await ask(client, tokenizer, f"{wave}a", rank=1)]
        assert await stamp(second) == wave
        assert await woken(first) == await woken(second) == await woken(third) == [wave, None]
        responses.append(await ask(client, tokenizer, f"{wave}b", rank=1))
        assert await stamp(second) == wave
        responses.append(await ask(client, tokenizer, f"{wave}c", rank=0))
        assert await stamp(first) == wave
        await nothing_for(client, *ranks)  # the group runs already
        await second.send(*(Row(f"{wave}{rid}", [1], "length") for rid in "ab"))
        await first.send(Row(f"{wave}c", [1], "length"))
        for response in responses:
            await response.outputs()
        await complete(client, tokenizer, *ranks, wave=wave)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_request_that_was_on_its_way_when_the_wave_ended_does_not_stand_alone(
    client: EngineClient, ranks: list[Rank], tokenizer: Tokenizer, cancelled: bool
) -> None:
    response = await ask(client, tokenizer, "a", rank=0)
    assert await woken(ranks[1]) == await woken(ranks[2]) == [0, None]
    late = await ask(client, tokenizer, "b", rank=2)
    await ranks[0].send(Row("a", [1], "length"))
    await response.outputs()
    if cancelled:
        client.cancel(late.key)
    # As if the third had not seen its request yet.
    await complete(client, tokenizer, ranks[0], wave=0)
    await nothing_for(client, ranks[1])
    await complete(client, tokenizer, ranks[2], ranks[1], wave=0)
    assert await woken(ranks[1]) == [1, None]
    if not cancelled:
        await ranks[2].send(Row("b", [1], "length"))
        await late.outputs()
    await complete(client, tokenizer, *ranks, wave=1)
    await nothing_for(client, ranks[1])


async def test_an_engine_that_starts_a_wave_has_the_others_follow(ranks: list[Rank]) -> None:
    wire = ranks[1].wire
    assert isinstance(wire, VLLMWire)
    await ranks[1].output.send(wire.wave(start=4))
    assert await woken(ranks[0]) == await woken(ranks[2]) == [4, None]


async def test_an_engine_that_joins_a_running_group_is_woken(
    client: EngineClient, ranks: list[Rank], addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    ranks[2].close()
    await ready(client, 2)
    response = await ask(client, tokenizer, "a", rank=0)
    assert await woken(ranks[1]) == [0, None]
    wire = ranks[2].wire
    async with await ScriptedEngine.dial(addresses.handshake, 2, wire=wire) as newcomer:
        assert await woken(newcomer) == [0, None]
        await nothing_for(client, newcomer, ranks[1])
        await ranks[0].send(Row("a", [1], "length"))
        await response.outputs()
        await complete(client, tokenizer, *ranks[:2], wave=0)
        ranks[1].close()
        await ready(client, 2)
        # Nobody has anything to do.
        async with await ScriptedEngine.dial(addresses.handshake, 1, wire=wire) as idle:
            await ready(client, 3)
            await nothing_for(client, idle)


async def test_a_wave_that_waits_for_room_ends_with_its_engine(
    start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    client = await start(family("vllm"), engine_count=2, send_timeout=0.05)
    wire = VLLMWire(ranks=2)
    async with (
        await ScriptedEngine.dial(addresses.handshake, 0, wire=wire) as first,
        await ScriptedEngine.dial(addresses.handshake, 1, wire=wire, receive_limit=1) as full,
    ):
        await ready(client, 2)
        responses = await fill(client, tokenizer, rank=1)
        assert await woken(first) == [0, None]
        await first.output.send(wire.wave(start=1))
        assert await woken(first) == [1, None]  # and the other would have been, were there room
        full.close()
        for response in responses:
            with pytest.raises(EngineUnavailable):
                await response.outputs()
        async with await ScriptedEngine.dial(addresses.handshake, 1, wire=wire) as successor:
            await ready(client, 2)
            await first.send(Row("nobody's", [1]))
            assert await successor.abort() == ["nobody's"]
            await nothing_for(client, successor)


async def test_one_engine_is_no_group(start: Start, addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    client = await start(family("vllm", vllm_version="0.20.2"))
    wire = VLLMWire(None, ranks=RANKS)
    async with await ScriptedEngine.dial(addresses.handshake, wire=wire) as engine:
        await client.wait_ready(5)
        response = await ask(client, tokenizer, "a")
        assert (await engine.request()).rid == "a"
        await engine.send(Row("a", [1], "length"))
        await response.outputs()
        await nothing_for(client, engine)


async def test_ranks_that_are_on_their_own_are_left_alone(
    client: EngineClient, dial: Dial, tokenizer: Tokenizer
) -> None:
    engines = [await dial(index, wire=VLLMWire()) for index in range(RANKS)]
    await ready(client, RANKS)
    response = await ask(client, tokenizer, "a", rank=0)
    assert (await engines[0].request()).rid == "a"
    await engines[0].send(Row("a", [1], "length"))
    await response.outputs()
    await nothing_for(client, *engines)


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_waits_for_an_engine_that_sleeps(
    client: EngineClient, ranks: list[Rank], tokenizer: Tokenizer, seed: int
) -> None:
    """A group that steps only when all of its engines are active, whatever arrives when: all is answered."""
    chance = random.Random(seed)
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
