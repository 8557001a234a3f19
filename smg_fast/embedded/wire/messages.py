"""What an engine and its gateway tell each other, whatever the layout on the wire."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

FinishReason = Literal["", "stop", "length", "abort", "error", "repetition"]
"""Why a generation ended; empty while it runs."""

ConstraintKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the text must be. ``value`` is a text (a schema's is JSON), for ``choice`` the texts, else empty."""

    kind: ConstraintKind
    value: str | tuple[str, ...] = ""
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


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
    """``1 << 30``, and on vLLM's wire 0 and -1: the whole vocabulary."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    n: int = 1
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of token ids that must not come."""
    constraints: tuple[Constraint, ...] = ()
    """All that were sent. No engine can honour more than one."""
    backend: str | None = None
    """Who has to enforce the constraint (vLLM)."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to produce. What only one engine's wire has is at its default on the others."""

    rid: str
    prompt_ids: list[int]
    sampling: Sampling
    logprobs: bool = False
    """The sampled token's logprob with every token."""
    top_logprobs: int = 0
    """Alternatives asked for beside the sampled token."""
    prompt_logprobs: int | None = None
    """Alternatives asked for with the prompt's tokens; None: no logprobs of the prompt."""
    stream: bool = True
    eos_token_ids: tuple[int, ...] | None = None
    """What ends a generation where EOS is not ignored. None: the engine knows its model's."""
    all_stop_token_ids: tuple[int, ...] = ()
    """What must not come before ``min_new_tokens``, as the gateway lists it (vLLM)."""
    delta: bool = True
    """Ticks tell what is new, and not the whole each time."""
    skip_prefix_cache: bool = False
    cache_salt: str | None = None
    priority: int = 0
    data_parallel_rank: int | None = None
    """The engine that the request is for. None: any."""
    wave: int = 0
    """The wave that the gateway believes the engines are in (vLLM's data-parallel groups)."""
    client: int = 0
    """Who has sent it, and wants its rows (vLLM)."""


class Add(msgspec.Struct, frozen=True):
    """A generation to start."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True):
    """Generations to stop; ids that have already ended are legal."""

    rids: list[str]


class Utility(msgspec.Struct, frozen=True):
    """A call of a method of the engine, to be answered with a :class:`UtilityAnswer` (vLLM)."""

    call_id: int
    method: str
    client: int = 0


class StartWave(msgspec.Struct, frozen=True):
    """The group's engines begin this wave, but for the one that asked for it (vLLM)."""

    wave: int
    exclude: int | None = None


class Malformed(msgspec.Struct, frozen=True):
    """A message from the gateway that cannot be read, and why. Its neighbours are not affected."""

    reason: str


class Initialised(msgspec.Struct, frozen=True):
    """The gateway answered: the engine may load its model, then calls ``EngineServer.ready``."""


class Lost(msgspec.Struct, frozen=True):
    """The gateway went away. It knows nothing of the generations in flight any more: drop them."""


Request: TypeAlias = Add | Abort | Utility | StartWave | Malformed
Event: TypeAlias = Request | Initialised | Lost


class LogprobRows(msgspec.Struct, frozen=True):
    """Logprobs with alternatives: a row for each position, all rows equally long.

    A row begins with the position's own token; the likeliest follow by rank, the own one again where it is among them.
    """

    token_ids: Sequence[Sequence[int]]
    values: Sequence[Sequence[float]]
    """Natural logarithms, each a float of 32 bits."""
    ranks: Sequence[int]
    """Of the positions' own tokens, from 1."""


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
    stop_reason: int | str | None = None
    """The request's stop token that ended it; None for EOS."""
    logprob_rows: LogprobRows | None = None
    """The logprobs on wires that have alternatives, in the place of ``logprobs``."""
    prompt_logprobs: LogprobRows | None = None
    """A row for each token of the prompt but the first."""
    client: int = 0
    """Who has asked for it."""


class Load(msgspec.Struct, frozen=True):
    """How busy the engine is after a tick."""

    running: int = 0
    waiting: int = 0
    kv_active_pages: int = 0
    kv_total_pages: int = 0
    """0: no snapshot of the cache."""


class UtilityAnswer(msgspec.Struct, frozen=True):
    """``failure`` None: the call succeeded."""

    call_id: int
    failure: str | None = None
    result: object = None


class Wave(msgspec.Struct, frozen=True):
    """Where a data-parallel group in lockstep stands: a wave has ended, or one has to be started by the others."""

    complete: int | None = None
    start: int | None = None


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

    @property
    def several_clients(self) -> bool:
        """Whether an engine serves all clients that INIT lists, and not the first one alone."""

    def encode_status(self, status: str, *, local: bool) -> bytes:
        """HELLO or READY."""

    def decode_request(self, frames: Sequence[bytes]) -> Request:
        """Reads what the gateway sent: type byte, payload, and auxiliary frames, without the identity."""

    def encode_registration(self, info: EngineInfo, engine_index: int) -> bytes:
        """The first message on the input socket."""

    def encode_tick(self, rows: Sequence[TickRow], load: Load | None, engine_index: int) -> list[bytes]:
        """The frames of one output message. The load is there unless another client is told it."""

    def encode_notice(self, notice: UtilityAnswer | Wave, engine_index: int) -> list[bytes]:
        """An output message without rows.

        Raises
        ------
        TypeError
            If the family has none: its gateways never ask for one.
        """
