"""Nothing grows: ten seconds of what clients do, or as many as ``--soak`` says."""

from __future__ import annotations

import msgspec
import pytest

from bench.soak import Look, growth, soak
from smg_fast.engines import FAMILIES

IDLE = Look(requests=1000, resident_kib=60_000, descriptors=30, threads=7, tasks=2, objects=150)


@pytest.mark.parametrize("runtime", FAMILIES)
def test_nothing_grows(runtime: str, request: pytest.FixtureRequest) -> None:
    looks = soak(runtime, request.config.getoption("soak"))
    assert looks[-1].requests > 1000
    assert growth(looks) == []


@pytest.mark.parametrize(
    "leak", [{"resident_kib": 64_000}, {"descriptors": 31}, {"threads": 8}, {"tasks": 20}, {"objects": 2000}]
)
def test_what_has_grown_is_named(leak: dict[str, int]) -> None:
    later = msgspec.structs.replace(IDLE, requests=5000)
    assert growth([IDLE, IDLE, later]) == []
    ((name, value),) = leak.items()
    (grown,) = growth([IDLE, IDLE, msgspec.structs.replace(later, **leak)])
    assert grown == f"{name}: from {getattr(IDLE, name)} to {value} over 4000 requests"
