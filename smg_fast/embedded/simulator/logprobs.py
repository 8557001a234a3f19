"""Made-up logprobs: functions of a token and its place, so that a test can foretell them."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from smg_fast.embedded.wire import LogprobRows

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANKS = 7  # a token is among so many likeliest


def token_logprobs(token_ids: Sequence[int], position: int) -> list[float]:
    """A made-up logprob for each token, in (-9.2, 0): a function of the id and of the place among the generated tokens.

    The values use all 53 bits of their mantissa, so that a place where they are narrowed shows.
    """
    return [
        math.log1p(-((token * 2654435761 + place * 40503) % 9000 + 1) / 9002)
        for place, token in enumerate(token_ids, position)
    ]


def logprob_rows(token_ids: Sequence[int], position: int, alternatives: int, vocab_size: int = 1 << 31) -> LogprobRows:
    """Made-up rows for tokens that begin at a place: each token, then as many of the likeliest as are asked for.

    In each row the probabilities fall by the same factor from rank to rank. A token has a rank of 1 to 7, so that it is
    often among the alternatives and often not. Values are exact in 32 bits.
    """
    ids: list[list[int]] = []
    values: list[list[float]] = []
    ranks: list[int] = []
    count = min(alternatives, vocab_size)
    for place, token in enumerate(token_ids, position):
        mixed = token * 2654435761 + place * 40503
        rank = 1 + mixed % min(_RANKS, token + 1)
        factor = 0.2 + mixed % 997 / 1994
        # The others are the token's neighbours, in order, so that it comes at its own rank.
        neighbours = [(token - rank + 1 + i) % vocab_size for i in range(count)]
        likeliest = [_narrow(math.log1p(-factor) + i * math.log(factor)) for i in range(max(count, rank))]
        ids.append([token, *neighbours])
        values.append([likeliest[rank - 1], *likeliest[:count]])
        ranks.append(rank)
    return LogprobRows(ids, values, ranks)


def _narrow(value: float) -> float:
    narrowed: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return narrowed
