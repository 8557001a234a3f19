"""Clients of a gateway: ``clients.c``, in a process of its own, and what it found."""

from __future__ import annotations

import json
import shutil
import subprocess
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked for: ``streams`` chats at a time, each answered with exactly ``tokens`` tokens."""

    model: str
    streams: int
    tokens: int = 128
    stream: bool = True
    logprobs: bool = False
    prompt: str = "What is the capital of France? " * 8

    def request(self) -> bytes:
        """As it goes over the wire."""
        body = {
            "model": self.model,
            "max_tokens": self.tokens,
            "stream": self.stream,
            "logprobs": self.logprobs,
            "temperature": 0,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": self.prompt}],
        }
        encoded = json.dumps(body).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(encoded), encoded)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What came back while it was counted. Times are in seconds.

    Attributes
    ----------
    elapsed
        For how long.
    cpu_seconds
        What the clients themselves used.
    requests, tokens
        Answered. What was answered in part counts in part.
    errors
        Requests that were not answered in full, since the beginning.
    first
        From a request to its first token, or to its whole body.
    gaps
        Between two arrivals at one connection.
    """

    elapsed: float
    cpu_seconds: float
    requests: float
    tokens: float
    errors: int
    first: array[float]
    gaps: array[float]


class ClientsError(Exception):
    """The clients could not even connect. What they say of it is on standard error."""


@dataclass(frozen=True)
class Clients:
    """The program."""

    program: Path

    def drive(self, port: int, load: Load, seconds: float, counting: Callable[[], None] = lambda: None) -> Answers:
        """Put a load on a gateway of this machine. Once it is steady, ``counting`` is called and so many seconds count.

        Raises ``ClientsError``, as ``hold`` does.
        """
        with self._started(port, load, f"{seconds}") as output:
            _words(output, "begin")
            counting()
            elapsed, cpu_seconds, requests, tokens, errors, *counts = _words(output, "end")
            first, gaps = array("d"), array("d")
            for samples, count in zip((first, gaps), counts, strict=True):
                samples.frombytes(output.read(int(count) * samples.itemsize))
        return Answers(
            elapsed=float(elapsed),
            cpu_seconds=float(cpu_seconds),
            requests=float(requests),
            tokens=float(tokens),
            errors=int(errors),
            first=first,
            gaps=gaps,
        )

    @contextmanager
    def hold(self, port: int, load: Load) -> Iterator[int]:
        """Open the streams, wait for the first token of each, and keep them open; leaving closes them.

        Yields how many are not there for an error.
        """
        with self._started(port, load, "hold") as output:
            (errors,) = _words(output, "held")
            yield int(errors)

    @contextmanager
    def _started(self, port: int, load: Load, seconds: str) -> Iterator[IO[bytes]]:
        arguments = (f"{port}", f"{load.streams}", f"{load.tokens}", seconds, load.request())
        process = subprocess.Popen([self.program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        with process, process.stdin:
            yield process.stdout


def _words(output: IO[bytes], first: str) -> list[str]:
    """Those of the next line, which begins so, after the first."""
    line = output.readline().decode().split()
    if line[:1] != [first]:
        raise ClientsError("the clients ended too early; what they said of it is above")
    return line[1:]


def compiled(source: str, directory: Path) -> Path:
    """A program of this folder in C, compiled into a directory. Ends the process where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("the benchmarks of whole gateways need a C compiler, and there is no cc on the PATH")
    program = directory / Path(source).stem
    subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name(source)], check=True)
    return program
