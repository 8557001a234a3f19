"""What is reserved on an engine is released exactly once, whichever way a generation ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import msgpack
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.transport import EngineBusy, EngineClient, EngineUnavailable

from .engine import ADD, Row, ScriptedEngine
from .response import Response, ask, eventually, ready

Start = Callable[..., Awaitable[EngineClient]]
Dial = Callable[..., Awaitable[ScriptedEngine]]

RANKS = 3
STOP = "two"


class Chaos:
    """Engines and clients that do whatever they may do, in any order.

    The engines are one process, so that what is told of one by what it sends is true of all.
    """

    def __init__(self, seed: int, client: EngineClient, tokenizer: Tokenizer, dial: Dial) -> None:
        self.chance = random.Random(seed)
        self.client = client
        self.tokenizer = tokenizer
        self.stop_ids = tokenizer.encode("one two three").tolist()
        self.dial = dial
        self.engines: dict[int, ScriptedEngine] = {}
        self.readers: dict[int, asyncio.Task[None]] = {}
        #: Request ids that each engine works on.
        self.running: dict[int, dict[str, None]] = {rank: {} for rank in range(RANKS)}
        self.responses: list[Response] = []
        self.asked = 0

    async def step(self) -> None:
        """Something happens, and the client has some turns to hear of it."""
        deeds = [
            *[self.ask] * 6,
            *[self.token] * 3,
            *[self.finish] * 3,
            self.stop_string,
            self.fail,
            self.refuse,
            self.cancel,
            self.cancel_asking,
            self.ask_nonsense,
            self.unreadable,
            self.announce_death,
            self.restart,
        ]
        await self.chance.choice(deeds)()
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        self.check()

    def check(self) -> None:
        """At any moment every generation counts on one engine, and on one only."""
        assert all(engine.in_flight >= 0 for engine in self.client.engines)
        assert sum(engine.in_flight for engine in self.client.engines) == self.client.in_flight

    async def enter(self, rank: int) -> None:
        """An engine registers, and works on what it is told."""
        engine = self.engines[rank] = await self.dial(rank)
        self.running[rank].clear()
        self.readers[rank] = asyncio.create_task(self.read(engine))

    async def read(self, engine: ScriptedEngine) -> None:
        running = self.running[engine.index]
        while True:
            kind, payload = await engine.input.recv_multipart()
            fields = msgpack.unpackb(payload)
            if kind == ADD:
                running[fields[1]] = None
            else:
                for rid in fields:
                    running.pop(rid, None)

    def leave(self, rank: int) -> None:
        self.readers.pop(rank).cancel()
        self.engines.pop(rank).close()

    # --- deeds ---

    async def ask(self) -> None:
        rids = [f"r-{self.asked + number}" for number in range(self.chance.randint(1, 4))]
        self.asked += len(rids)
        rank = self.chance.choice([None, None, *range(RANKS)])
        with contextlib.suppress(EngineUnavailable, EngineBusy):
            stop = [STOP] if self.chance.random() < 0.5 else []
            self.responses.append(await ask(self.client, self.tokenizer, *rids, stop=stop, rank=rank))

    async def say(self, ids: list[int], finish: str = "") -> None:
        working = [rank for rank in self.engines if self.running[rank]]
        if working:
            rank = self.chance.choice(working)
            rid = self.chance.choice(list(self.running[rank]))
            if finish:
                del self.running[rank][rid]
            await self.engines[rank].send(Row(rid, ids, finish))

    async def token(self) -> None:
        await self.say([1])

    async def finish(self) -> None:
        await self.say([1], self.chance.choice(["stop", "length"]))

    async def finish_on(self) -> None:
        while True:
            await self.finish()
            await asyncio.sleep(0)
            self.check()

    async def stop_string(self) -> None:
        await self.say(self.stop_ids, self.chance.choice(["", "length"]))

    async def fail(self) -> None:
        await self.say([1], "error")

    async def refuse(self) -> None:
        await self.say([], "abort")

    async def cancel(self) -> None:
        """The client goes away; perhaps it had its answer already."""
        if self.responses:
            response = self.chance.choice(self.responses)
            self.client.cancel(response.key)
            self.responses.remove(response)

    async def cancel_asking(self) -> None:
        """The client goes away while its request is sent, or just after."""
        asking = asyncio.create_task(self.ask())
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    async def ask_nonsense(self) -> None:
        with pytest.raises((ValueError, EngineUnavailable)):
            await ask(self.client, self.tokenizer, f"r-{self.asked}", rank=RANKS)
        known = [rid for running in self.running.values() for rid in running]
        if known:
            # In flight still, or not any more as far as the client knows.
            with contextlib.suppress(ValueError, EngineUnavailable):
                self.responses.append(await ask(self.client, self.tokenizer, "new", self.chance.choice(known)))

    async def unreadable(self) -> None:
        await self.chance.choice(list(self.engines.values())).output.send(b"\x93\x01")

    async def announce_death(self) -> None:
        await self.chance.choice(list(self.engines.values())).output.send(b"ENGINE_CORE_DEAD")
        for rank in range(RANKS):
            await self.restart_of(rank)

    async def restart(self) -> None:
        await self.restart_of(self.chance.randrange(RANKS))

    async def restart_of(self, rank: int) -> None:
        self.leave(rank)
        if self.chance.random() < 0.5:
            await eventually(lambda: not self.client.engines[rank].connected)
            self.check()
        await self.enter(rank)


@pytest.mark.parametrize("end", ["close", "drain", "deaths"])
@pytest.mark.parametrize("seed", range(4))
async def test_reservations_are_released_exactly_once(
    start: Start, dial: Dial, tokenizer: Tokenizer, seed: int, end: str
) -> None:
    client = await start(engine_count=RANKS)
    chaos = Chaos(seed, client, tokenizer, dial)
    for rank in range(RANKS):
        await chaos.enter(rank)
    await ready(client, RANKS)
    for _ in range(200):
        await chaos.step()

    # No answer that is still open is forgotten either.
    for _ in range(5):
        await chaos.ask()
    if end == "close":
        await client.close()
    elif end == "deaths":
        for rank in range(RANKS):
            chaos.leave(rank)
    else:
        finishing = asyncio.create_task(chaos.finish_on())
        await asyncio.wait_for(client.drain(), 10)
        finishing.cancel()
    for response in chaos.responses:
        await asyncio.wait_for(response.ended.wait(), 10)
    assert client.in_flight == 0
    assert [engine.in_flight for engine in client.engines] == [0] * RANKS
    for reader in chaos.readers.values():
        reader.cancel()
