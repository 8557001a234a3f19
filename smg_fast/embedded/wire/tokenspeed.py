"""TokenSpeed's layout: output columns in each of its revisions, requests in the tagged and in the tuple form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import msgpack
import msgspec

from smg_fast.embedded.wire.messages import Abort, Add, Constraint, ConstraintKind, EngineRequest, Malformed, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_fast.embedded.wire.messages import EngineInfo, Load, TickRow, UtilityAnswer, Wave

Revision = Literal["untagged8", "tagged9", "tagged10", "tagged14", "future"]
REVISIONS: tuple[Revision, ...] = get_args(Revision)

OUTPUT_TAG = "BatchTokenIDOutSlim"
REQUEST_TAG = "TokenizedGenerateReqInput"
ADD, ABORT = b"\x00", b"\x01"

_ELEMENTS: dict[Revision, int] = {"tagged9": 9, "tagged10": 10, "tagged14": 14, "future": 15}
_FUTURE = {"new": 1}  # a trailing element that no gateway knows


class _Sampling(msgspec.Struct, array_like=True, frozen=True):
    max_new_tokens: int | None = None
    stop: Any = None
    stop_token_ids: tuple[int, ...] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 1 << 30
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    thinking_budget: int | None = None
    custom_params: Any = None
    stream_interval: int | None = None
    logit_bias: Any = None
    seed: int | None = None
    logprobs: Any = None
    n: int = 1
    stop_strs: Any = None
    stop_str_max_len: int = 0
    is_normalized: bool = False


class _TaggedRequest(msgspec.Struct, array_like=True, frozen=True, tag=REQUEST_TAG):
    """Through ``stream``, the shortest prefix in use; what may follow says nothing to these engines."""

    rid: str
    http_worker_ipc: Any
    input_text: Any
    input_ids: list[int]
    sampling: _Sampling
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    stream: bool


class _TupleSampling(msgspec.Struct, array_like=True, frozen=True):
    max_new_tokens: int | None
    stop_token_ids: tuple[int, ...] | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    min_new_tokens: int
    ignore_eos: bool
    seed: int | None
    n: int


class _TupleRequest(msgspec.Struct, array_like=True, frozen=True):
    rid: str
    input_ids: list[int]
    sampling: _TupleSampling
    return_logprob: bool
    stream: bool


class TokenSpeed(msgspec.Struct, frozen=True):
    """The wire of TokenSpeed; ``revision`` is that of the ticks. Requests are read in either form."""

    revision: Revision = "tagged14"

    several_clients: ClassVar[bool] = False

    def encode_status(self, status: str, *, local: bool) -> bytes:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return _pack({"status": status, "local": local, "headless": True, "parallel_config_hash": None})

    def decode_request(self, frames: Sequence[bytes]) -> Add | Abort | Malformed:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        if len(frames) < 2:
            return Malformed(f"{len(frames)} frames: expected a type byte and a payload")
        kind, payload = frames[0], frames[1]
        try:
            message = msgpack.unpackb(payload, strict_map_key=False)
            if kind == ADD:
                return Add(_request(message))
            if kind == ABORT:
                return Abort(msgspec.convert(message, list[str]))
        except (ValueError, msgspec.ValidationError) as error:
            return Malformed(f"message of type {kind.hex()}: {error!r}")
        return Malformed(f"unknown message type {kind.hex()}")

    def encode_registration(self, info: EngineInfo, engine_index: int) -> bytes:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        return _pack(
            {
                "max_model_len": info.max_model_len,
                "num_gpu_blocks": info.num_pages,
                "prefix_granularity": info.page_size,
                "dp_stats_address": None,
                "dtype": info.dtype,
                "multimodal_encoder_dtype": None,
                "vllm_version": info.version,
                "world_size": info.data_parallel_size,
                "data_parallel_size": info.data_parallel_size,
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "decode_context_parallel_size": 1,
                "data_parallel_rank": engine_index,
                "max_num_seqs": info.max_num_seqs,
                "max_num_batched_tokens": -1,
                "instance_id": info.instance_id,
                "kv_cache_size_tokens": info.cache_tokens,
                "kv_cache_max_concurrency": None,
                "kv_events_config": None,
            }
        )

    def encode_tick(self, rows: Sequence[TickRow], load: Load | None, engine_index: int) -> list[bytes]:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        columns: list[object] = [
            [row.rid for row in rows],
            [row.token_ids for row in rows],
            [_finished_reason(row) for row in rows],
            [row.prompt_tokens for row in rows],
            [row.completion_tokens for row in rows],
            [row.cached_tokens for row in rows],
            [row.logprobs for row in rows],
            [row.token_ids if row.logprobs else () for row in rows],
        ]
        if self.revision == "untagged8":
            return [_pack(columns)]
        assert load is not None  # there is no other client to be told it
        trailer = [engine_index, load.running, load.waiting, load.kv_active_pages, load.kv_total_pages, _FUTURE]
        return [_pack([OUTPUT_TAG, *columns, *trailer][: _ELEMENTS[self.revision]])]

    def encode_notice(self, notice: UtilityAnswer | Wave, engine_index: int) -> list[bytes]:
        """See :class:`~smg_fast.embedded.wire.messages.Protocol`."""
        raise TypeError("TokenSpeed's wire has neither utility calls nor waves")


def _finished_reason(row: TickRow) -> str:
    # The column has no word for a cause. A gateway takes what it does not know for an error, so there is room for it.
    return f"{row.finish}: {row.error}" if row.error else row.finish


def _pack(message: object) -> bytes:
    payload: bytes = msgpack.packb(message)
    return payload


def _request(message: Any) -> EngineRequest:
    # In the tuple form the second element is the prompt, so a request may even be named like the tag.
    if isinstance(message, list) and len(message) > 1 and message[0] == REQUEST_TAG and isinstance(message[1], str):
        tagged = msgspec.convert(message, _TaggedRequest)
        return EngineRequest(
            rid=tagged.rid,
            prompt_ids=tagged.input_ids,
            sampling=msgspec.structs.replace(
                msgspec.convert(tagged.sampling, Sampling, from_attributes=True),
                constraints=_constraints(tagged.sampling),
            ),
            logprobs=tagged.return_logprob,
            top_logprobs=max(tagged.top_logprobs_num, len(tagged.token_ids_logprob or ())),
            prompt_logprobs=0 if tagged.return_logprob and tagged.logprob_start_len >= 0 else None,
            stream=tagged.stream,
        )
    bare = msgspec.convert(message, _TupleRequest)
    return EngineRequest(
        rid=bare.rid,
        prompt_ids=bare.input_ids,
        sampling=msgspec.convert(bare.sampling, Sampling, from_attributes=True),
        logprobs=bare.return_logprob,
        stream=bare.stream,
    )


def _constraints(sampling: _Sampling) -> tuple[Constraint, ...]:
    given: tuple[tuple[ConstraintKind, str | None], ...] = (
        ("json", sampling.json_schema),
        ("regex", sampling.regex),
        ("grammar", sampling.ebnf),
        ("structural_tag", sampling.structural_tag),
    )
    return tuple(Constraint(kind=kind, value=value) for kind, value in given if value is not None)
