"""Slots, waiting requests and ticks: an engine's scheduler, with scripts in the place of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from smg_fast.embedded.simulator.script import last_turn, token_logprobs, write_script
from smg_fast.embedded.wire import Load, TickRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smg_fast.embedded.simulator.options import SimulatorOptions
    from smg_fast.embedded.wire import EngineRequest
    from smg_fast.embedded.wire.messages import FinishReason

_TOP_K_ALL = 1 << 30
_TOP_K_BOUND = 128


class Counters(msgspec.Struct):
    """What happened so far. ``adds`` equals ``finished + aborted + refused + lost + live`` at any moment."""

    adds: int = 0
    aborts: int = 0
    """Request ids named in abort messages, ended ones included."""
    malformed: int = 0
    """Messages from the gateway that could not be read."""
    ticks: int = 0
    tokens: int = 0
    finished: int = 0
    """Generations that came to their own end."""
    aborted: int = 0
    """Generations that an abort ended."""
    refused: int = 0
    lost: int = 0
    """Generations dropped because the gateway went away."""
    live: int = 0
    """Generations running or waiting now."""


class _Generation(msgspec.Struct):
    rid: str
    script: list[int]
    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    logprobs: bool
    said: int = 0


class Scheduler:
    """Generations by request id. ``tick`` advances every running one; the caller decides when."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.counters = Counters()
        self._options = options
        self._running: dict[str, _Generation] = {}
        self._waiting: dict[str, _Generation] = {}
        self._notices: list[TickRow] = []  # rows of the next tick that belong to no slot
        self._stale = False  # the gateway's idea of the load is out of date

    @property
    def busy(self) -> bool:
        """Whether a tick has something to say."""
        return bool(self._running or self._waiting or self._notices or self._stale)

    def add(self, request: EngineRequest) -> str | None:
        """Takes a request into the queue, or refuses it with an abort row and returns why."""
        self.counters.adds += 1
        prompt_tokens = len(request.prompt_ids)
        refusal = self._refusal(request)
        if refusal is not None:
            self.counters.refused += 1
            self._notices.append(TickRow(request.rid, [], "abort", prompt_tokens, 0))
            return refusal
        options = self._options
        script, finish = write_script(
            options.token_ids or last_turn(request.prompt_ids, options.markers),
            request.sampling,
            options.eos_token_ids,
            options.max_model_len - prompt_tokens,
        )
        self._waiting[request.rid] = _Generation(
            request.rid, script, finish, prompt_tokens, min(options.cached_tokens, prompt_tokens - 1), request.logprobs
        )
        self._count_live()
        return None

    def abort(self, rids: Iterable[str]) -> None:
        """Forgets generations; those that have ended already are passed over."""
        for rid in rids:
            self.counters.aborts += 1
            generation = self._running.pop(rid, None) or self._waiting.pop(rid, None)
            if generation is None:
                continue
            self.counters.aborted += 1
            self._stale = True
            if self._options.abort_rows:
                row = TickRow(rid, [], "abort", generation.prompt_tokens, generation.said, generation.cached_tokens)
                self._notices.append(row)
        self._count_live()

    def lose(self) -> None:
        """Forgets everything: the gateway that asked is gone."""
        self.counters.lost += len(self._running) + len(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self._notices.clear()
        self._stale = False
        self._count_live()

    def tick(self) -> tuple[list[TickRow], Load]:
        """Fills the free slots and lets every running generation say its next tokens; the load is that afterwards."""
        options = self._options
        while self._waiting and len(self._running) < options.max_running:
            rid = next(iter(self._waiting))
            self._running[rid] = self._waiting.pop(rid)

        step = options.tokens_per_tick
        rows, self._notices = self._notices, []
        ended: list[str] = []
        tokens = 0
        for generation in self._running.values():
            start = generation.said
            said = generation.script[start : start + step]
            tokens += len(said)
            generation.said = end = start + len(said)
            done = end == len(generation.script)
            if done:
                ended.append(generation.rid)
            rows.append(
                TickRow(
                    generation.rid,
                    said,
                    generation.finish if done else "",
                    generation.prompt_tokens,
                    end,
                    generation.cached_tokens,
                    token_logprobs(said, start) if generation.logprobs else (),
                )
            )
        for rid in ended:
            del self._running[rid]

        counters = self.counters
        counters.ticks += 1
        counters.tokens += tokens
        counters.finished += len(ended)
        self._stale = False
        self._count_live()
        return rows, self._load()

    def _load(self) -> Load:
        size = self._options.page_size
        active = sum((g.prompt_tokens + g.said + size - 1) // size for g in self._running.values())
        return Load(len(self._running), len(self._waiting), active, self._options.num_pages)

    def _count_live(self) -> None:
        self.counters.live = len(self._running) + len(self._waiting)

    def _refusal(self, request: EngineRequest) -> str | None:
        sampling, room = request.sampling, self._options.max_model_len
        if request.rid in self._running or request.rid in self._waiting:
            return "the request id is in use"
        if not 0 < len(request.prompt_ids) < room:
            return f"a prompt of {len(request.prompt_ids)} tokens where 1 to {room - 1} fit"
        if sampling.n != 1:
            return f"n = {sampling.n}"
        if sampling.top_k >= _TOP_K_BOUND and sampling.top_k != _TOP_K_ALL:
            return f"top_k = {sampling.top_k}"
        if request.top_logprobs or request.prompt_logprobs:
            return "logprobs other than the sampled token's"
        return None
