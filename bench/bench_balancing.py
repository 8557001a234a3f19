"""Which engine of a group gets the next request: the least loaded, or each in its turn.

    python -m bench.bench_balancing [--seconds 1.5] [--rate 0.8] [--seed 0]

Four simulated engines on one worker, with few slots each, and requests that come at random. The time of a request is
that from its sending to the end of its answer, the wait for a slot included. Both policies get the same requests at the
same times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from bench.report import aligned
from smg_fast._codec import Output, Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import GenerationRequest, SamplingParams, TokenSpeed
from smg_fast.transport import EngineClient, EngineError, worker_addresses

_RANKS = 4
_SLOTS = 4
_TICK_MS = 2.0
#: Seconds in which the engines have to come.
_PATIENCE = 30.0
_PROMPT = TokenIds([1, 2, 3])


class Scenario(msgspec.Struct, frozen=True):
    """Milliseconds between the ticks of each engine, and the lengths of answers, each as likely as the others."""

    ticks: Sequence[float]
    lengths: Sequence[int]

    @property
    def capacity(self) -> float:
        """Requests a second that all the engines can answer, if none of them is ever idle."""
        return sum(1000 * _SLOTS / tick for tick in self.ticks) / statistics.mean(self.lengths)


SCENARIOS = {
    "one answer in ten is long": Scenario([_TICK_MS] * _RANKS, [10] * 9 + [100]),
    "one engine in four is slow": Scenario([_TICK_MS] * 3 + [4 * _TICK_MS], [30]),
}

#: The rank that request number so and so is sent to; ``None`` leaves it to the client.
POLICIES: dict[str, Callable[[int], int | None]] = {
    "round robin": lambda number: number % _RANKS,
    "least loaded": lambda number: None,
}


class Arrival(msgspec.Struct, frozen=True):
    """A request: seconds after the first, and tokens of its answer."""

    at: float
    tokens: int


class _Sink:
    """Resolves to the seconds it took."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def write(self, chunk: bytes) -> None:
        raise AssertionError("outputs are not streamed")

    def end(self, data: bytes | list[Output]) -> None:
        self.seconds.set_result(time.perf_counter() - self.begun)

    def fail(self, error: EngineError, *, begun: bool) -> None:
        self.seconds.set_exception(error)


def arrivals(scenario: Scenario, seconds: float, rate: float, seed: int) -> list[Arrival]:
    """Requests for so many seconds, at this share of what the engines can take."""
    chance = random.Random(seed)
    requests: list[Arrival] = []
    at = 0.0
    while at < seconds:
        requests.append(Arrival(at, chance.choice(scenario.lengths)))
        at += chance.expovariate(rate * scenario.capacity)
    return requests


async def _all_ready(client: EngineClient) -> None:
    while len(client.ready_engines) < client.engine_count:  # noqa: ASYNC110 (a client tells of one engine only)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def group(ticks: Sequence[float]) -> AsyncIterator[EngineClient]:
    """A worker whose engines are ready, one for each pace."""
    with tempfile.TemporaryDirectory(prefix="smg-") as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        addresses = worker_addresses(f"ipc://{directory}/e", f"tcp://127.0.0.1:{port}")
        client = EngineClient(TokenSpeed(), addresses, engine_count=len(ticks))
        await client.start()
        engines = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "smg_fast.embedded.simulator", "--handshake", addresses.handshake),
                *("--index", str(index), "--tick-ms", f"{tick:g}", "--max-running", str(_SLOTS)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            for index, tick in enumerate(ticks)
        ]
        try:
            await asyncio.wait_for(_all_ready(client), _PATIENCE)
            yield client
        finally:
            await client.close()
            for engine in engines:
                engine.terminate()
                await engine.wait()


async def measure(
    client: EngineClient, tokenizer: Tokenizer, requests: Sequence[Arrival], rank: Callable[[int], int | None]
) -> list[float]:
    """Seconds that each request took."""
    sinks: list[_Sink] = []
    begun = time.perf_counter()
    for number, request in enumerate(requests):
        await asyncio.sleep(begun + request.at - time.perf_counter())
        sink = _Sink()
        sinks.append(sink)
        await client.generate(
            sink,
            format=ResponseFormat.outputs(),
            options=TextOptions(),
            tokenizer=tokenizer,
            prompts=[Prompt(_PROMPT)],
            requests=[
                GenerationRequest(
                    rid=str(number),
                    prompt_ids=_PROMPT,
                    sampling=SamplingParams(max_tokens=request.tokens, ignore_eos=True),
                    data_parallel_rank=rank(number),
                )
            ],
        )
    return [await sink.seconds for sink in sinks]


async def run(seconds: float, rate: float, seed: int) -> list[list[str]]:
    """The rows of the table, with its head."""
    tokenizer = Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))
    rows = [["", "requests", "mean ms", "p99 ms"]]
    for name, scenario in SCENARIOS.items():
        requests = arrivals(scenario, seconds, rate, seed)
        async with group(scenario.ticks) as client:
            for policy, rank in POLICIES.items():
                times = await measure(client, tokenizer, requests, rank)
                p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
                figures = (f"{1e3 * statistics.mean(times):.0f}", f"{1e3 * p99:.0f}")
                rows.append([f"{name}, {policy}", str(len(times)), *figures])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_balancing", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one load [default: %(default)g]")
    parser.add_argument(
        "--rate", type=float, default=0.8, help="the share of what the engines can take [default: %(default)g]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is random [default: %(default)s]")
    arguments = parser.parse_args()
    print("\n".join(aligned(asyncio.run(run(arguments.seconds, arguments.rate, arguments.seed)))))


if __name__ == "__main__":
    main()
