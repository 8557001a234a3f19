"""The benchmarks' programs in C, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load import Clients, compiled


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def clients(programs: Path) -> Clients:
    return Clients(compiled("clients.c", programs))
