"""The measuring of whole gateways measures what it says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.end_to_end import measure
from bench.gateways import Floor, Gateway, SmgFast
from bench.load import Clients, Load, compiled
from bench.scenarios import Scenario
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import FAMILIES

SECONDS = 0.5


@pytest.fixture(scope="session")
def floor(programs: Path) -> Floor:
    return Floor(compiled("floor.c", programs))


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives this answer to whatever comes, and closes the connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("runtime", FAMILIES)
@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_gateway_is_measured(clients: Clients, runtime: str, stream: bool, logprobs: bool) -> None:
    scenario = Scenario(streams=8, tokens=16, stream=stream, logprobs=logprobs)
    figures = measure(SmgFast(), runtime, MODEL_DIRECTORY, clients, scenario, SECONDS)
    assert figures.errors == 0
    # The engine has a clock: no more than a token every 10 ms for each stream.
    assert figures.tokens_per_second is not None
    assert 0 < figures.tokens_per_second < 1.2 * 800
    assert figures.cpu_us is not None
    assert figures.request_ms == pytest.approx(figures.cpu_us * 16 / 1000)
    assert (figures.gap_p50 is not None) == stream
    assert figures.first_p50 is not None
    assert figures.first_p50 > (0 if stream else 15 * 10 / 2)


def test_idle_streams_are_measured_for_their_memory(clients: Clients) -> None:
    scenario = Scenario(streams=64, tick_ms=300, idle=True)
    figures = measure(SmgFast(), "tokenspeed", MODEL_DIRECTORY, clients, scenario, SECONDS)
    assert figures.errors == 0
    assert figures.cpu_us is None
    assert figures.kib_per_stream is not None
    assert figures.kib_per_stream < 64


def test_the_floor_sends_a_token_at_each_tick(clients: Clients, floor: Gateway) -> None:
    scenario = Scenario(streams=8, tokens=16)
    figures = measure(floor, "tokenspeed", MODEL_DIRECTORY, clients, scenario, SECONDS)
    assert figures.errors == 0
    assert figures.engine_cores is None
    assert figures.tokens_per_second is not None
    assert 0 < figures.tokens_per_second < 1.2 * 800


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy", "HTTP/1.1 503 Service Unavailable busy"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{"content": "half', "the connection ended before the answer"),
        (
            (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"5\r\ndata:\r\n0\r\n\r\n"
            ),
            "the answer broke off",
        ),
    ],
    ids=["refused", "closed", "without its last event"],
)
def test_what_is_not_answered_in_full_is_an_error(
    clients: Clients, capfd: pytest.CaptureFixture[str], answer: bytes, why: str
) -> None:
    with answering(answer) as port:
        answers = clients.drive(port, Load(model="m", streams=3), SECONDS)
    assert (answers.errors, answers.requests, answers.tokens) == (3, 0, 0)
    assert capfd.readouterr().err.count(why) == 3
