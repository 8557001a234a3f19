"""The gateway end to end: HTTP clients, the gateway, and the simulated engine, each in a process of its own.

    python -m bench.end_to_end [--runtime tokenspeed] [--seconds 6] [--rounds 1] [--only paced-256] [--json FILE]

CPU is the gateway process's own, user and system, per token delivered. Everything runs on this machine: only figures of
one run compare.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.load import Answers, Load, run
from bench.report import aligned
from smg_fast.embedded import MODEL_DIRECTORY

_MODEL = "bench"
_PATIENCE = 60.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A load; ``tick_ms`` 0 lets the engine go as fast as the gateway reads."""

    streams: int
    tick_ms: float = 10.0
    tokens: int = 128
    stream: bool = True
    logprobs: bool = False
    prompt_words: int = 56

    def load(self, seconds: float) -> Load:
        return Load(
            model=_MODEL,
            streams=self.streams,
            seconds=seconds,
            tokens=self.tokens,
            stream=self.stream,
            logprobs=self.logprobs,
            prompt="one two three four five six seven " * (self.prompt_words // 7),
        )


SCENARIOS: dict[str, Scenario] = {
    "paced-1": Scenario(streams=1),
    "paced-64": Scenario(streams=64),
    "paced-256": Scenario(streams=256),
    "paced-256-logprobs": Scenario(streams=256, logprobs=True),
    "paced-1024": Scenario(streams=1024),
    "unpaced-64": Scenario(streams=64, tick_ms=0),
    "unpaced-64-logprobs": Scenario(streams=64, tick_ms=0, logprobs=True),
    "unpaced-64-whole": Scenario(streams=64, tick_ms=0, stream=False),
    "output-1024-tokens": Scenario(streams=64, tokens=1024),
    "output-4096-tokens": Scenario(streams=64, tokens=4096),
    "prompt-500-words": Scenario(streams=64, prompt_words=497),
    "prompt-2000-words": Scenario(streams=64, prompt_words=1995),
}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, measured. Times are in ms but for ``cpu_us``, which is per token. A whole body has no gaps."""

    cpu_us: float
    tokens_per_second: float
    first_p50: float
    first_p99: float
    gap_p50: float | None
    gap_p99: float | None
    kib_per_stream: float
    errors: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` writes; ``compare`` reads it."""

    machine: str
    runtime: str
    seconds: float
    rounds: int
    figures: dict[str, Figures]


class _Gateway:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        address = urllib.parse.urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self.host, self.port, self.pid = address.hostname, address.port, process.pid

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self, entry: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{entry}:"))

    def wait_ready(self) -> None:
        """Poll: nothing tells a client when the engine has come."""
        end = time.monotonic() + _PATIENCE
        while not self._is_ready():
            if time.monotonic() > end:
                raise TimeoutError(f"the engine is not ready after {_PATIENCE:g} s")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.host}:{self.port}/ready").close()
        except urllib.error.HTTPError:
            return False
        return True


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "smg_fast", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def _served(runtime: str, scenario: Scenario) -> Iterator[_Gateway]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="smg-"))
        arguments = ("--worker", f"ipc://{directory}/e", "--runtime", runtime, "--model", str(MODEL_DIRECTORY))
        process = stack.enter_context(
            _process("launch", *arguments, "--served-model-name", _MODEL, "--port", "0", "--log-level", "warning")
        )
        assert process.stdout is not None
        # "smg-fast listens on URL; engines dial ADDRESS"
        listens, _, handshake = process.stdout.readline().strip().partition("; engines dial ")
        options = ("--tick-ms", f"{scenario.tick_ms:g}", "--max-running", "8192", "--max-model-len", "16384")
        stack.enter_context(_process("simulate", "--runtime", runtime, "--handshake", handshake, *options))
        gateway = _Gateway(process, listens.rpartition(" ")[2])
        gateway.wait_ready()
        yield gateway


def measure(runtime: str, scenario: Scenario, seconds: float) -> Figures:
    """One scenario, with a gateway and an engine of its own."""
    with _served(runtime, scenario) as gateway:
        # The first requests pay for what later ones find done: imports, caches, buffers.
        uvloop.run(run(gateway.host, gateway.port, msgspec.structs.replace(scenario, streams=8, tokens=8).load(0)))
        memory, cpu, begun = gateway.memory_kib("VmRSS"), gateway.cpu_seconds(), time.perf_counter()
        answers = uvloop.run(run(gateway.host, gateway.port, scenario.load(seconds)))
        elapsed, used = time.perf_counter() - begun, gateway.cpu_seconds() - cpu
        return _figures(scenario, answers, used, elapsed, gateway.memory_kib("VmHWM") - memory)


def _figures(scenario: Scenario, answers: Answers, cpu: float, elapsed: float, memory_kib: int) -> Figures:
    tokens = answers.requests * scenario.tokens
    first_p50, first_p99 = _percentiles(answers.first)
    return Figures(
        cpu_us=cpu * 1e6 / max(tokens, 1),
        tokens_per_second=tokens / elapsed,
        first_p50=first_p50,
        first_p99=first_p99,
        gap_p50=_percentiles(answers.gaps)[0] if answers.gaps else None,
        gap_p99=_percentiles(answers.gaps)[1] if answers.gaps else None,
        kib_per_stream=memory_kib / scenario.streams,
        errors=len(answers.errors),
    )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile of times, in ms."""
    if len(seconds) < 2:
        raise SystemExit("the gateway answered next to nothing: its messages are above")
    percentiles = statistics.quantiles(seconds, n=100, method="inclusive")
    return percentiles[49] * 1e3, percentiles[98] * 1e3


def _median(rounds: Sequence[Figures]) -> Figures:
    columns = {name: [getattr(figures, name) for figures in rounds] for name in Figures.__struct_fields__}
    medians = {name: None if None in column else statistics.median(column) for name, column in columns.items()}
    return msgspec.convert(medians, Figures, strict=False)


def rows(figures: dict[str, Figures]) -> list[list[str]]:
    """A table: the names of its columns, then a scenario each."""
    head = ["", "us/token", "tok/s", "TTFT p50", "p99 ms", "gap p50", "p99 ms", "KiB/stream", "errors"]
    return [head, *([name, *_cells(measured)] for name, measured in figures.items())]


def _cells(figures: Figures) -> Iterator[str]:
    yield f"{figures.cpu_us:.2f}"
    yield f"{figures.tokens_per_second:.0f}"
    for milliseconds in (figures.first_p50, figures.first_p99, figures.gap_p50, figures.gap_p99):
        yield "-" if milliseconds is None else f"{milliseconds:.1f}"
    yield f"{figures.kib_per_stream:.1f}"
    yield f"{figures.errors:g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.end_to_end", description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", default="tokenspeed", help="the simulated engine's family")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one load [default: %(default)g]")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median counts [default: %(default)s]")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    measured: dict[str, list[Figures]] = {name: [] for name in arguments.only}
    for _ in range(arguments.rounds):
        for name, rounds in measured.items():
            rounds.append(measure(arguments.runtime, SCENARIOS[name], arguments.seconds))
            print(f"{name}: {rounds[-1].cpu_us:.2f} us/token", file=sys.stderr, flush=True)
    report = Report(
        machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        runtime=arguments.runtime,
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        figures={name: _median(rounds) for name, rounds in measured.items()},
    )
    print("\n".join(aligned(rows(report.figures))))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))


if __name__ == "__main__":
    main()
