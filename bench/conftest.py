"""What the benchmarks measured, side by side, after pytest-benchmark's own tables."""

from __future__ import annotations

import pytest

from bench.report import TABLES
from bench.ticks import MODEL
from smg_fast._codec import Tokenizer


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for measured in config.stash.get(TABLES, {}).values():
        terminalreporter.section(f"{measured.title} ({measured.unit}, fastest round)")
        for line in measured.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))
