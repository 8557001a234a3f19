"""The wire of vLLM's EngineCore, in any version that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgpack

from smg_fast.embedded.wire.vllm.layouts import known, layout_of
from smg_fast.embedded.wire.vllm.outputs import encode_notice, encode_tick
from smg_fast.embedded.wire.vllm.requests import decode_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_fast.embedded.wire.messages import EngineInfo, Load, Request, TickRow, UtilityAnswer, Wave

VERSIONS = tuple(layout.version for layout in known())
"""The releases that changed the wire, the oldest first."""

DEFAULT_VERSION = "0.32.0"


class VLLM:
    """One version's wire.

    Raises
    ------
    ValueError
        For what is no version, and one before all that are known.
    """

    several_clients: ClassVar[bool] = True

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        self._version = version
        self._layout = layout_of(version)

    def encode_status(self, status: str, *, local: bool) -> bytes:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return _pack({"status": status, "local": local, "headless": True})

    def decode_request(self, frames: Sequence[bytes]) -> Request:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return decode_request(frames, self._layout)

    def encode_registration(self, info: EngineInfo, engine_index: int) -> bytes:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        values: dict[str, object] = {
            "max_model_len": info.max_model_len,
            "num_gpu_blocks": info.num_pages,
            "block_size": info.page_size,
            "dtype": info.dtype,
            "vllm_version": self._version,
            "world_size": 1,
            "data_parallel_size": info.data_parallel_size,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "data_parallel_rank": engine_index,
            "max_num_seqs": info.max_num_seqs,
            "max_num_batched_tokens": info.max_model_len,
            "instance_id": info.instance_id,
            "supports_lora": False,
            "max_loras": 0,
            "kv_cache_size_tokens": info.cache_tokens,
            "kv_cache_max_concurrency": info.cache_tokens / info.max_model_len,
            "enable_sleep_mode": False,
            "supports_draft_weight_updates": False,
            "effective_attention_block_size": info.page_size,
        }
        return _pack({name: values.get(name) for name in self._layout.registration})

    def encode_tick(self, rows: Sequence[TickRow], load: Load | None, engine_index: int) -> list[bytes]:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return encode_tick(rows, load, engine_index, self._layout)

    def encode_notice(self, notice: UtilityAnswer | Wave, engine_index: int) -> list[bytes]:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return encode_notice(notice, engine_index, self._layout)


def _pack(message: object) -> bytes:
    payload: bytes = msgpack.packb(message)
    return payload
