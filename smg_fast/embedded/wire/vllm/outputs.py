"""Output messages, by the layout of the version, and the arrays inside them."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from smg_fast.embedded.wire.messages import Wave

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smg_fast.embedded.wire.messages import FinishReason, Load, LogprobRows, TickRow, UtilityAnswer
    from smg_fast.embedded.wire.vllm.layouts import Layout

AUX_FRAME_BYTES = 256
"""An array of so many bytes goes into an auxiliary frame of its own."""

_RAW = 3  # the extension type of an array's bytes
_FINISH: dict[FinishReason, int | None] = {"": None, "stop": 0, "length": 1, "abort": 2, "error": 3, "repetition": 4}

# Elements that say nothing where they are not nil.
_OUTPUT_DEFAULTS: Mapping[str, object] = {
    "num_cached_tokens": 0,
    "num_external_computed_tokens": 0,
    "num_nans_in_logits": 0,
}
_MESSAGE_DEFAULTS: Mapping[str, object] = {"outputs": (), "weight_version": "default"}
# A frontend may be strict about these: what an engine of 0.32 sends when there is nothing to tell.
_STATS_DEFAULTS: Mapping[str, object] = {
    "num_skipped_waiting_reqs": 0,
    "num_kv_fetch_reqs_by_stage": {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0},
    "step_counter": 0,
    "current_wave": 0,
    "iteration_details": None,
    "prefix_cache_stats": {
        "reset": False,
        "requests": 0,
        "queries": 0,
        "hits": 0,
        "preempted_requests": 0,
        "preempted_queries": 0,
        "preempted_hits": 0,
        "hits_by_source": {},
    },
    "connector_prefix_cache_stats": None,
    "kv_cache_eviction_events": (),
    "spec_decoding_stats": None,
    "kv_connector_stats": None,
    "ec_connector_stats": None,
    "waiting_lora_adapters": {},
    "running_lora_adapters": {},
    "cudagraph_stats": None,
    "perf_stats": None,
}


class _Dtype(NamedTuple):
    name: str
    code: str
    """As ``struct`` has it."""


class _Arrays(NamedTuple):
    """Dtypes of ids, logprobs and ranks, and how many elements follow: where requests begin in the engine's batch."""

    ids: _Dtype
    values: _Dtype
    ranks: _Dtype
    others: int


# Those of tokens are numpy's, those of the prompt torch's, which are spelled in full.
_LISTS = _Arrays(_Dtype("<i4", "i"), _Dtype("<f4", "f"), _Dtype("<i8", "q"), 1)
_TENSORS = _Arrays(_Dtype("int32", "i"), _Dtype("float32", "f"), _Dtype("int32", "i"), 2)


def encode_tick(rows: Sequence[TickRow], load: Load | None, engine_index: int, layout: Layout) -> list[bytes]:
    """The frames of a scheduler's step: its rows, the ids that ended, and the load."""
    aux: list[bytes] = []
    finished = [row.rid for row in rows if row.finish]
    fields = {
        "outputs": [_row(row, layout, aux) for row in rows],
        "scheduler_stats": None if load is None else _stats(load),
        "finished_requests": finished or None,
    }
    return [_message(fields, engine_index, layout), *aux]


def encode_notice(notice: UtilityAnswer | Wave, engine_index: int, layout: Layout) -> list[bytes]:
    """The frame of a message without rows."""
    if isinstance(notice, Wave):
        return [_message({"wave_complete": notice.complete, "start_wave": notice.start}, engine_index, layout)]
    # A result carries a description of its Python types, nil where there is none.
    result = None if notice.failure is not None else (None, notice.result)
    answer = (notice.call_id, notice.failure, result)
    return [_message({"utility_output": answer}, engine_index, layout)]


def _message(fields: Mapping[str, object], engine_index: int, layout: Layout) -> bytes:
    values = {**_MESSAGE_DEFAULTS, "engine_index": engine_index, "timestamp": time.monotonic(), **fields}
    payload: bytes = msgpack.packb([values.get(name) for name in layout.message])
    return payload


def _row(row: TickRow, layout: Layout, aux: list[bytes]) -> list[object]:
    values = {
        **_OUTPUT_DEFAULTS,
        "request_id": row.rid,
        "new_token_ids": row.token_ids,
        "new_logprobs": _logprobs(row.logprob_rows, aux, _LISTS),
        "new_prompt_logprobs_tensors": _logprobs(row.prompt_logprobs, aux, _TENSORS),
        "finish_reason": _FINISH[row.finish],
        "stop_reason": row.stop_reason,
    }
    if row.token_ids and row.completion_tokens == len(row.token_ids):  # the first of its generation
        values["num_cached_tokens"] = row.cached_tokens
        values["prefill_stats"] = _prefill(row)
    return [values.get(name) for name in layout.output]


def _prefill(row: TickRow) -> dict[str, int]:
    return {
        "num_prompt_tokens": row.prompt_tokens,
        "num_computed_tokens": row.prompt_tokens - row.cached_tokens,
        "num_cached_tokens": row.cached_tokens,
        "num_local_cached_tokens": row.cached_tokens,
        "num_external_cached_tokens": 0,
        "num_cache_creation_tokens": 0,
    }


def _stats(load: Load) -> dict[str, object]:
    return {
        **_STATS_DEFAULTS,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "kv_cache_usage": load.kv_active_pages / load.kv_total_pages if load.kv_total_pages else 0.0,
    }


def _logprobs(rows: LogprobRows | None, aux: list[bytes], arrays: _Arrays) -> list[object] | None:
    if rows is None:
        return None
    # A prompt of one token has no row, and yet arrays.
    shape = (len(rows.token_ids), len(rows.token_ids[0]) if rows.token_ids else 1)
    return [
        _array(arrays.ids, shape, [token for row in rows.token_ids for token in row], aux),
        _array(arrays.values, shape, [value for row in rows.values for value in row], aux),
        _array(arrays.ranks, shape[:1], rows.ranks, aux),
        *([None] * arrays.others),
    ]


def _array(dtype: _Dtype, shape: tuple[int, ...], elements: Sequence[float], aux: list[bytes]) -> list[object]:
    data = struct.pack(f"<{len(elements)}{dtype.code}", *elements)
    if len(data) < AUX_FRAME_BYTES:
        return [dtype.name, shape, msgpack.ExtType(_RAW, data)]
    aux.append(data)
    return [dtype.name, shape, len(aux)]
