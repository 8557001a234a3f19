"""A stream that is written to its connection without its sink: what a client at the other end reads."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg_fast._codec import Connection, Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from tests.codec.client import Client
from tests.codec.ticks import Row, tick

CHAT = ResponseFormat.chat(id="chatcmpl-1", model="m", created=7, stream=True)
BODY = ResponseFormat.chat(id="chatcmpl-1", model="m", created=7, stream=False)
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The gateway's end of a connection, and its client's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


class Stream(Client):
    """A response on a connection. ``raw`` is what is left to its sink."""

    def begin(self, ours: socket.socket | None, *, chunked: bool = True, format: ResponseFormat = CHAT) -> int:
        connection = Connection(HEAD, fd=None if ours is None else ours.fileno(), chunked=chunked)
        prompts = [Prompt(TokenIds([1]))]
        return self.dispatcher.open(self, format, self.tokenizer, TextOptions(), ["r"], prompts, connection)

    def say(self, text: str, finish: str = "") -> None:
        self.feed(tick(Row("r", self.tokenizer.encode(text).tolist(), finish)))


@pytest.fixture
def stream(tokenizer: Tokenizer) -> Stream:
    return Stream(tokenizer)


def received(theirs: socket.socket) -> bytes:
    """All that is there now."""
    data = b""
    try:
        while part := theirs.recv(1 << 20):
            data += part
    except BlockingIOError:
        pass
    return data


def unchunk(body: bytes) -> tuple[bytes, bool]:
    """The data in a chunked body, and whether it has ended."""
    data = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        assert rest[count : count + 2] == b"\r\n"
        if not count:
            assert rest == b"\r\n"
            return data, True
        data, body = data + rest[:count], rest[count + 2 :]
    return data, False


def answer(data: bytes) -> tuple[str, bool]:
    """The text in what a client has read, and whether the answer has ended."""
    assert data.startswith(HEAD)
    events, ended = unchunk(data.removeprefix(HEAD))
    reader = Client.__new__(Client)
    reader.raw = events
    return reader.text(), ended


def test_the_whole_answer_reaches_the_connection_and_none_of_it_the_sink(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    stream.begin(ours)
    assert received(theirs) == b""
    stream.say("one")
    data = received(theirs)
    assert answer(data) == ("one", False)
    stream.say(" two")
    stream.say(" three", "stop")
    data += received(theirs)
    assert answer(data) == ("one two three", True)
    assert data.count(HEAD) == 1
    assert (stream.raw, stream.end, stream.error) == (b"", b"", None)


def test_what_the_connection_does_not_take_is_the_sinks_in_order(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    key = stream.begin(ours)
    said = 0
    while not stream.raw:
        stream.say(" and" * 200)
        said += 200
    # From here on the socket is left alone, even when it has room.
    data = received(theirs)
    stream.say(" then")
    assert received(theirs) == b""
    data += stream.raw
    assert answer(data) == (" and" * said + " then", False)
    stream.raw = b""
    stream.dispatcher.pause(key)
    stream.say(" later")
    assert stream.dispatcher.resume(key) is None
    data += received(theirs)
    assert answer(data) == (" and" * said + " then later", False)
    stream.say("!", "stop")
    assert stream.end == b""
    assert answer(data + received(theirs)) == (" and" * said + " then later!", True)


def test_an_answer_that_ends_while_its_reader_is_slow_ends_by_the_sink(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    key = stream.begin(ours)
    while not stream.raw:
        stream.say(" and" * 200)
    stream.dispatcher.pause(key)
    data = received(theirs)
    stream.say(" so", "stop")
    assert received(theirs) == b""
    text, ended = answer(data + stream.raw)
    assert text.endswith(" and so")
    assert ended


def test_a_connection_that_is_gone_leaves_everything_to_the_sink(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    stream.begin(ours)
    theirs.close()
    stream.say("one")
    assert answer(stream.raw) == ("one", False)


def test_without_a_descriptor_the_sink_writes_it_all(stream: Stream) -> None:
    stream.begin(None)
    stream.say("one")
    assert answer(stream.raw) == ("one", False)
    stream.say(" two", "stop")
    assert answer(stream.raw) == ("one two", True)


def test_without_chunks_the_events_come_as_they_are(stream: Stream, ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    stream.begin(ours, chunked=False)
    stream.say("one", "stop")
    data = received(theirs)
    assert data.startswith(HEAD + b"data: {")
    assert data.endswith(b"data: [DONE]\n\n")


def test_a_descriptor_that_is_closed_and_used_anew_is_not_written_to(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    stream.begin(ours)
    number = ours.fileno()
    ours.close()
    other, others_client = socket.socketpair()
    with other, others_client:
        others_client.setblocking(False)
        assert number in (other.fileno(), others_client.fileno())
        stream.say("secret", "stop")
        assert answer(received(theirs)) == ("secret", True)
        assert received(others_client) == b""


@pytest.mark.parametrize("begun", [False, True])
def test_a_failure_tells_whether_something_has_been_sent(
    stream: Stream, ends: tuple[socket.socket, socket.socket], begun: bool
) -> None:
    stream.begin(ends[0])
    if begun:
        stream.say("one")
    (ended,) = stream.dispatcher.fail(["r"], "the engine is gone").ended
    assert ended == (stream, b"" if begun else None, "the engine is gone")


def test_a_body_does_not_go_to_the_connection(stream: Stream, ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    stream.begin(ours, format=BODY)
    stream.say("one", "stop")
    assert received(theirs) == b""
    assert stream.body["choices"][0]["message"]["content"] == "one"


def test_a_negative_descriptor_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Connection(HEAD, fd=-1, chunked=True)


def test_a_descriptor_that_cannot_be_duplicated_leaves_everything_to_the_sink(
    stream: Stream, ends: tuple[socket.socket, socket.socket]
) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    spent: list[int] = []
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, most[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                spent.append(os.dup(0))
        stream.begin(ends[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        for descriptor in spent:
            os.close(descriptor)
    stream.say("one", "stop")
    assert answer(stream.raw) == ("one", True)
