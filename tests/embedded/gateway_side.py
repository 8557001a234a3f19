"""A gateway's half of the wire, small enough to read at once, and the simulator as a process to hold against it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgpack
import msgspec
import zmq

from smg_fast.embedded.simulator import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds until a test gives up on an event
ENGINE_DEAD = b"ENGINE_CORE_DEAD"

SAMPLING = (
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "thinking_budget",
    "custom_params",
    "stream_interval",
    "logit_bias",
    "seed",
    "logprobs",
    "n",
    "stop_strs",
    "stop_str_max_len",
    "is_normalized",
)
PLAIN: dict[str, Any] = {
    "max_new_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 1 << 30,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
    "n": 1,
    "stop_strs": [],
    "stop_str_max_len": 0,
    "is_normalized": True,
}


class Row(NamedTuple):
    rid: str
    ids: list[int]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    logprobs: list[float]
    logprob_ids: list[int]


class Tick(NamedTuple):
    rows: list[Row]
    trailer: list[Any]
    """Engine index, running, waiting, active pages, all pages: as many as the revision has."""


class Answer(NamedTuple):
    ids: list[int]
    finish: str
    logprobs: list[float]
    rows: list[Row]


class Gateway:
    """Binds the three sockets. A context manager; every wait ends with a ``TimeoutError`` after ``PATIENCE``."""

    def __init__(self, directory: Path, port: int | None = None, *, backlog: int = 1000) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handshake = self._context.socket(zmq.ROUTER)
        self._input = self._context.socket(zmq.ROUTER)
        self._input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._output = self._context.socket(zmq.PULL)
        self._output.setsockopt(zmq.RCVHWM, backlog)
        if port is None:
            port = self._handshake.bind_to_random_port("tcp://127.0.0.1")
        else:
            self._handshake.bind(f"tcp://127.0.0.1:{port}")
        self.port = port
        self.address = f"tcp://127.0.0.1:{port}"
        self._in, self._out = f"ipc://{directory}/in.sock", f"ipc://{directory}/out.sock"
        self._input.bind(self._in)
        self._output.bind(self._out)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.destroy(linger=0)

    def hello(self) -> tuple[bytes, dict[str, Any]]:
        """The next handshake message: identity and content."""
        _wait(self._handshake)
        identity, message = self._handshake.recv_multipart()
        return identity, msgpack.unpackb(message)

    def quiet_handshake(self) -> bool:
        return not self._handshake.poll(0)

    def send_init(self, identity: bytes) -> None:
        init = {"addresses": {"inputs": [self._in], "outputs": [self._out]}, "parallel_config": {}, "unknown": 1}
        self.send_handshake(identity, msgpack.packb(init))

    def send_handshake(self, identity: bytes, message: bytes) -> None:
        self._handshake.send_multipart([identity, message])

    def registration(self) -> tuple[bytes, dict[str, Any]]:
        _wait(self._input)
        identity, message = self._input.recv_multipart()
        return identity, msgpack.unpackb(message)

    def accept(self) -> bytes:
        """The whole handshake with the next engine."""
        identity, message = self.hello()
        assert message["status"] == "HELLO"
        self.send_init(identity)
        assert self.hello() == (identity, {**message, "status": "READY"})
        assert self.registration()[0] == identity
        return identity

    def send(self, frames: Sequence[bytes], identity: bytes = b"\0\0") -> None:
        self._input.send_multipart([identity, *frames])

    def add(
        self,
        rid: str,
        prompt: Sequence[int],
        *,
        logprobs: bool = False,
        form: str = "tagged",
        identity: bytes = b"\0\0",
        **sampling: Any,
    ) -> None:
        values = {**PLAIN, **sampling}
        if form == "tagged":
            ordered = [values.get(name) for name in SAMPLING]
            head = ["TokenizedGenerateReqInput", rid, None, None, list(prompt), ordered]
            message = [*head, logprobs, -1, 0, None, True]
        else:
            names = [*SAMPLING[:11], "ignore_eos", "seed", "n"]
            names.remove("stop")
            message = [rid, list(prompt), [values.get(name) for name in names], logprobs, True]
        self.send([b"\0", msgpack.packb(message)], identity)

    def reachable(self, identity: bytes = b"\0\0") -> bool:
        """Whether the engine's input socket is connected; tells it nothing but an abort of nobody."""
        try:
            self.send([b"\1", msgpack.packb([])], identity)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True

    def abort(self, *rids: str, identity: bytes = b"\0\0") -> None:
        self.send([b"\1", msgpack.packb(list(rids))], identity)

    def frames(self) -> list[bytes]:
        _wait(self._output)
        return self._output.recv_multipart()

    def message(self) -> bytes:
        (frame,) = self.frames()
        return frame

    def tick(self) -> Tick:
        return read(self.message())

    def rows(self) -> Iterator[Row]:
        while True:
            yield from self.tick().rows

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        return not self._output.poll(round(seconds * 1000))

    def answers(self, *rids: str) -> list[Answer]:
        """Reads until all of these have finished, and checks that the engine's own counts agree."""
        rows: dict[str, list[Row]] = {rid: [] for rid in rids}
        said = dict.fromkeys(rids, 0)
        running = set(rids)
        for row in self.rows():
            if row.rid not in rows:
                continue
            assert row.rid in running, "a row after the finish"
            rows[row.rid].append(row)
            said[row.rid] += len(row.ids)
            assert row.completion_tokens == said[row.rid]
            if row.finish:
                running.remove(row.rid)
                if not running:
                    break
        return [
            Answer(
                [token for row in rows[rid] for token in row.ids],
                rows[rid][-1].finish,
                [value for row in rows[rid] for value in row.logprobs],
                rows[rid],
            )
            for rid in rids
        ]

    def answer(self, rid: str) -> Answer:
        return self.answers(rid)[0]


def read(payload: bytes) -> Tick:
    """A tick of any revision, each of whose columns has as many rows as the first."""
    message = msgpack.unpackb(payload)
    if message and isinstance(message[0], str):
        assert message.pop(0) == "BatchTokenIDOutSlim"
    columns, trailer = message[:8], message[8:]
    assert len({len(column) for column in columns}) == 1
    return Tick([Row(*values) for values in zip(*columns, strict=True)], trailer)


class Simulator:
    """``python -m smg_fast.embedded.simulator``, or another program, with the given arguments."""

    def __init__(
        self,
        address: str,
        *arguments: str | int | float,
        log: bool = False,
        program: Sequence[str | int] = ("smg_fast.embedded.simulator",),
    ) -> None:
        command = [sys.executable, "-m", *map(str, (*program, "--handshake", address, *arguments))]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if log else None, cwd=ROOT
        )
        if log:
            self.dialing()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def dialing(self) -> None:
        """Waits for the log to say that the handshake is dialed, gateway or not."""
        assert self.process.stderr is not None
        assert b"dials" in _line(self.process.stderr)

    def counters(self) -> Counters:
        self.process.send_signal(signal.SIGUSR1)
        return self._counters()

    def until(self, **values: int) -> Counters:
        """The counters, once they have these values."""
        for _ in _patiently():
            counters = self.counters()
            if all(getattr(counters, name) == value for name, value in values.items()):
                return counters
        raise AssertionError("unreachable")

    def stop(self, number: int = signal.SIGTERM) -> Counters:
        self.process.send_signal(number)
        counters = self._counters()
        assert self.process.wait(PATIENCE) == 0
        return counters

    def _counters(self) -> Counters:
        assert self.process.stdout is not None
        return msgspec.json.decode(_line(self.process.stdout), type=Counters)


@contextlib.contextmanager
def pair(directory: Path, *arguments: str | int | float, log: bool = False) -> Iterator[tuple[Gateway, Simulator]]:
    """A gateway and a registered simulator, unpaced unless told otherwise."""
    with Gateway(directory) as gateway, Simulator(gateway.address, "--tick-ms", 0, *arguments, log=log) as simulator:
        gateway.accept()
        yield gateway, simulator


def _line(pipe: IO[bytes]) -> bytes:
    ready, _, _ = select.select([pipe], [], [], PATIENCE)
    if not ready:
        raise TimeoutError("not a word")
    return pipe.readline()


def _wait(socket: zmq.Socket[bytes]) -> None:
    if not socket.poll(round(PATIENCE * 1000)):
        raise TimeoutError("nothing came")


def _patiently() -> Iterator[None]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        os.sched_yield()
    raise TimeoutError("it did not come to that")
