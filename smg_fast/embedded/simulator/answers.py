"""Answers recorded from a real engine, to be given again token for token (``--answers FILE``).

The file is JSON::

    {"answers": [{
        "prompt_token_ids": [504, 3575, 282, 4649, 314],
        "sampling": {"temperature": 0.0},
        "token_ids": [7042, 30],
        "finish_reason": "length",
        "logprobs": {"token_ids": [[7042, 7042, 253], [30, 30, 28]],
                     "values": [[-0.269, -0.269, -3.1], [-0.388, -0.388, -1.9]], "ranks": [1, 1]}
    }]}

A request is answered by the recording with the same prompt and the same sampling (see :class:`RecordedSampling`). What
only shapes an answer is the request's own: the recording is cut where the request's ``max_tokens``, its stop token ids
or its EOS id end it, and its logprobs after as many alternatives as the request asks for. What was not recorded is
refused: no such recording, one with fewer alternatives, or one that ends at a stop token at which the request does not
stop. One that is shorter than the request wants is told, and an error follows: a stop string may end it in time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from smg_fast.embedded.wire import Constraint, LogprobRows
from smg_fast.embedded.wire.messages import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smg_fast.embedded.wire import EngineRequest, Sampling

_GREEDY_BELOW = 1e-5  # vLLM samples greedily below this temperature
_TOP_K_ALL = 1 << 30  # as TokenSpeed's wire has it


class RecordedSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whatever decides which tokens come, under vLLM's names and with its defaults. Left out: the default.

    ``max_tokens``, ``logprobs``, ``prompt_logprobs`` and stop token ids are not here: the same tokens come whatever
    they are. ``bad_words`` are token ids. Where a temperature of 0 makes sampling greedy, ``seed``, ``top_p``,
    ``top_k`` and ``min_p`` decide nothing and are passed over.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None
    """A schema is JSON, as text."""


class RecordedLogprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row per position, as an engine has them: the token itself, then the likeliest tokens by rank.

    The token is there again where it is among the likeliest. ``values`` are natural logarithms, null is minus infinity.
    ``ranks`` are those of the tokens themselves, from 1; where a server does not tell them they follow from the row.
    """

    token_ids: tuple[tuple[int, ...], ...]
    values: tuple[tuple[float | None, ...], ...]
    ranks: tuple[int, ...] | None = None


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt's answer. Of two for the same request the longer one is given.

    ``token_ids`` has every token that the engine sent, the stop token at the end included. ``finish_reason`` says why
    there are no more: ``stop`` is a stop or EOS token, the last one. ``stop_reason`` is told with a finish that the
    request does not decide, such as ``repetition``. ``prompt_logprobs`` has a row for every token of the prompt but the
    first.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: RecordedSampling = RecordedSampling()
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"]
    stop_reason: int | str | None = None
    logprobs: RecordedLogprobs | None = None
    prompt_logprobs: RecordedLogprobs | None = None


class AnswersFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is in the file. ``about`` is for people."""

    answers: tuple[RecordedAnswer, ...]
    about: str = ""


class NoAnswerError(LookupError):
    """A request that was not recorded, as a whole or in what it asks for. The text tells which."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What to say to a request. ``logprobs`` has at least a row for each token."""

    token_ids: list[int]
    finish: FinishReason
    stop_reason: int | str | None
    """Of a finish that the request does not decide."""
    short: bool
    """More is wanted than was recorded: an error follows the last token."""
    logprobs: LogprobRows | None
    prompt_logprobs: LogprobRows | None


class Answers:
    """Recorded answers by request.

    Raises
    ------
    ValueError
        For logprobs whose rows do not fit their tokens.
    """

    def __init__(self, answers: Sequence[RecordedAnswer]) -> None:
        self._answers: dict[bytes, RecordedAnswer] = {}
        for place, answer in enumerate(answers):
            for name, logprobs, ids in (
                ("logprobs", answer.logprobs, answer.token_ids),
                ("prompt_logprobs", answer.prompt_logprobs, answer.prompt_token_ids[1:]),
            ):
                if logprobs is not None and not _fits(logprobs, ids):
                    raise ValueError(f"answer {place}: its {name} are not one row for each token, its own id first")
            key = _key(answer.prompt_token_ids, answer.sampling)
            known = self._answers.get(key)
            if known is None or len(known.token_ids) < len(answer.token_ids):
                self._answers[key] = answer

    @classmethod
    def load(cls, path: Path) -> Answers:
        """Raises ``OSError``, and ``ValueError`` for what is not as described here."""
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=AnswersFile).answers)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None

    def find(self, request: EngineRequest, eos_token_ids: Sequence[int], room: int) -> Replay:
        """What to say to a request that stops at these EOS ids and has room for so many tokens.

        Raises
        ------
        NoAnswerError
            For what was not recorded.
        """
        answer = self._answers.get(_key(request.prompt_ids, _recorded_sampling(request.sampling)))
        if answer is None:
            raise NoAnswerError("no recorded answer to this prompt with this sampling")
        token_ids, finish = _cut(answer, request.sampling, eos_token_ids, room)
        return Replay(
            token_ids=token_ids,
            finish=finish or "error",
            stop_reason=answer.stop_reason,
            short=not finish,
            logprobs=_rows("logprobs", answer.logprobs, request.top_logprobs if request.logprobs else None),
            prompt_logprobs=_rows("prompt_logprobs", answer.prompt_logprobs, request.prompt_logprobs),
        )


def _recorded_sampling(sampling: Sampling) -> RecordedSampling:
    return RecordedSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        min_tokens=sampling.min_new_tokens,
        ignore_eos=sampling.ignore_eos,
        logit_bias=sampling.logit_bias or None,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=sampling.bad_words,
        constraint=sampling.constraints[0] if sampling.constraints else None,
    )


def _key(prompt_token_ids: Sequence[int], sampling: RecordedSampling) -> bytes:
    """Equal for requests that get the same tokens."""
    changes: dict[str, object] = {}
    if sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1:
        changes = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None}
    elif sampling.top_k in (-1, _TOP_K_ALL):
        changes = {"top_k": 0}
    if sampling.logit_bias is not None:
        changes["logit_bias"] = dict(sorted(sampling.logit_bias.items()))
    constraint = sampling.constraint
    if constraint is not None and constraint.kind == "json" and isinstance(constraint.value, str):
        schema = msgspec.json.encode(msgspec.json.decode(constraint.value), order="deterministic").decode()
        changes["constraint"] = msgspec.structs.replace(constraint, value=schema)
    return msgspec.json.encode((prompt_token_ids, msgspec.structs.replace(sampling, **changes)))


def _cut(
    answer: RecordedAnswer, sampling: Sampling, eos_token_ids: Sequence[int], room: int
) -> tuple[list[int], FinishReason]:
    """The tokens that a request gets, and how they end; "" if they are not all that it wants."""
    limit = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
    stops = set(sampling.stop_token_ids or ())
    if not sampling.ignore_eos:
        stops.update(eos_token_ids)
    token_ids = list(answer.token_ids)
    for count, token in enumerate(token_ids, 1):
        if token in stops and count > sampling.min_new_tokens:
            return token_ids[:count], "stop"
        if count == limit:
            return token_ids[:count], "length"
    if answer.finish_reason == "length":
        return token_ids, ""
    if answer.finish_reason == "stop":
        raise NoAnswerError(f"the recorded answer ends at {token_ids[-1:]}, where this request does not stop")
    return token_ids, answer.finish_reason


def _rows(name: str, recorded: RecordedLogprobs | None, alternatives: int | None) -> LogprobRows | None:
    if alternatives is None:
        return None
    if recorded is None:
        raise NoAnswerError(f"the recorded answer has no {name}")
    width = len(recorded.token_ids[0]) if recorded.token_ids else alternatives + 1
    if alternatives >= width:
        raise NoAnswerError(f"the recorded {name} have {width - 1} alternatives, and {alternatives} are wanted")
    values = [[-math.inf if value is None else value for value in row] for row in recorded.values]
    # Where the rank was not told it is seen: one more than there are likelier tokens.
    ranks = recorded.ranks or [1 + sum(value > own for value in others) for own, *others in values]
    return LogprobRows(
        [row[: alternatives + 1] for row in recorded.token_ids], [row[: alternatives + 1] for row in values], ranks
    )


def _fits(logprobs: RecordedLogprobs, token_ids: Sequence[int]) -> bool:
    rows = list(zip(logprobs.token_ids, logprobs.values, strict=False))
    return (
        len(logprobs.token_ids) == len(logprobs.values) == len(token_ids)
        and (logprobs.ranks is None or len(logprobs.ranks) == len(token_ids))
        and all(len(ids) == len(values) == len(rows[0][0]) for ids, values in rows)
        and all(ids[:1] == (token,) for (ids, _), token in zip(rows, token_ids, strict=False))
    )
