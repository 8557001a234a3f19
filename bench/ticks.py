"""TokenSpeed output ticks for the benchmarks, in the tagged form with rank and load (14 elements)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgpack

MODEL = Path(__file__).parent.parent / "smg_fast" / "embedded" / "model"

TEXT = """\
The harbour lay still under a thin grey light, and the first ferries had not yet begun to move. Along the quay a woman
in a yellow coat counted crates twice, wrote 1,284 in her book, and frowned: "There should be twelve more," she said,
"or someone has been reading my mail again." Nobody answered. A gull walked past with the air of an inspector; behind
it the café opened its shutters, and the smell of bread came out — naïve, warm, and much too early. 海は静かだった。 🙂
def total(crates: list[int]) -> int:
    return sum(crate for crate in crates if crate > 0)
"""


def request_ids(rows: int) -> list[str]:
    """As an engine sees them: 32 hexadecimal digits and the index of the choice."""
    source = random.Random(rows)
    return [f"{source.getrandbits(128):032x}-0" for _ in range(rows)]


def tick(
    rids: Sequence[str],
    token_ids: Sequence[int],
    *,
    logprobs: bool = False,
    finish: str = "",
    completion_tokens: int = 1,
) -> bytes:
    """One message that gives each request one token."""
    rows = len(rids)
    output_ids = [[token] for token in token_ids]
    source = random.Random(completion_tokens)
    payload: bytes = msgpack.packb(
        [
            "BatchTokenIDOutSlim",
            rids,
            output_ids,
            [finish] * rows,
            [120] * rows,
            [completion_tokens] * rows,
            [64] * rows,
            [[source.uniform(-3, 0)] for _ in rids] if logprobs else [[] for _ in rids],
            output_ids if logprobs else [[] for _ in rids],
            0,
            rows,
            3,
            4096,
            65536,
        ]
    )
    return payload


def ticks(rids: Sequence[str], text_ids: Sequence[int], count: int, *, logprobs: bool) -> list[bytes]:
    """``count`` successive ticks; every request writes the same text, each from a place of its own."""
    return [
        tick(
            rids,
            [text_ids[(7 * row + step) % len(text_ids)] for row in range(len(rids))],
            logprobs=logprobs,
            completion_tokens=step + 1,
        )
        for step in range(count)
    ]
