"""What an engine and its gateway tell each other, whatever the layout on the wire."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["", "stop", "length", "abort", "error"]
"""Why a generation ended; empty while it runs."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate. Values are as the gateway sent them; what an engine cannot do it refuses itself."""

    max_new_tokens: int | None = None
    """None: as many as the context holds."""
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 1 << 30
    """``1 << 30``: the whole vocabulary."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to produce."""

    rid: str
    prompt_ids: list[int]
    sampling: Sampling
    logprobs: bool = False
    """The sampled token's logprob with every token."""
    top_logprobs: int = 0
    """Alternatives asked for beside the sampled token."""
    prompt_logprobs: bool = False
    stream: bool = True


class Add(msgspec.Struct, frozen=True):
    """A generation to start."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True):
    """Generations to stop; ids that have already ended are legal."""

    rids: list[str]


class Malformed(msgspec.Struct, frozen=True):
    """A message from the gateway that cannot be read, and why. Its neighbours are not affected."""

    reason: str


class Initialised(msgspec.Struct, frozen=True):
    """The gateway answered: the engine may load its model, then calls ``EngineServer.ready``."""


class Lost(msgspec.Struct, frozen=True):
    """The gateway went away. It knows nothing of the generations in flight any more: drop them."""


Event: TypeAlias = Add | Abort | Malformed | Initialised | Lost


class TickRow(msgspec.Struct, gc=False):
    """One generation's share of a tick."""

    rid: str
    token_ids: list[int]
    """What this tick adds: one token, several, or none."""
    finish: FinishReason
    prompt_tokens: int
    completion_tokens: int
    """Tokens so far, this tick's included."""
    cached_tokens: int = 0
    logprobs: Sequence[float] = ()
    """Natural logarithms, one per token of this tick; empty where not asked for."""
    error: str = ""
    """Why, for a ``finish`` of ``"error"``."""


class Load(msgspec.Struct, frozen=True):
    """How busy the engine is after a tick."""

    running: int = 0
    waiting: int = 0
    kv_active_pages: int = 0
    kv_total_pages: int = 0
    """0: no snapshot of the cache."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself when it registers."""

    version: str
    max_model_len: int
    max_num_seqs: int
    page_size: int
    """Tokens in a page (block) of the KV cache."""
    num_pages: int
    cache_tokens: int
    """What the cache holds for requests; pages an engine keeps to itself do not count."""
    dtype: str = "bfloat16"
    instance_id: str = ""
    data_parallel_size: int = 1


class Protocol(typing.Protocol):
    """One engine family's layout. A stateless translator; the sockets belong to ``EngineServer``."""

    def decode_request(self, frames: Sequence[bytes]) -> Add | Abort | Malformed:
        """Reads what the gateway sent: type byte, payload, and auxiliary frames, without the identity."""

    def encode_registration(self, info: EngineInfo, engine_index: int) -> bytes:
        """The first message on the input socket."""

    def encode_tick(self, rows: Sequence[TickRow], load: Load, engine_index: int) -> list[bytes]:
        """The frames of one output message."""
