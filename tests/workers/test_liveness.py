"""Groups of engines and what becomes of them, with engines that are processes: killed, stopped, started again."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgpack
import pytest
import zmq
import zmq.asyncio

from smg_fast._codec import Tokenizer
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import family
from smg_fast.transport import EngineClient, EngineError, EngineFailed, EngineUnavailable, WorkerAddresses
from smg_fast.transport import worker_addresses as addresses_of
from tests.transport.gateway import at_work, earlier_gateway
from tests.transport.response import Response, ask, eventually, ready
from tests.workers.simulators import Simulator, simulators

RANKS = 4
PACE = ("--tick-ms", "5")
#: Tokens of an answer that takes longer than any of these tests.
FOR_LONG = 8000

names = itertools.count()


@pytest.fixture(params=["tokenspeed", "vllm"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))


@pytest.fixture
def directory() -> Iterator[Path]:
    # Shorter than tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@pytest.fixture
def addresses(directory: Path) -> WorkerAddresses:
    return addresses_in(directory, "group")


def addresses_in(directory: Path, name: str) -> WorkerAddresses:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return addresses_of(f"ipc://{directory}/{name}", f"tcp://127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def serving(runtime: str, addresses: WorkerAddresses, count: int) -> AsyncIterator[EngineClient]:
    """The gateway's side of a worker."""
    client = EngineClient(family(runtime), addresses, engine_count=count)
    await client.start()
    try:
        yield client
        # Every generation is counted on exactly one engine, and no longer than it is in flight.
        assert sum(engine.in_flight for engine in client.engines) == client.in_flight
    finally:
        await client.close()
    assert client.in_flight == 0


@contextlib.asynccontextmanager
async def group(runtime: str, addresses: WorkerAddresses) -> AsyncIterator[tuple[EngineClient, list[Simulator]]]:
    """A worker whose engines are all ready."""
    async with (
        serving(runtime, addresses, RANKS) as client,
        simulators(addresses.handshake, RANKS, "--runtime", runtime, *PACE) as engines,
    ):
        await ready(client, RANKS)
        yield client, engines


async def busy(client: EngineClient, tokenizer: Tokenizer, each: int = 2) -> dict[int, list[Response]]:
    """Answers that take long and have begun, on each engine."""
    responses = {
        rank: [
            await ask(client, tokenizer, f"r-{next(names)}", max_tokens=FOR_LONG, stream=True, rank=rank)
            for _ in range(each)
        ]
        for rank in range(client.engine_count)
    }
    for response in every(responses):
        await response.first_chunk()
    return responses


async def answered(client: EngineClient, tokenizer: Tokenizer, rank: int | None = None) -> None:
    response = await ask(client, tokenizer, f"r-{next(names)}", max_tokens=5, rank=rank)
    [output] = await response.outputs()
    assert len(output.token_ids) == 5


async def fail(responses: Sequence[Response], error: type[EngineError], match: str) -> None:
    for response in responses:
        with pytest.raises(error, match=match):
            await response.outputs()


async def go_on(responses: Sequence[Response]) -> None:
    """Something comes for each of them after what has come by now."""
    counts = [len(response.chunks) for response in responses]
    await eventually(lambda: all(len(r.chunks) > count for r, count in zip(responses, counts, strict=True)))
    assert not any(response.ended.is_set() for response in responses)


def every(responses: Mapping[int, Sequence[Response]]) -> list[Response]:
    return [response for of_rank in responses.values() for response in of_rank]


async def counts(engine: Simulator, condition: Callable[[Mapping[str, int]], bool]) -> None:
    """Wait until its counters are so."""

    async def wait() -> None:
        while not condition(await engine.counters()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 10)


async def test_a_killed_rank_ends_what_it_had_within_a_second_and_its_successor_serves_within_two(
    runtime: str, directory: Path, tokenizer: Tokenizer
) -> None:
    others = "vllm" if runtime == "tokenspeed" else "tokenspeed"
    addresses, elsewhere = addresses_in(directory, "group"), addresses_in(directory, "other")
    options = ("--runtime", runtime, *PACE)
    async with (
        group(runtime, addresses) as (client, engines),
        serving(others, elsewhere, 1) as other,
        simulators(elsewhere.handshake, 1, "--runtime", others, *PACE),
        contextlib.AsyncExitStack() as successors,
    ):
        await ready(other, 1)
        of_group, of_other = await busy(client, tokenizer), await busy(other, tokenizer)
        for victim in (2, 0):
            doomed = of_group.pop(victim)
            engines[victim].kill()
            killed = time.monotonic()
            await fail(doomed, EngineUnavailable, f"engine {victim} has disconnected")
            assert time.monotonic() - killed < 1
            await go_on(every(of_group))
            assert (client.state, len(client.ready_engines)) == ("ready", RANKS - 1)
            with pytest.raises(EngineUnavailable, match=f"engine {victim} has disconnected"):
                await ask(client, tokenizer, "refused", rank=victim)

            [successor] = await successors.enter_async_context(
                simulators(addresses.handshake, 1, *options, first=victim)
            )
            await successor.says(f"engine {victim} is ready")
            registered = time.monotonic()
            await ready(client, RANKS)
            await answered(client, tokenizer, victim)
            assert time.monotonic() - registered < 2
        await go_on(every(of_group))
        await go_on(every(of_other))
        assert (other.state, other.in_flight) == ("ready", 2)


async def test_a_stopped_rank_is_given_up_soon_and_ready_when_it_goes_on(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    async with group(runtime, addresses) as (client, engines):
        responses = await busy(client, tokenizer)
        for victim in (1, 3):
            doomed = responses.pop(victim)
            engines[victim].stop()
            stopped = time.monotonic()
            await fail(doomed, EngineUnavailable, f"engine {victim} is stopped")
            assert time.monotonic() - stopped < 2
            assert client.engine_statuses[victim].state == "stopped"
            await go_on(every(responses))
            # Nobody is sent there meanwhile.
            for _ in range(2 * RANKS):
                await answered(client, tokenizer)
            with pytest.raises(EngineUnavailable, match=f"engine {victim} is stopped"):
                await ask(client, tokenizer, "refused", rank=victim)
            engines[victim].go_on()
            await ready(client, RANKS)
            await answered(client, tokenizer, victim)
            # It was told to stop what had failed.
            await counts(engines[victim], lambda now: (now["live"], now["aborted"]) == (0, 2))


async def test_a_stopped_engine_that_owes_nothing_is_noticed_with_the_next_request(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    async with (
        serving(runtime, addresses, 1) as client,
        simulators(addresses.handshake, 1, "--runtime", runtime, *PACE) as [engine],
    ):
        await ready(client, 1)
        engine.stop()
        sent = time.monotonic()
        response = await ask(client, tokenizer, "a")
        await fail([response], EngineUnavailable, "engine 0 is stopped")
        assert time.monotonic() - sent < 2
        assert (client.state, client.accepting) == ("unhealthy", False)
        engine.go_on()
        await client.wait_ready(5)
        await answered(client, tokenizer)
        # What is killed while it is stopped is gone for good.
        engine.stop()
        await fail([await ask(client, tokenizer, "b")], EngineUnavailable, "engine 0 is stopped")
        engine.kill()
        await eventually(lambda: client.reason == "engine 0 has disconnected")


async def test_ticks_that_cannot_be_read_fail_what_they_were_about_and_three_in_a_row_give_the_engine_up(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    options = ("--runtime", runtime, *PACE)
    async with (
        serving(runtime, addresses, RANKS) as client,
        simulators(addresses.handshake, RANKS - 1, *options),
        simulators(
            addresses.handshake, 1, *options, "--malformed-after", "20", "--malformed-count", "3", first=RANKS - 1
        ),
    ):
        await ready(client, RANKS)
        responses = await busy(client, tokenizer)
        doomed = responses.pop(RANKS - 1)
        await fail(doomed, EngineFailed, "cannot be read")
        while client.engines[RANKS - 1].ready:
            with contextlib.suppress(EngineUnavailable, EngineFailed):
                await (await ask(client, tokenizer, f"r-{next(names)}", rank=RANKS - 1)).outputs()
        assert "3 messages in a row that cannot be read" in client.engines[RANKS - 1].reason
        await go_on(every(responses))
        async with simulators(addresses.handshake, 1, *options, first=RANKS - 1):
            await ready(client, RANKS)
            await answered(client, tokenizer, RANKS - 1)


async def test_a_ragged_tick_costs_what_is_on_its_engine_and_nothing_else(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    options = ("--runtime", runtime, *PACE)
    async with (
        serving(runtime, addresses, 2) as client,
        simulators(addresses.handshake, 1, *options),
        simulators(addresses.handshake, 1, *options, "--ragged-after", "20", first=1),
    ):
        await ready(client, 2)
        responses = await busy(client, tokenizer)
        await fail(responses[1], EngineFailed, "cannot be read")
        await go_on(responses[0])
        await answered(client, tokenizer, 1)
        assert len(client.ready_engines) == 2


async def test_a_death_notice_is_that_of_its_rank(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    options = ("--runtime", runtime, *PACE)
    async with (
        serving(runtime, addresses, 2) as client,
        simulators(addresses.handshake, 1, *options),
        simulators(addresses.handshake, 1, *options, "--dead-frame-after", "20", first=1),
    ):
        await ready(client, 2)
        responses = await busy(client, tokenizer)
        await fail(responses[1], EngineUnavailable, "engine 1 has died")
        await go_on(responses[0])


@pytest.mark.parametrize("options", [(), ("--no-redial",)], ids=["dials again", "does not dial again"])
async def test_engines_live_on_when_the_gateway_is_killed_and_serve_the_next_one(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer, options: Sequence[str]
) -> None:
    async with (
        earlier_gateway(runtime, addresses, RANKS) as earlier,
        simulators(addresses.handshake, RANKS, "--runtime", runtime, *PACE, *options) as engines,
    ):
        await at_work(earlier)
        earlier.kill()
        await earlier.wait()
        async with serving(runtime, addresses, RANKS) as client:
            await ready(client, RANKS)
            for rank in range(RANKS):
                await answered(client, tokenizer, rank)
            # What they did for the gateway that is no more has ended.
            for engine in engines:
                await counts(engine, lambda now: (now["live"], now["aborted"] + now["lost"]) == (0, 1))
            # And their own end is noticed like that of any other.
            doomed = (await busy(client, tokenizer))[1]
            engines[1].kill()
            await fail(doomed, EngineUnavailable, "engine 1 has disconnected")
            assert len(client.ready_engines) == RANKS - 1


async def test_engines_that_are_there_before_the_gateway(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    async with simulators(addresses.handshake, RANKS, "--runtime", runtime) as engines:
        for engine in engines:
            await engine.says(f"dials {addresses.handshake}")
        async with serving(runtime, addresses, RANKS) as client:
            await ready(client, RANKS)
            await answered(client, tokenizer)


async def test_a_gateway_that_goes_amid_the_handshake_is_dialled_again(
    runtime: str, addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    options = ("--runtime", runtime, "--slow-load", "0.3")
    async with simulators(addresses.handshake, 2, *options) as engines:
        # The first gateway hears them and says nothing. The second answers, and is gone while they load their model.
        for answer in (None, {"inputs": [addresses.input_endpoint], "outputs": [addresses.output_endpoint]}):
            with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
                router.linger = 1000
                router.bind(addresses.handshake)
                said = collections.Counter[str]()
                while len(said) < 2:
                    identity, hello = await asyncio.wait_for(router.recv_multipart(), 10)
                    assert msgpack.unpackb(hello)["status"] == "HELLO"
                    said[identity.hex()] += 1
                    if answer is not None:
                        await router.send_multipart([identity, msgpack.packb({"addresses": answer})])
        async with serving(runtime, addresses, 2) as client:
            await ready(client, 2)
            for rank in range(2):
                await answered(client, tokenizer, rank)
            for engine in engines:
                assert (await engine.counters())["malformed"] == 0


async def test_a_burst_spreads_over_a_group_and_wakes_all_of_it(
    addresses: WorkerAddresses, tokenizer: Tokenizer
) -> None:
    """vLLM's ranks in lockstep: wave after wave, all of them take part in each."""
    options = ("--runtime", "vllm", "--data-parallel-size", str(RANKS), *PACE)
    async with (
        serving("vllm", addresses, RANKS) as client,
        simulators(addresses.handshake, RANKS, *options) as engines,
    ):
        await ready(client, RANKS)
        for _ in range(3):
            before = [(await engine.counters())["waves"] for engine in engines]
            responses = [await ask(client, tokenizer, f"r-{next(names)}", max_tokens=20) for _ in range(8 * RANKS)]
            assert [engine.in_flight for engine in client.engines] == [8] * RANKS
            for response in responses:
                [output] = await response.outputs()
                assert len(output.token_ids) == 20
            # A single request wakes those that do not get it too.
            await answered(client, tokenizer)
            for engine, waves in zip(engines, before, strict=True):
                await counts(engine, lambda now, waves=waves: now["waves"] > waves + 1)  # type: ignore[misc]
