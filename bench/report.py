"""Tables that put benchmarks side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@dataclass
class Table:
    """Seconds per unit of work, by row and column; ``ratio`` names two columns to compare."""

    title: str
    unit: str  # "us" or "ns"
    ratio: tuple[str, str] | None
    cells: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, row: str, column: str, benchmark: BenchmarkFixture, units: int) -> None:
        """Enter the fastest round of a benchmark; a round does ``units`` units of work."""
        if benchmark.stats:
            self.cells.setdefault(row, {})[column] = benchmark.stats.stats.min / units

    def lines(self) -> Iterator[str]:
        scale = {"us": 1e6, "ns": 1e9}[self.unit]
        columns = list(dict.fromkeys(column for row in self.cells.values() for column in row))
        rows = [["", *columns]]
        for label, cells in self.cells.items():
            rows.append([label, *(f"{cells[name] * scale:.2f}" if name in cells else "-" for name in columns)])
        if self.ratio:
            over, under = self.ratio
            rows[0].append(f"{over} / {under}")
            for row, cells in zip(rows[1:], self.cells.values(), strict=True):
                row.append(f"{cells[over] / cells[under]:.3f}" if over in cells and under in cells else "-")
        yield from aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line of text for each row: the first column to the left, the others to the right."""
    left, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *values in rows:
        yield f"{label:<{left}}" + "".join(f"  {v:>{w}}" for v, w in zip(values, widths, strict=True))


TABLES = pytest.StashKey[dict[str, Table]]()


def table(config: pytest.Config, title: str, unit: str, ratio: tuple[str, str] | None = None) -> Table:
    """The table of that title, which the terminal shows after the run."""
    return config.stash.setdefault(TABLES, {}).setdefault(title, Table(title, unit, ratio))
