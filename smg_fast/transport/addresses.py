"""From a worker's URL to the addresses of its three sockets."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import msgspec

from ..names import UnfitNameError, check_path
from .errors import AddressError

_IPC = "ipc://"
#: ZeroMQ takes any beginning of a port that is a number, and would bind another one.
_HANDSHAKE = re.compile(r"tcp://([A-Za-z0-9._-]+|\*):([0-9]{1,18})")
_MAX_PORT = 65535
#: Bytes of a Unix socket's path: ``sun_path`` has 108, with the NUL.
_MAX_PATH = 107

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_FIRST_PORT, _PORTS = 20000, 10000
#: Paths tried for one whose handshake port is free.
_ATTEMPTS = 100


class WorkerAddresses(msgspec.Struct, frozen=True):
    """ZeroMQ endpoints that the gateway binds for one worker.

    Attributes
    ----------
    input, output : Path
        Unix sockets that engines take requests from, and send their output to.
    handshake : str
        ``tcp://HOST:PORT``: where engines say hello.
    """

    input: Path
    output: Path
    handshake: str

    def of_process(self, process: int) -> WorkerAddresses:
        """Those of one of several gateway processes; the first has these. Raises ``AddressError`` as the others do."""
        if not process:
            return self
        # The names of no other worker: those end with -in.sock.
        own = f".{process}.sock"
        return _checked_length(
            msgspec.structs.replace(self, input=self.input.with_suffix(own), output=self.output.with_suffix(own))
        )

    @property
    def input_endpoint(self) -> str:
        return f"{_IPC}{self.input}"

    @property
    def output_endpoint(self) -> str:
        return f"{_IPC}{self.output}"


def worker_addresses(url: str, handshake: str | None = None) -> WorkerAddresses:
    """Addresses of the worker at ``ipc://PATH``. Nothing is bound or created.

    ``handshake`` overrides the address whose port follows from ``PATH``.

    Raises
    ------
    AddressError
        Another scheme, a path that is not absolute, too long for a socket or no path of a URL, a handshake that is not
        ``tcp://HOST:PORT``.
    """
    if not url.startswith(_IPC):
        raise AddressError(f"worker URL {url!r}: only {_IPC}PATH is understood")
    path = url.removeprefix(_IPC)
    if not path.startswith("/"):
        # Engines would look for a relative path from another directory, and "@name" is not a file.
        raise AddressError(f"worker URL {url!r}: the path must be absolute, like ipc:///run/user/1000/smg/engine")
    if path.endswith("/") or "\0" in path:
        raise AddressError(f"worker URL {url!r}: the path must name a file")
    try:
        check_path(path)
    except UnfitNameError as error:
        raise AddressError(f"worker URL: {error}") from None
    addresses = WorkerAddresses(
        input=Path(f"{path}-in.sock"),
        output=Path(f"{path}-out.sock"),
        handshake=f"tcp://127.0.0.1:{handshake_port(path)}" if handshake is None else _checked_handshake(handshake),
    )
    return _checked_length(addresses)


def check_own_host(handshake: str) -> None:
    """Raises ``AddressError`` unless the host of a handshake address is this one. A name may have to be asked for."""
    host = handshake.removeprefix("tcp://").rpartition(":")[0]
    if host == "*":
        return
    try:
        [(*_, address), *_] = socket.getaddrinfo(host, 0, socket.AF_INET, socket.SOCK_STREAM)
        with socket.socket() as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise AddressError(
            f"handshake address {handshake!r}: {host} is no address of this host ({why}); give one of its own IPv4 "
            "addresses, or tcp://*:PORT for all"
        ) from None


def handshake_port(path: str) -> int:
    """Port that belongs to a worker's path: 20000 to 29999, from the 64-bit FNV-1a hash of its bytes."""
    hash = _FNV_OFFSET
    for byte in os.fsencode(path):
        hash = (hash ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return _FIRST_PORT + hash % _PORTS


def unused_worker_url(path: Path) -> str:
    """URL of a worker at ``path``, or at ``path-1``, ``path-2`` ..., such that its handshake port is free now.

    Raises
    ------
    AddressError
        The ports of all that were tried are taken.
    """
    taken = []
    for attempt in range(_ATTEMPTS):
        candidate = f"{path}-{attempt}" if attempt else str(path)
        port = handshake_port(candidate)
        if _is_free(port):
            return f"{_IPC}{candidate}"
        taken.append(port)
    raise AddressError(
        f"no worker URL at {path} or beside it: the handshake ports {taken[0]}, {taken[1]}, ... are taken"
    )


def _is_free(port: int) -> bool:
    """Whether nobody listens on it; as ZeroMQ binds, which ports of closed connections do not stop."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _checked_length(addresses: WorkerAddresses) -> WorkerAddresses:
    length = len(os.fsencode(addresses.output))
    if length > _MAX_PATH:
        raise AddressError(
            f"the socket {addresses.output} would have a path of {length} bytes, {length - _MAX_PATH} more than a Unix "
            "socket can have; choose a shorter worker URL"
        )
    return addresses


def _checked_handshake(address: str) -> str:
    expected = f"handshake address {address!r}: expected tcp://HOST:PORT, with "
    found = _HANDSHAKE.fullmatch(address)
    if found is None:
        raise AddressError(f"{expected}a name of this host, an IPv4 address or *, and a port from 1 to {_MAX_PORT}")
    if not 1 <= int(found[2]) <= _MAX_PORT:
        raise AddressError(f"{expected}a port from 1 to {_MAX_PORT}, got {found[2]}")
    return address
