"""TokenSpeed output messages for tests, packed by the ``msgpack`` package."""

from __future__ import annotations

from typing import NamedTuple

import msgpack


class Row(NamedTuple):
    """One generation's share of a tick."""

    rid: str
    ids: list[int]
    finish: str = ""
    logprobs: list[float] | None = None
    prompt_tokens: int = 1
    completion_tokens: int = 0
    cached_tokens: int = 0


def tick(*rows: Row) -> list[bytes]:
    """The frames of one tagged message with 14 elements."""
    message = [
        "BatchTokenIDOutSlim",
        [row.rid for row in rows],
        [row.ids for row in rows],
        [row.finish for row in rows],
        [row.prompt_tokens for row in rows],
        [row.completion_tokens for row in rows],
        [row.cached_tokens for row in rows],
        [row.logprobs or [] for row in rows],
        [row.ids if row.logprobs else [] for row in rows],
        0,
        len(rows),
        0,
        10,
        100,
    ]
    return [msgpack.packb(message)]
