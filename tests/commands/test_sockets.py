"""Where ``smg-fast serve`` puts its sockets, and what it clears away."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg_fast.transport import AddressError, worker_addresses
from smg_fast.transport.addresses import handshake_port, unused_worker_url
from smg_fast.transport.socket_directory import clear_left_workers, process_name, user_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


def listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def left_by(pid: int, directory: Path, kind: str = "simulator") -> set[Path]:
    """Sockets that nobody listens on any more, and what was written down beside them."""
    sockets = {directory / f"{kind}-{pid}-{way}.sock" for way in ("in", "out")}
    for path in sockets:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    engines = directory / f"{kind}-{pid}-engines.json"
    engines.touch()
    return {*sockets, engines}


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_directory_is_the_one_that_is_named_or_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_ZMQ_SOCKET_DIR", "/run/zmq")
    assert user_directory() == Path("/run/zmq")
    monkeypatch.delenv("SMG_ZMQ_SOCKET_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert user_directory() == Path(tempfile.gettempdir(), f"smg-fast-{os.getuid()}")


def test_the_handshake_port_follows_from_the_path() -> None:
    url = unused_worker_url(Path("/tmp/zs/e1"))
    assert (url, worker_addresses(url).handshake) == ("ipc:///tmp/zs/e1", "tcp://127.0.0.1:21126")


def test_a_path_whose_port_is_taken_is_left_for_one_beside_it() -> None:
    with listen(21126):
        url = unused_worker_url(Path("/tmp/zs/e1"))
    assert url == "ipc:///tmp/zs/e1-1"
    assert worker_addresses(url).handshake == f"tcp://127.0.0.1:{handshake_port('/tmp/zs/e1-1')}"


def test_with_no_path_left_the_ports_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg_fast.transport.addresses._ATTEMPTS", 2)
    ports = [handshake_port(path) for path in ("/tmp/zs/e1", "/tmp/zs/e1-1")]
    with (
        listen(ports[0]),
        listen(ports[1]),
        pytest.raises(AddressError, match=f"{ports[0]}, {ports[1]}, ... are taken"),
    ):
        unused_worker_url(Path("/tmp/zs/e1"))


def test_what_killed_processes_have_left_is_cleared_away_and_nothing_else(directory: Path, dead: int) -> None:
    left = left_by(dead, directory)
    (directory / f"simulator-{dead}-3-in.sock").touch()  # no socket
    left_by(os.getpid(), directory)
    left_by(dead, directory, kind="engine-of-mine")
    (directory / f"vllm-{dead}-engines.json").touch()
    with socket.socket(socket.AF_UNIX) as elsewhere:  # as in a container, whose processes are not seen here
        elsewhere.bind(str(directory / f"vllm-{dead}-in.sock"))
        elsewhere.listen()
        before = set(directory.iterdir())
        assert clear_left_workers(directory) == [directory / f"simulator-{dead}"]
        assert before - set(directory.iterdir()) == left


def test_the_name_of_a_process_is_one_that_is_cleared_away(directory: Path) -> None:
    assert process_name("vllm") == f"vllm-{os.getpid()}"
    assert clear_left_workers(directory / "missing") == []
