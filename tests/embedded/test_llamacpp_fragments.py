"""Which tokens llama.cpp can have kept to itself, from the text that it sent."""

from __future__ import annotations

import pytest

from smg_fast.embedded.llamacpp.fragments import Fragments

ROBOT = "🤖".encode()
WHOLE = {1: b"a", 2: b" b", 3: "é".encode(), 4: b""}
BYTES = {256 + byte: bytes([byte]) for byte in range(128, 256)}
PARTS = {1000: ROBOT[:2], 1001: ROBOT[:3], 1002: b" " + ROBOT[:3], 1003: ROBOT[1:3]}


@pytest.fixture(scope="module")
def fragments() -> Fragments:
    return Fragments(WHOLE | BYTES | PARTS)


def byte(index: int) -> int:
    return 256 + ROBOT[index]


@pytest.mark.parametrize(
    ("last", "text", "count", "expected"),
    [
        (byte(3), "🤖", 1, [1001]),
        (byte(3), "🤖", 2, [1000, byte(2)]),
        (byte(3), "🤖", 3, [byte(0), byte(1), byte(2)]),
        (byte(3), " 🤖", 1, [1002]),
        (256 + 0xA9, "é", 1, [256 + 0xC3]),
    ],
)
def test_they_spell_the_text(fragments: Fragments, last: int, text: str, count: int, expected: list[int]) -> None:
    assert fragments.before(last, text, count) == expected


def test_bytes_that_are_no_text_become_tokens_that_are_none_either(fragments: Fragments) -> None:
    assert fragments.before(1, " \ufffda", 1) == [1002]
    pieces = WHOLE | BYTES | PARTS
    for count in range(1, 7):
        ids = fragments.before(1, "\ufffda", count)
        assert ids is not None
        assert len(ids) == count
        assert set(b"".join(pieces[id] for id in ids).decode(errors="replace")) == {"\ufffd"}


def test_where_there_are_none_it_says_so() -> None:
    assert Fragments(WHOLE).before(1, "🤖a", 2) is None
