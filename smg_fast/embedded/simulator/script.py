"""What the simulator says, decided in full when a request comes: there is no model to ask."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smg_fast.embedded.wire.messages import FinishReason, Sampling


class TurnMarkers(msgspec.Struct, frozen=True):
    """How a chat template marks turns, as token ids: ``<start>role<separator>content<end>``."""

    start: int
    end: int
    separators: tuple[int, ...] = ()
    """Any of these ends the role line; without them the role belongs to the content."""


def last_turn(prompt: Sequence[int], markers: TurnMarkers | None) -> list[int]:
    """Content of the last finished turn of a prompt, or the whole prompt where there is none (a plain completion)."""
    ids = list(prompt)
    if markers is None or markers.end not in ids:
        return ids
    end = len(ids) - 1 - ids[::-1].index(markers.end)
    begin = next((i + 1 for i in range(end - 1, -1, -1) if ids[i] == markers.start), 0)
    for i in range(begin, end):
        if ids[i] in markers.separators:
            return ids[i + 1 : end]
    return ids[begin:end]


def write_script(
    source: Sequence[int], sampling: Sampling, eos_token_ids: Sequence[int], room: int, end: int | None = None
) -> tuple[list[int], FinishReason]:
    """The token ids of one generation and how it ends.

    The source is said once and followed by ``end``; where EOS is ignored, ``min_new_tokens`` asks for more, or ``end``
    is no stop, it is said again. A stop token is the last one said. Before ``min_new_tokens`` stop tokens are passed
    over, as an engine masks them. Without any EOS token the end of the source is a stop of its own.

    Parameters
    ----------
    source
        What to say.
    eos_token_ids
        What the generation stops at, besides the stop tokens of ``sampling``.
    room
        Tokens that the context has left.
    end
        What a model says at its end. None: the first of ``eos_token_ids``.
    """
    limit = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
    stops = set(sampling.stop_token_ids or ())
    if not sampling.ignore_eos:
        stops.update(eos_token_ids)
    least = sampling.min_new_tokens
    endless = sampling.ignore_eos or least > 0
    if endless and stops.issuperset(source):
        source = [*source, next(token for token in itertools.count() if token not in stops)]

    script: list[int] = []
    if end is None and eos_token_ids:
        end = eos_token_ids[0]
    for token in _sayings(source, end, ends=not sampling.ignore_eos):
        if len(script) >= limit:
            return script, "length"
        if token is None:
            if len(script) >= least:
                return script, "stop"
        elif token not in stops:
            script.append(token)
        elif len(script) >= least:
            return [*script, token], "stop"
    raise AssertionError("the sayings have no end")


def _sayings(source: Sequence[int], end: int | None, *, ends: bool) -> Iterator[int | None]:
    """The source over and over; between two times the end, None for one without a token."""
    while True:
        yield from source
        if ends:
            yield end
