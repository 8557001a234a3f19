"""The same ticks through this codec and through what one would write instead.

A round is a number of ticks fed to generations that were opened just before it, so memory does not grow with the
rounds. Rows keep their places from tick to tick, as an engine's batch does. This codec also detokenizes; ``msgspec``
only decodes; the others decode and accumulate.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
import msgspec
import numpy as np
import pytest
from setuptools.errors import CompileError, LinkError, PlatformError

from bench import cython_baseline
from bench.report import table
from bench.ticks import TEXT, request_ids, tick, ticks
from smg_fast._codec import Dispatcher, Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast._codec import Protocol as WireProtocol

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

TICKS = {1: 1024, 64: 64, 256: 64, 1024: 32}  # rows -> ticks of a round
ROUNDS = 40
TOKENSPEED = WireProtocol.tokenspeed()
PROMPT = Prompt(TokenIds([0] * 120))


class Decoder(Protocol):
    """Generations that are open and take ticks."""

    def feed(self, payload: bytes, /) -> object: ...
    def collect(self, rids: list[str], /) -> list[list[int]] | None:
        """Accumulated token ids by request, to check the work; ``None`` where nothing is kept."""


class Codec:
    """This codec."""

    def __init__(self, rids: list[str], tokenizer: Tokenizer, logprobs: bool) -> None:
        self.dispatcher = Dispatcher()
        options = TextOptions(logprobs=0 if logprobs else None)
        for rid in rids:
            self.dispatcher.open(rid, ResponseFormat.outputs(), tokenizer, options, [rid], [PROMPT])

    def feed(self, payload: bytes) -> None:
        self.dispatcher.feed(TOKENSPEED, [[payload]])

    def collect(self, rids: list[str]) -> list[list[int]]:
        last = tick(rids, [0] * len(rids), logprobs=True, finish="length")
        ended = self.dispatcher.feed(TOKENSPEED, [[last]]).ended
        columns: dict[object, list[int]] = {}
        for rid, outputs, error in ended:
            assert error is None
            assert isinstance(outputs, list)
            columns[rid] = outputs[0].token_ids.tolist()[:-1]
        return [columns[rid] for rid in rids]


class MsgpackNumpy:
    """``msgpack`` to Python lists, then one vectorised assignment a column into a matrix with a line per request."""

    def __init__(self, rids: list[str], logprobs: bool) -> None:
        self.lines = {rid: line for line, rid in enumerate(rids)}
        self.lengths = np.zeros(len(rids), np.intp)
        self.ids: NDArray[np.uint32] = np.zeros((len(rids), 16), np.uint32)
        self.logprobs: NDArray[np.float64] = np.zeros((len(rids), 16), np.float64)

    def feed(self, payload: bytes) -> None:
        _, rids, output_ids, _, _, _, _, logprobs, logprob_ids, *_ = msgpack.unpackb(payload)
        rows = len(rids)
        if not len(output_ids) == len(logprobs) == len(logprob_ids) == rows:
            raise ValueError("ragged columns")
        lines = np.fromiter(map(self.lines.__getitem__, rids), np.intp, rows)
        counts = np.fromiter(map(len, output_ids), np.intp, rows)
        starts = self.lengths[lines]
        ends = starts + counts
        while ends.max() > self.ids.shape[1]:
            self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)], axis=1)
            self.logprobs = np.concatenate([self.logprobs, np.zeros_like(self.logprobs)], axis=1)
        tokens = np.fromiter(chain.from_iterable(output_ids), np.uint32)
        if tokens.size == rows and (counts == 1).all():
            at_lines, at_positions = lines, starts
        else:
            at_lines = np.repeat(lines, counts)
            at_positions = np.arange(tokens.size) + np.repeat(ends - np.cumsum(counts), counts)
        self.ids[at_lines, at_positions] = tokens
        values = np.fromiter(chain.from_iterable(logprobs), np.float64)
        if values.size == tokens.size:
            self.logprobs[at_lines, at_positions] = values
        elif values.size:
            raise ValueError("logprobs for some rows only: the benchmarks have none of these")
        self.lengths[lines] = ends

    def collect(self, rids: list[str]) -> list[list[int]]:
        lines = [self.lines[rid] for rid in rids]
        return [self.ids[line, : self.lengths[line]].tolist() for line in lines]


class BatchTokenIDOutSlim(msgspec.Struct, array_like=True, tag=True, frozen=True):
    rids: list[str]
    output_ids: list[list[int]]
    finished_reasons: list[str]
    prompt_tokens: list[int]
    completion_tokens: list[int]
    cached_tokens: list[int]
    output_token_logprobs_val: list[list[float]]
    output_token_logprobs_idx: list[list[int]]
    engine_index: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_active_pages: int = 0
    kv_total_pages: int = 0


class MsgspecTyped:
    """``msgspec``'s typed decoding, and nothing after it."""

    def __init__(self) -> None:
        self.feed = msgspec.msgpack.Decoder(BatchTokenIDOutSlim).decode

    def collect(self, rids: list[str]) -> None:
        return None


class CythonBaseline:
    """The Cython baseline of this folder."""

    def __init__(self, rids: list[str], accumulator: type[cython_baseline.Accumulator]) -> None:
        self.accumulator = accumulator(rids)
        self.feed = self.accumulator.feed

    def collect(self, rids: list[str]) -> list[list[int]]:
        return [self.accumulator.token_ids(rid) for rid in rids]


@pytest.fixture(scope="session")
def accumulator() -> type[cython_baseline.Accumulator]:
    try:
        return cython_baseline.load()
    except (CompileError, LinkError, PlatformError) as error:
        pytest.skip(f"the Cython baseline needs a C compiler and the Python headers: {error}")


Open = Callable[[list[str], bool], Decoder]


@pytest.fixture(params=["smg-fast", "cython", "msgspec", "msgpack+numpy"])
def contender(request: pytest.FixtureRequest) -> tuple[str, Open]:
    def fixture(name: str) -> Any:
        return request.getfixturevalue(name)

    name: str = request.param
    opens: dict[str, Callable[[], Open]] = {
        "smg-fast": lambda: lambda rids, logprobs: Codec(rids, fixture("tokenizer"), logprobs),
        "cython": lambda: lambda rids, _: CythonBaseline(rids, fixture("accumulator")),
        "msgspec": lambda: lambda _, __: MsgspecTyped(),
        "msgpack+numpy": lambda: MsgpackNumpy,
    }
    return name, opens[name]()


@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
@pytest.mark.parametrize("rows", TICKS)
def bench_tick(
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
    tokenizer: Tokenizer,
    contender: tuple[str, Open],
    rows: int,
    logprobs: bool,
) -> None:
    name, open_generations = contender
    rids = request_ids(rows)
    payloads = ticks(rids, tokenizer.encode(TEXT).tolist(), TICKS[rows], logprobs=logprobs)
    decoders: list[Decoder] = []

    def setup() -> tuple[tuple[Decoder], dict[str, Any]]:
        decoders[:] = [open_generations(rids, logprobs)]
        return (decoders[0],), {}

    def run(decoder: Decoder) -> None:
        feed = decoder.feed
        for payload in payloads:
            feed(payload)

    label = ("1 row" if rows == 1 else f"{rows} rows") + (", logprobs" if logprobs else "")
    benchmark.group = f"{len(payloads)} ticks of {label}"
    benchmark.pedantic(run, setup=setup, rounds=ROUNDS, warmup_rounds=1)

    collected = decoders[0].collect(rids)
    expected = [list(tokens) for tokens in zip(*map(sampled, payloads), strict=True)]
    assert collected is None or collected == expected
    report = table(request.config, "decode and accumulate a tick; msgspec: decode only", "us", ("smg-fast", "msgspec"))
    report.add(label, name, benchmark, len(payloads))


def sampled(payload: bytes) -> list[int]:
    """The one token of each row."""
    return [tokens[0] for tokens in msgpack.unpackb(payload)[2]]
