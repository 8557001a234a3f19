"""An engine of a gateway that is several processes: clients, each with an input and an output of its own."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgpack

from tests.embedded.gateway_side import ENGINE_DEAD, Gateway, Simulator
from tests.embedded.vllm_side import VLLM, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDENTITY = b"\0\0"


@contextlib.contextmanager
def processes(directory: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """Two, of which the first answers the handshake."""
    for name in "01":
        (directory / name).mkdir()
    with Gateway(directory / "0") as first, Gateway(directory / "1") as second:
        yield first, second


def init(first: Gateway, directory: Path) -> None:
    assert first.hello()[0] == IDENTITY
    addresses = {f"{way}puts": [f"ipc://{directory}/{name}/{way}.sock" for name in "01"] for way in ("in", "out")}
    first.send_handshake(IDENTITY, msgpack.packb({"addresses": addresses, "parallel_config": {}}))


def test_it_answers_whoever_has_asked(tmp_path: Path) -> None:
    with processes(tmp_path) as (first, second), Simulator(first.address, *VLLM, "--tick-ms", 1) as simulator:
        init(first, tmp_path)
        for gateway in (first, second):
            assert gateway.registration()[0] == IDENTITY
        clients = Client(first), Client(second)
        for index, client in enumerate(clients):
            client.add(f"of {index}", [index + 1] * 20, max_tokens=10, client_index=index)
        for index, client in enumerate(clients):
            assert client.output(f"of {index}").token_ids.tolist() == [index + 1] * 10
        assert first.quiet(0.05)
        assert second.quiet(0)
        assert simulator.stop().finished == 2


def test_one_that_is_away_stops_nobody_and_finds_it_again(tmp_path: Path) -> None:
    with processes(tmp_path) as (first, second), Simulator(first.address, *VLLM, "--tick-ms", 1) as simulator:
        init(first, tmp_path)
        for gateway in (first, second):
            gateway.registration()
        client = Client(first)
        Client(second).add("endless", [1], max_tokens=8000, eos=None, ignore_eos=True, client_index=1)
        second.frames()
        second.__exit__()
        client.add("a", [1, 2], max_tokens=300, eos=None, ignore_eos=True)
        assert len(client.output("a").token_ids) == 300
        with Gateway(tmp_path / "1") as again:
            again.frames()
            while not again.reachable():
                time.sleep(0.01)  # nothing tells when a peer has connected
            again.abort("endless")
            assert simulator.until(live=0).aborted == 1


def test_all_are_told_of_its_death(tmp_path: Path) -> None:
    arguments = (*VLLM, "--dead-frame-after", 2)
    with processes(tmp_path) as (first, second), Simulator(first.address, *arguments):
        init(first, tmp_path)
        for gateway in (first, second):
            gateway.registration()
        Client(first).add("a", [1] * 20, max_tokens=10)
        for gateway in (first, second):
            while gateway.frames() != [ENGINE_DEAD]:
                pass


def test_an_engine_without_room_for_several_takes_the_first(tmp_path: Path) -> None:
    with processes(tmp_path) as (first, second), Simulator(first.address):
        init(first, tmp_path)
        assert first.registration()[0] == IDENTITY
        assert not second.reachable()
        first.add("a", [1, 2])
        assert first.answer("a").ids == [1, 2]
