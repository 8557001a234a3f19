"""What the benchmarks of whole gateways found, as it is kept in a JSON file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.scenarios import Scenario

OURS = "smg-fast"
FLOOR = "floor"
PEERS = ("smg", "vllm-rs")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway under one load. None: such a load has no such figure.

    Attributes
    ----------
    cpu_us, request_ms
        CPU of the gateway's processes, user and system: µs per token delivered, ms per request.
    tokens_per_second
        Delivered.
    first_p50, first_p99
        Time to the first token, in ms; to the whole body where it is not streamed.
    gap_p50, gap_p99
        Time between two arrivals at a client, in ms.
    kib_per_stream
        Growth of the gateway's memory: up to its peak, or of idle streams up to now.
    gateway_cores, engine_cores, clients_cores
        What part of a core each of them used.
    errors
        Requests that were not answered in full.
    """

    cpu_us: float | None = None
    request_ms: float | None = None
    tokens_per_second: float | None = None
    first_p50: float | None = None
    first_p99: float | None = None
    gap_p50: float | None = None
    gap_p99: float | None = None
    kib_per_stream: float | None = None
    gateway_cores: float | None = None
    engine_cores: float | None = None
    clients_cores: float | None = None
    errors: float = 0


#: Heading and decimals of each figure.
COLUMNS: dict[str, tuple[str, int]] = {
    "cpu_us": ("us/token", 2),
    "request_ms": ("ms/request", 3),
    "tokens_per_second": ("tokens/s", 0),
    "first_p50": ("TTFT p50", 2),
    "first_p99": ("TTFT p99", 2),
    "gap_p50": ("gap p50", 2),
    "gap_p99": ("gap p99", 2),
    "kib_per_stream": ("KiB/stream", 1),
    "gateway_cores": ("cores", 2),
    "engine_cores": ("engine", 2),
    "clients_cores": ("clients", 2),
    "errors": ("errors", 0),
}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway under a load, once a round. ``runtime`` is the engine's family."""

    runtime: str
    scenario: str
    load: Scenario
    gateway: str
    rounds: list[Figures]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.runtime, self.scenario, self.gateway

    @property
    def median(self) -> Figures:
        columns = {name: [getattr(figures, name) for figures in self.rounds] for name in COLUMNS}
        medians = {name: None if None in column else statistics.median(column) for name, column in columns.items()}
        return msgspec.convert(medians, Figures)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Only what is in one of them compares: machines differ, and one differs from day to day."""

    machine: str
    model: str
    seconds: float
    measured: list[Measured]

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises ``OSError``, and ``msgspec.DecodeError`` for a file that is not of ``bench.end_to_end``."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def medians(self, runtime: str, scenario: str) -> dict[str, Figures]:
        """By gateway, in the order in which they were measured."""
        return {one.gateway: one.median for one in self.measured if (one.runtime, one.scenario) == (runtime, scenario)}


def cell(figures: Figures, name: str) -> str:
    """A figure as text."""
    value: float | None = getattr(figures, name)
    return "-" if value is None else f"{value:.{COLUMNS[name][1]}f}"


def best_peer(medians: dict[str, Figures], name: str) -> float | None:
    """The least of that figure among the peers that were measured."""
    values = [getattr(medians[peer], name) for peer in PEERS if peer in medians]
    return min((value for value in values if value is not None), default=None)


def ratio(over: float | None, under: float | None) -> str:
    """As text; a dash where there is no such thing."""
    return "-" if over is None or not under else f"{over / under:.3f}"


def rows(results: Results) -> Iterator[Sequence[str]]:
    """A table of everything: the names of its columns, then a gateway under a load each."""
    yield ["", *(heading for heading, _ in COLUMNS.values()), "/ best peer", "/ floor"]
    for one in results.measured:
        figures, medians = one.median, results.medians(one.runtime, one.scenario)
        ratios = ["", ""]
        if one.gateway == OURS:
            floor = medians[FLOOR].cpu_us if FLOOR in medians else None
            ratios = [ratio(figures.cpu_us, best_peer(medians, "cpu_us")), ratio(figures.cpu_us, floor)]
        yield [" ".join(one.key), *(cell(figures, name) for name in COLUMNS), *ratios]
