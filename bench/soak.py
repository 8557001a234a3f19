"""Whether anything grows: python -m bench.soak [--seconds 3600] [--runtime vllm]

Cycles of all that clients do, on one gateway: streams and whole bodies, with logprobs and without, refused requests,
and clients that go away in the middle of an answer. After each cycle the gateway is idle again, and what it holds is
looked at. A minute has as many requests as an hour of ordinary use.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from bench.end_to_end import raise_descriptor_limit
from bench.gateways import Running, SmgFast, running
from bench.load import Clients, Load, compiled
from bench.observed import Holdings
from bench.report import aligned
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import FAMILIES

_STREAMS = 32
_PART_SECONDS = 0.5
_REFUSED = 50
_PATIENCE = 10.0
# Caches fill and the allocator finds its size in the first part of the cycles, which does not count.
_WARM_UP = 1 / 3
# What may come and go between two looks at an idle process.
_TASKS = 8
_OBJECTS = 500
_KIB = 512
_KIB_PER_REQUEST = 1 / 64


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What an idle gateway holds after so many requests."""

    requests: int
    resident_kib: int
    descriptors: int
    threads: int
    tasks: int
    objects: int


def soak(runtime: str, seconds: float, see: Callable[[Look], None] = lambda look: None) -> list[Look]:
    """Cycles for so long, and no fewer than three; each look is also given to ``see`` as it is made.

    Raises ``GatewayError`` and ``ClientsError``, and ``AssertionError`` for answers that did not come in full.
    """
    raise_descriptor_limit()
    looks: list[Look] = []
    requests = 0
    end = time.monotonic() + seconds
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        path = f"{directory}/observed"
        receiver.bind(path)
        receiver.settimeout(_PATIENCE)
        clients = Clients(compiled("clients.c", Path(directory)))
        gateway = SmgFast((sys.executable, "-m", "bench.observed", path))
        with running(gateway, runtime, MODEL_DIRECTORY, tick_ms=1) as started:
            while time.monotonic() < end or len(looks) < 3:
                requests += _cycle(clients, started)
                looks.append(_look(started, receiver, requests, looks[0] if looks else None))
                see(looks[-1])
    return looks


def growth(looks: Sequence[Look]) -> list[str]:
    """What has grown, in words; none if nothing has."""
    first, last = looks[int(len(looks) * _WARM_UP)], looks[-1]
    allowed = {
        "resident_kib": _KIB + (last.requests - first.requests) * _KIB_PER_REQUEST,
        "descriptors": 0,
        "threads": 0,
        "tasks": _TASKS,
        "objects": _OBJECTS,
    }
    requests = f"over {last.requests - first.requests} requests"
    return [
        f"{name}: from {getattr(first, name)} to {getattr(last, name)} {requests}"
        for name, most in allowed.items()
        if getattr(last, name) - getattr(first, name) > most
    ]


def _cycle(clients: Clients, started: Running) -> int:
    """Returns how many requests there were."""
    requests = 0.0
    for load in _loads(started.model):
        # When the time is up the clients go away, most of them in the middle of an answer.
        answers = clients.drive(started.port, load, _PART_SECONDS)
        assert answers.errors == 0
        requests += answers.requests + load.streams
    with clients.hold(started.port, Load(model=started.model, streams=_STREAMS, tokens=4096)) as errors:
        assert errors == 0
    for _ in range(_REFUSED):
        connection = HTTPConnection("127.0.0.1", started.port)
        connection.request("POST", "/v1/chat/completions", "{}", {"Content-Type": "application/json"})
        assert connection.getresponse().status == 400
        connection.close()
    return round(requests) + _STREAMS + _REFUSED


def _loads(model: str) -> Iterator[Load]:
    for stream in (True, False):
        for logprobs in (True, False):
            yield Load(model=model, streams=_STREAMS, tokens=16, stream=stream, logprobs=logprobs)


def _look(started: Running, receiver: socket.socket, requests: int, first: Look | None) -> Look:
    """Waits until the gateway is as idle as it was at first: it learns of clients that are gone in its own time."""
    end = time.monotonic() + _PATIENCE
    while True:
        os.kill(started.gateway.pid, signal.SIGUSR1)
        holdings = msgspec.json.decode(receiver.recv(4096), type=Holdings)
        look = Look(
            requests=requests,
            resident_kib=started.gateway.memory_kib("VmRSS"),
            descriptors=started.gateway.descriptors(),
            threads=started.gateway.threads(),
            tasks=holdings.tasks,
            objects=holdings.objects,
        )
        is_idle = first is None or (look.descriptors <= first.descriptors and look.tasks <= first.tasks)
        if is_idle or time.monotonic() > end:
            return look
        time.sleep(0.1)  # nothing tells when the gateway has seen its last client go


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", choices=FAMILIES, default="tokenspeed", help="[default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=60.0, help="[default: %(default)g]")
    arguments = parser.parse_args()
    looks = soak(arguments.runtime, arguments.seconds, lambda look: print(look, file=sys.stderr, flush=True))
    fields = Look.__struct_fields__
    print("\n".join(aligned([fields, *([f"{getattr(look, name)}" for name in fields] for look in looks)])))
    grown = growth(looks)
    if grown:
        sys.exit("\n".join(grown))
    print("nothing grows")


if __name__ == "__main__":
    main()
