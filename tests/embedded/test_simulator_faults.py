"""What a gateway sees when an engine fails."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.embedded.gateway_side import ENGINE_DEAD, PATIENCE, Gateway, Simulator, pair, read

if TYPE_CHECKING:
    from pathlib import Path

FOREVER: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 8000}


def test_it_dies(tmp_path: Path) -> None:
    with pair(tmp_path, "--tick-ms", 20, "--die-after", 3) as (gateway, simulator):
        gateway.add("a", [1, 2], **FOREVER)
        assert [gateway.tick().rows[0].completion_tokens for _ in range(3)] == [1, 2, 3]
        assert simulator.process.wait(PATIENCE) == -signal.SIGKILL
        assert gateway.quiet(0)


def test_it_announces_its_death(tmp_path: Path) -> None:
    with pair(tmp_path, "--dead-frame-after", 3) as (gateway, simulator):
        gateway.add("a", [1, 2], **FOREVER)
        assert [gateway.tick().rows[0].completion_tokens for _ in range(3)] == [1, 2, 3]
        assert gateway.message() == ENGINE_DEAD
        assert simulator.process.wait(PATIENCE) == 1


def test_it_falls_silent_and_reads_on(tmp_path: Path) -> None:
    with pair(tmp_path, "--silent-after", 2) as (gateway, simulator):
        gateway.add("a", [1, 2], **FOREVER)
        assert [gateway.tick().rows[0].completion_tokens for _ in range(2)] == [1, 2]
        gateway.add("b", [1, 2])
        simulator.until(adds=2)
        assert gateway.quiet(0.05)
        counters = simulator.stop()
        assert (counters.live, counters.ticks) == (2, 2)


def test_it_sends_malformed_ticks(tmp_path: Path) -> None:
    with pair(tmp_path, "--malformed-after", 1, "--malformed-count", 2) as (gateway, simulator):
        gateway.add("a", [1, 2], ignore_eos=True, max_new_tokens=4)
        assert gateway.tick().rows[0].completion_tokens == 1
        for _ in range(2):
            with pytest.raises(ValueError, match="incomplete"):
                msgpack.unpackb(gateway.message())
        assert gateway.tick().rows[0].completion_tokens == 4
        assert simulator.stop().finished == 1


@pytest.mark.parametrize("revision", ["untagged8", "tagged14"])
def test_it_sends_a_ragged_tick(tmp_path: Path, revision: str) -> None:
    with pair(tmp_path, "--ragged-after", 1, "--revision", revision) as (gateway, _):
        gateway.add("a", [1, 2], ignore_eos=True, max_new_tokens=3)
        assert gateway.tick().rows[0].completion_tokens == 1
        message = msgpack.unpackb(gateway.message())
        assert [len(column) for column in message if isinstance(column, list)] == [1, 0, 1, 1, 1, 1, 1, 1]
        assert gateway.tick().rows[0].completion_tokens == 3


def test_it_is_slow_to_come(tmp_path: Path) -> None:
    begin = time.monotonic()
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, "--slow-start", 0.5):
        gateway.accept()
        assert time.monotonic() - begin >= 0.5


def test_it_is_slow_to_load(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, "--slow-load", 0.4):
        identity, _ = gateway.hello()
        begin = time.monotonic()
        gateway.send_init(identity)
        assert gateway.hello()[1]["status"] == "READY"
        assert time.monotonic() - begin >= 0.4
        assert gateway.registration()[0] == identity


def test_an_init_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, "--tick-ms", 0) as simulator:
        identity, _ = gateway.hello()
        for bad in (
            b"\xc1",
            msgpack.packb({"addresses": 1}),
            msgpack.packb({"addresses": {"inputs": [], "outputs": []}}),
        ):
            gateway.send_handshake(identity, bad)
        gateway.send_init(identity)
        gateway.hello()
        gateway.registration()
        gateway.add("a", [1, 2])
        assert read(gateway.message()).rows[0].ids == [1]
        assert simulator.stop().malformed == 3
