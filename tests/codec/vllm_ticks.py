"""vLLM output messages for tests, packed by the ``msgpack`` package in the field order of the layouts file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np

LAYOUT = json.loads((Path(__file__).parents[1] / "data" / "vllm-layouts.json").read_text())["0.32.0"]
RAW = 3
STOP, LENGTH, ABORT, ERROR, REPETITION = range(5)

Columns = Sequence[Sequence[tuple[int, float]]]
"""Per position: the id and logprob of its own token, then of the likeliest ones."""


class Row(NamedTuple):
    """One generation's share of a message."""

    rid: str
    ids: Sequence[int] = ()
    finish: int | None = None
    stop_reason: int | str | None = None
    logprobs: Columns | None = None
    prompt_logprobs: Columns | None = None
    prompt_ranks: Sequence[int] | None = None
    """1 for every position unless given."""
    cached_tokens: int = 0


class Frames(list[bytes]):
    """The frames of a message behind the first: arrays of ``inline`` bytes or more have one of their own."""

    def __init__(self, inline: int) -> None:
        super().__init__()
        self.inline = inline

    def array(self, values: np.ndarray) -> list[object]:
        data = values.tobytes()
        if len(data) < self.inline:
            return [values.dtype.str, list(values.shape), msgpack.ExtType(RAW, data)]
        self.append(data)
        return [values.dtype.str, list(values.shape), len(self)]

    def logprobs(self, columns: Columns, ranks: Sequence[int] | None) -> list[object]:
        shape = (len(columns), max((len(position) for position in columns), default=1))
        ids = np.array([[id for id, _ in position] for position in columns], "<i8").reshape(shape)
        values = np.array([[value for _, value in position] for position in columns], "<f4").reshape(shape)
        own = np.array(ranks or [1] * len(columns), "<i8")
        return [self.array(ids), self.array(values), self.array(own), None]


def message(*rows: Row, inline: int = 256, **fields: Any) -> list[bytes]:
    """The frames of one message. ``fields``: of the message itself, by their names in the layouts file."""
    frames = Frames(inline)
    outputs = []
    for row in rows:
        output: dict[str, Any] = dict.fromkeys(LAYOUT["EngineCoreOutput"])
        output |= {"request_id": row.rid, "new_token_ids": list(row.ids)}
        output |= {"finish_reason": row.finish, "stop_reason": row.stop_reason}
        output["prefill_stats"] = {"num_prompt_tokens": 1, "num_cached_tokens": row.cached_tokens}
        if row.logprobs is not None:
            output["new_logprobs"] = frames.logprobs(row.logprobs, None)
        if row.prompt_logprobs is not None:
            output["new_prompt_logprobs_tensors"] = frames.logprobs(row.prompt_logprobs, row.prompt_ranks)
        outputs.append(list(output.values()))
    batch: dict[str, Any] = dict.fromkeys(LAYOUT["EngineCoreOutputs"])
    batch |= {"engine_index": 0, "outputs": outputs, "timestamp": 1.0} | fields
    assert batch.keys() == set(LAYOUT["EngineCoreOutputs"])
    return [msgpack.packb(list(batch.values())), *frames]
