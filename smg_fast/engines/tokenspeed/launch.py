"""How a TokenSpeed engine is started so that it dials a gateway.

``tokenspeed serve --headless`` starts an engine without a server, which dials the data-parallel address under the
identity ``--zmq-engine-index``. The facts are those of TokenSpeed's and smg's published sources of August 2026; it was
never run here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from ..launch import LaunchError, Program, option_names, option_value, refuse_options, size

#: Names an interpreter that has TokenSpeed.
PYTHON_VARIABLE = "SMG_FAST_TOKENSPEED_PYTHON"

_PROGRAM = Program("tokenspeed", "tokenspeed.cli", PYTHON_VARIABLE, "--tokenspeed-python")
_SERVER = "means nothing here: engines start without a server"
_DIAL = "is decided here, by the gateway"
_PORTS = "is decided here, so that no two engines have the same ports"
_HOSTS = "means nothing here: engines start on this host alone"
_REFUSED = {
    "--headless": _SERVER,
    "--control-port": _SERVER,
    "--engine-startup-timeout": _SERVER,
    "--gateway-startup-timeout": _SERVER,
    "--drain-timeout": _SERVER,
    "--zmq-msgpack": _DIAL,
    "--no-zmq-msgpack": _DIAL,
    "--zmq-engine-index": _DIAL,
    "--data-parallel-address": _DIAL,
    "--data-parallel-rpc-port": _DIAL,
    "--data-parallel-size": "is for engines that share a model's parts: start such a group on its own, for smg-fast "
    "launch --engine-count; --dp-size starts engines that are each complete",
    "--port": _PORTS,
    "--dist-init-addr": _PORTS,
    "--nnodes": _HOSTS,
    "--node-rank": _HOSTS,
}

#: An engine's other ports begin so far above its ``--port``, with that of its distributed store.
STORE_OFFSET = 233
#: How many there are, with those it takes instead if one is in use: some 10 more each time.
_CLUSTER = 20
#: Where engines' ports lie: above those of handshakes (20000 to 29999) and below those that Linux gives away.
_FIRST_PORT, _LAST_PORT = 30000, 32767
#: From one engine's ports to the next one's: no multiple of it, nor any up to ``_CLUSTER`` below, is ``STORE_OFFSET``.
_STEP = 32


def launch_command(
    model: str, handshake: str, options: Sequence[str], *, rank: int = 0, port: int, python: str | None = None
) -> list[str]:
    """The command line of an engine for a model's directory.

    Without options that say otherwise it enforces constraints and tells logprobs: by default TokenSpeed passes over
    the former, and refuses requests for the latter.

    Parameters
    ----------
    handshake
        ``tcp://HOST:PORT`` that the engine shall dial.
    options
        Of ``tokenspeed serve``.
    rank
        The engine's index.
    port
        See ``engine_ports``.
    python
        Interpreter that has TokenSpeed, unless ``SMG_FAST_TOKENSPEED_PYTHON`` names it, ``tokenspeed`` is on the
        ``PATH``, or this interpreter has it.

    Raises
    ------
    LaunchError
        There is no TokenSpeed, or the options have one that is decided here, or that makes the engine pass over
        constraints.
    """
    refuse_options(options, _REFUSED)
    if option_value(options, "--grammar-backend") == "none":
        raise LaunchError("--grammar-backend none would have the engine pass over the constraints of requests")
    given = set(option_names(options))
    defaults = [] if "--grammar-backend" in given else ["--grammar-backend", "xgrammar"]
    defaults += [] if "--enable-output-logprobs" in given else ["--enable-output-logprobs"]
    address = urlsplit(handshake)
    return [
        *_PROGRAM.command(python),
        *("serve", "--headless", "--model", model),
        *("--port", str(port), "--dist-init-addr", f"127.0.0.1:{port + STORE_OFFSET}"),
        *("--data-parallel-address", str(address.hostname), "--data-parallel-rpc-port", str(address.port)),
        *("--zmq-engine-index", str(rank)),
        *defaults,
        *options,
    ]


def gpus_per_rank(options: Sequence[str]) -> int:
    """GPUs that one engine takes with these options. Raises ``LaunchError`` for a size that is none."""
    if option_value(options, "--world-size") is not None:
        return size(options, "--world-size")
    attention = size(options, "--tensor-parallel-size", "--tp", "--attn-tp-size")
    return attention * size(options, "--pipeline-parallel-size")


def engine_ports(count: int, seed: int) -> list[int]:
    """A ``--port`` for each of some engines, such that none of the ports that follow from it is another one's.

    All are free now. ``seed`` is where the search begins, so that two gateways do not come upon the same at once.

    Raises
    ------
    LaunchError
        There are not as many.
    """
    ports: list[int] = []
    for port in _candidates(seed):
        if len(ports) == count:
            break
        if all(_is_free(each) for each in (port, *range(port + STORE_OFFSET, port + STORE_OFFSET + _CLUSTER))):
            ports.append(port)
    if len(ports) < count:
        raise LaunchError(
            f"{count} engines need ports of their own, and from {_FIRST_PORT} to {_LAST_PORT} only those for "
            f"{len(ports)} are free"
        )
    return ports


def _candidates(seed: int) -> Iterator[int]:
    ports = range(_FIRST_PORT, _LAST_PORT - STORE_OFFSET - _CLUSTER, _STEP)
    for place in range(len(ports)):
        yield ports[(seed + place) % len(ports)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
