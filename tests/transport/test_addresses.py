"""From a worker's URL to its sockets."""

from __future__ import annotations

import re

import pytest

from smg_fast.transport import AddressError, check_own_host, worker_addresses


@pytest.mark.parametrize(("url", "port"), [("ipc:///tmp/zs/e1", 21126), ("ipc:///tmp/smg-zmq-0/engine-31000", 27937)])
def test_default_handshake_port_follows_from_the_path(url: str, port: int) -> None:
    assert worker_addresses(url).handshake == f"tcp://127.0.0.1:{port}"


def test_sockets_are_named_after_the_path() -> None:
    addresses = worker_addresses("ipc:///run/user/1/smg/e1")
    assert addresses.input_endpoint == "ipc:///run/user/1/smg/e1-in.sock"
    assert addresses.output_endpoint == "ipc:///run/user/1/smg/e1-out.sock"


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:30500", "tcp://localhost:1", "tcp://0.0.0.0:65535", "tcp://*:30500"]
)
def test_handshake_address_can_be_given(address: str) -> None:
    assert worker_addresses("ipc:///tmp/e", address).handshake == address
    check_own_host(address)


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:30500", "tcp://a..b:1", f"tcp://{'x' * 64}:1"])
def test_a_handshake_on_another_host_is_told(address: str) -> None:
    host = address.removeprefix("tcp://").rpartition(":")[0]
    assert worker_addresses("ipc:///tmp/e", address).handshake == address
    with pytest.raises(AddressError, match=re.escape(f"{address!r}: {host} is no address of this host")):
        check_own_host(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:30500", "ipc:///tmp/h", "tcp://127.0.0.1", "tcp://:30500", "tcp://h:0", "tcp://h:65536"),
        *("tcp://h:1/x", "tcp://h:http", "tcp://h:+1", "tcp://h:1_0", "tcp://h:1 0", "tcp://h:1\n0", "tcp://h:"),
        *("tcp://[::1]:1", "tcp://::1:1", "tcp://h :1", "tcp://u@h:1", "tcp://lo;h:1", "TCP://h:1", "tcp://h:٣"),
        f"tcp://h:{'9' * 5000}",
    ],
)
def test_a_handshake_that_is_no_tcp_address_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="tcp://HOST:PORT"):
        worker_addresses("ipc:///tmp/e", address)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:5000", "http://127.0.0.1:5000", "/tmp/e", "unix:///tmp/e", ""])
def test_only_ipc_is_accepted(url: str) -> None:
    with pytest.raises(AddressError, match="only ipc://"):
        worker_addresses(url)


@pytest.mark.parametrize("url", ["ipc://e1", "ipc://@abstract", "ipc://", "ipc://*"])
def test_the_path_must_be_absolute(url: str) -> None:
    with pytest.raises(AddressError, match="absolute"):
        worker_addresses(url)


@pytest.mark.parametrize(
    "url", ["ipc:///tmp/a\nb", "ipc:///tmp/a\x1b[2J", "ipc:///tmp/a\u2028b", "ipc:///tmp/a\udcffb"]
)
def test_a_path_that_cannot_be_printed_is_refused(url: str) -> None:
    with pytest.raises(AddressError, match="must be printable"):
        worker_addresses(url)


@pytest.mark.parametrize("character", "?#%\\")
def test_a_path_that_a_url_would_not_have_is_refused(character: str) -> None:
    with pytest.raises(AddressError, match=re.escape(f"cannot be in it, got {f'/tmp/a{character}b'!r}")):
        worker_addresses(f"ipc:///tmp/a{character}b")


@pytest.mark.parametrize("url", ["ipc:///tmp/dir/", "ipc:///tmp/a\0b"])
def test_the_path_must_name_a_file(url: str) -> None:
    with pytest.raises(AddressError, match="must name a file"):
        worker_addresses(url)


def test_a_path_too_long_for_a_unix_socket_is_refused_with_its_length() -> None:
    suffix = len("-out.sock")
    fits = "/tmp/" + "ü" * ((107 - suffix - 5) // 2)
    assert len(f"{fits}-out.sock".encode()) in (106, 107)
    worker_addresses(f"ipc://{fits}")
    with pytest.raises(AddressError, match=r"108 bytes, 1 more than a Unix socket can have"):
        worker_addresses("ipc:///tmp/" + "x" * (108 - suffix - 5))
