"""Slots, waiting requests and ticks: an engine's scheduler, with scripts in the place of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from smg_fast.embedded.simulator.answers import NoAnswerError
from smg_fast.embedded.simulator.logprobs import logprob_rows, token_logprobs
from smg_fast.embedded.simulator.rules import Limits, broken_rule
from smg_fast.embedded.simulator.script import last_turn, write_script
from smg_fast.embedded.wire import Load, TickRow
from smg_fast.embedded.wire.messages import FinishReason, LogprobRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smg_fast.embedded.simulator.answers import Answers, Replay
    from smg_fast.embedded.simulator.options import SimulatorOptions
    from smg_fast.embedded.wire import EngineRequest


_log = logging.getLogger(__name__)


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
    violations: int = 0
    """Of those refused, the ones that a gateway must not send to this engine."""
    lost: int = 0
    """Generations dropped because the gateway went away."""
    live: int = 0
    """Generations running or waiting now."""
    waves: int = 0
    """Waves of its group that it has come to the end of."""


class _Extra(msgspec.Struct, frozen=True):
    """What only rows of vLLM's wire have."""

    logprobs: Callable[[Sequence[int], int], LogprobRows] | None
    prompt_logprobs: LogprobRows | None
    stop_reason: int | str | None


class _Generation(msgspec.Struct):
    rid: str
    script: list[int]
    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    logprobs: Callable[[Sequence[int], int], Sequence[float]] | None
    """Of tokens that begin at a place."""
    extra: _Extra | None
    fails: bool
    """The finish comes after the last token and not with it."""
    client: int
    said: int = 0


class Scheduler:
    """Generations by request id. ``tick`` advances every running one; the caller decides when."""

    def __init__(self, options: SimulatorOptions, answers: Answers | None = None) -> None:
        self.counters = Counters()
        self._options = options
        self._answers = answers
        self._limits = Limits(
            max_model_len=options.max_model_len,
            vocab_size=options.vocab_size,
            max_logprobs=options.vocab_size if options.max_logprobs == -1 else options.max_logprobs,
            engine_index=options.index,
        )
        self._running: dict[str, _Generation] = {}
        self._waiting: dict[str, _Generation] = {}
        self._notices: list[TickRow] = []  # rows of the next tick that belong to no slot
        self._stale = False  # the gateway's idea of the load is out of date

    @property
    def busy(self) -> bool:
        """Whether a tick has something to say."""
        return bool(self._running or self._waiting or self._notices or self._stale)

    def add(self, request: EngineRequest) -> str | None:
        """Takes a request into the queue, or refuses it with a last row and returns why."""
        self.counters.adds += 1
        broken = self._broken_rule(request)
        if broken is not None:
            self.counters.violations += 1
            self._refuse(request, "abort" if self._options.runtime == "tokenspeed" else "error")
            return broken
        try:
            self._waiting[request.rid] = self._generation(request)
        except NoAnswerError as error:
            self._refuse(request, "error", str(error))
            return str(error)
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
                row.client = generation.client
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
            done = (start if generation.fails else end) == len(generation.script)
            if done:
                ended.append(generation.rid)
            row = TickRow(
                generation.rid,
                said,
                generation.finish if done else "",
                generation.prompt_tokens,
                end,
                generation.cached_tokens,
                generation.logprobs(said, start) if generation.logprobs else (),
                client=generation.client,
            )
            rows.append(row)
            extra = generation.extra
            if extra is not None:
                row.stop_reason = extra.stop_reason if done else None
                row.logprob_rows = extra.logprobs(said, start) if extra.logprobs and said else None
                row.prompt_logprobs = extra.prompt_logprobs if said and not start else None
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

    def _broken_rule(self, request: EngineRequest) -> str | None:
        if request.rid in self._running or request.rid in self._waiting:
            return "the request id is in use"
        return broken_rule(request, self._options.runtime, self._limits) if self._options.rules else None

    def _refuse(self, request: EngineRequest, finish: FinishReason, why: str = "") -> None:
        self.counters.refused += 1
        self._notices.append(
            TickRow(request.rid, [], finish, len(request.prompt_ids), 0, error=why, client=request.client)
        )

    def _generation(self, request: EngineRequest) -> _Generation:
        options = self._options
        prompt_tokens = len(request.prompt_ids)
        room = options.max_model_len - prompt_tokens
        eos = options.eos_token_ids if request.eos_token_ids is None else request.eos_token_ids
        replay = None if self._answers is None else self._answers.find(request, eos, room)
        if replay is None:
            script, finish = self._script(request, eos, room)
        else:
            script, finish = replay.token_ids, replay.finish
        stop_reason: int | str | None = None
        if finish == "stop":
            stop_reason = script[-1] if script and script[-1] not in eos else None
        elif replay is not None and finish != "length":
            stop_reason = replay.stop_reason

        if replay is not None and replay.short:
            _log.warning("request %s: its recorded answer has no more than %d tokens", request.rid, len(script))
        failing = options.faults.fail_after
        fails = failing is not None and failing * options.tokens_per_tick < len(script)
        if failing is not None and fails:
            del script[failing * options.tokens_per_tick :]
            finish = options.faults.fail_as
            stop_reason = "repetition_detected" if finish == "repetition" else None
        return _Generation(
            request.rid,
            script,
            finish,
            prompt_tokens,
            0 if request.skip_prefix_cache else min(options.cached_tokens, prompt_tokens - 1),
            _plain_logprobs(replay) if request.logprobs and options.runtime == "tokenspeed" else None,
            self._extra(request, replay, stop_reason) if options.runtime == "vllm" else None,
            fails or (replay is not None and replay.short),
            request.client,
        )

    def _script(self, request: EngineRequest, eos: Sequence[int], room: int) -> tuple[list[int], FinishReason]:
        options, sampling = self._options, request.sampling
        end = next(iter((*options.eos_token_ids, *eos)), None)
        if options.runtime == "vllm" and end is None:
            # Nobody knows an end, and this engine has no silent one.
            sampling = msgspec.structs.replace(sampling, ignore_eos=True)
        source = options.token_ids or last_turn(request.prompt_ids, options.markers)
        return write_script(source, sampling, eos, room, end)

    def _extra(self, request: EngineRequest, replay: Replay | None, stop_reason: int | str | None) -> _Extra:
        vocab_size = self._limits.vocab_size
        if replay is not None:
            logprobs = None if replay.logprobs is None else partial(_slice, replay.logprobs)
            return _Extra(logprobs, replay.prompt_logprobs, stop_reason)
        return _Extra(
            partial(logprob_rows, alternatives=request.top_logprobs, vocab_size=vocab_size)
            if request.logprobs
            else None,
            None
            if request.prompt_logprobs is None
            else logprob_rows(request.prompt_ids[1:], 1, request.prompt_logprobs, vocab_size),
            stop_reason,
        )


def _plain_logprobs(replay: Replay | None) -> Callable[[Sequence[int], int], Sequence[float]]:
    if replay is None or replay.logprobs is None:
        return token_logprobs
    values = [row[0] for row in replay.logprobs.values]
    return lambda token_ids, start: values[start : start + len(token_ids)]


def _slice(rows: LogprobRows, token_ids: Sequence[int], start: int) -> LogprobRows:
    end = start + len(token_ids)
    return LogprobRows(rows.token_ids[start:end], rows.values[start:end], rows.ranks[start:end])
