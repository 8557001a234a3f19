"""One long generation costs per token what a short one does; text in and out of it."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.report import table
from bench.ticks import TEXT, tick
from smg_fast._codec import (
    Detokenizer,
    Dispatcher,
    Output,
    Prompt,
    Protocol,
    ResponseFormat,
    TextOptions,
    TokenIds,
    Tokenizer,
)

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

LONG = 100_000
SHORT = 1_000
RID = "0123456789abcdef0123456789abcdef-0"
SINK = object()
ROUNDS = 10
TOKENSPEED = Protocol.tokenspeed()
PROMPT = Prompt(TokenIds([0] * 120))

FORMATS = {
    "streamed chat": ResponseFormat.chat(id="chatcmpl-bench", model="bench", created=0, stream=True),
    "outputs": ResponseFormat.outputs(),
}


class Generation:
    """A generation of ``length`` tokens, one a tick, ready to be fed any number of times."""

    def __init__(self, tokenizer: Tokenizer, length: int, *, logprobs: bool = False) -> None:
        self.tokenizer = tokenizer
        self.length = length
        text_ids = tokenizer.encode(TEXT).tolist()
        self.ticks = [[[tick([RID], [token], logprobs=logprobs)]] for token in text_ids]
        self.last = [[tick([RID], text_ids[:1], logprobs=logprobs, finish="length", completion_tokens=length)]]

    def run(self, format: ResponseFormat, options: TextOptions) -> bytes | list[Output]:
        """Open, feed and end it; what it ended with."""
        dispatcher = Dispatcher()
        dispatcher.open(SINK, format, self.tokenizer, options, [RID], [PROMPT])
        feed = dispatcher.feed
        for messages in islice(cycle(self.ticks), self.length - 1):
            feed(TOKENSPEED, messages)
        ((_, data, error),) = feed(TOKENSPEED, self.last).ended
        assert error is None
        assert data is not None
        return data

    def outputs(self) -> Output:
        (output,) = self.run(ResponseFormat.outputs(), TextOptions(logprobs=0))
        assert isinstance(output, Output)
        return output


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
@pytest.mark.parametrize("format", FORMATS)
def bench_token_by_length(
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
    tokenizer: Tokenizer,
    format: str,
    logprobs: bool,
    length: int,
) -> None:
    """100,000 tokens a round: as one generation, or as a hundred of 1,000."""
    generation = Generation(tokenizer, length, logprobs=logprobs)
    options = TextOptions(logprobs=0 if logprobs else None)

    def run() -> None:
        for _ in range(LONG // length):
            generation.run(FORMATS[format], options)

    label = f"{format}, logprobs" if logprobs else format
    benchmark.group = f"100,000 tokens, {label}"
    benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=1)
    columns = {SHORT: "of 1,000", LONG: "of 100,000"}
    report = table(request.config, "a token by the length of its generation", "ns", ("of 100,000", "of 1,000"))
    report.add(label, columns[length], benchmark, LONG)


@pytest.mark.parametrize("length", [SHORT, LONG])
def bench_columns_to_numpy(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, tokenizer: Tokenizer, length: int
) -> None:
    """The final columns of a generation as numpy arrays: views, whatever their length."""
    output = Generation(tokenizer, length, logprobs=True).outputs()
    assert output.logprobs is not None

    def run() -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(output.token_ids), np.asarray(output.logprobs)

    benchmark.group = "final columns to numpy"
    ids, logprobs = benchmark.pedantic(run, rounds=1000, iterations=10)
    for array, column in ((ids, output.token_ids), (logprobs, output.logprobs)):
        assert array.shape == (length,)
        assert array.ctypes.data == column.__array_interface__["data"][0]
        assert np.shares_memory(array, np.asarray(column))
    assert (ids.dtype, logprobs.dtype) == (np.uint32, np.float64)


STOPS = {
    "no stop string": (),
    "one stop string": ("harbour master",),  # begins as the text does, so that some of it is held back
    "four stop strings": ("harbour master", "crates were", "\n\nEND", "sum(crates)"),
}


@pytest.mark.parametrize("stops", STOPS)
def bench_stop_strings(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, tokenizer: Tokenizer, stops: str
) -> None:
    generation = Generation(tokenizer, 10 * SHORT)
    options = TextOptions(stop=STOPS[stops])
    benchmark.group = "stop strings, 10,000 tokens of streamed chat"
    benchmark.pedantic(generation.run, (FORMATS["streamed chat"], options), rounds=ROUNDS, warmup_rounds=1)
    report = table(request.config, "a token of streamed chat by stop strings", "ns")
    report.add(stops, "ns/token", benchmark, generation.length)


@pytest.mark.parametrize("step", [1, 16])
def bench_detokenizer(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, tokenizer: Tokenizer, step: int
) -> None:
    """Text out of ids, a few at a time, without the rest of the path; the call from Python is part of it."""
    ids = list(islice(cycle(tokenizer.encode(TEXT)), 100 * SHORT))
    pieces = [TokenIds(ids[start : start + step]) for start in range(0, len(ids), step)]

    def run() -> str:
        detokenizer = Detokenizer(tokenizer)
        text = "".join(map(detokenizer.push, pieces))
        return text + detokenizer.finish()

    benchmark.group = "detokenize 100,000 tokens"
    text = benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=1)
    assert text == tokenizer.decode(ids)
    report = table(request.config, "detokenize a token", "ns")
    report.add(f"{step} at a time", "ns/token", benchmark, len(ids))
