"""One request on its way through llama.cpp."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from smg_fast.embedded.llamacpp.constraints import UnsupportedError, grammar_for
from smg_fast.embedded.llamacpp.llama import Body
from smg_fast.embedded.wire import TickRow

if TYPE_CHECKING:
    from concurrent.futures import Future

    from smg_fast.embedded.llamacpp.llama import Call, Choice, Event, Llama
    from smg_fast.embedded.wire import EngineRequest
    from smg_fast.embedded.wire.messages import FinishReason

_TOP_K_ALL = 1 << 30
# llama.cpp's seeds have 32 bits; the highest stands for none.
_RANDOM_SEED = 2**32 - 1
# Tokens of room for a character to end in.
_CHARACTER = 4


class _Piece(msgspec.Struct):
    """Tokens that came together. ``scores`` are logprobs still to come, of the first of them; ``logprobs`` the rest."""

    token_ids: list[int]
    logprobs: list[float]
    scores: list[Future[float]]

    @property
    def settled(self) -> bool:
        return all(score.done() for score in self.scores)

    @property
    def failure(self) -> BaseException | None:
        """Why a score will never come, once all is settled."""
        return next(filter(None, (score.exception() for score in self.scores)), None)


class Generation:
    """A request, and what has become of it. Once it has been given a slot, ``advance`` is to be called at any news.

    Several calls of llama.cpp's may follow upon each other for it: the next one goes on where the last one ended.

    Raises
    ------
    UnsupportedError
        llama.cpp cannot do what the request asks for.
    """

    def __init__(self, request: EngineRequest, context: int) -> None:
        sampling = request.sampling
        room = context - len(request.prompt_ids)
        if not 0 < len(request.prompt_ids) < context:
            raise UnsupportedError(f"a prompt of {len(request.prompt_ids)} tokens where 1 to {context - 1} fit")
        if sampling.n != 1:
            raise UnsupportedError(f"n = {sampling.n}")
        if sampling.max_new_tokens is not None and sampling.max_new_tokens < 1:
            raise UnsupportedError(f"max_new_tokens = {sampling.max_new_tokens}")
        if request.top_logprobs or request.prompt_logprobs is not None:
            raise UnsupportedError("logprobs other than the sampled token's")
        self._grammar = grammar_for(sampling)
        if self._grammar is not None and sampling.min_new_tokens:
            raise UnsupportedError("min_new_tokens for an answer with a constraint, which decides when it ends")
        self.request = request
        self.said: list[int] = []
        self._context = context
        self._most = room if sampling.max_new_tokens is None else min(room, sampling.max_new_tokens)
        self._least = min(sampling.min_new_tokens, self._most)
        self._stops = frozenset(sampling.stop_token_ids or ())
        self._llama: Llama
        self._call: Call
        self._again = False  # another call goes on where this one ends
        self._room = 0
        self._counted = 0  # of the tokens that llama.cpp says the call has
        self._cached = 0
        self._pieces: deque[_Piece] = deque()
        self._finish: FinishReason = ""
        self._told = False
        self._error = ""

    @property
    def over(self) -> bool:
        """The slot is free again, and all has been said."""
        return self._call.done and self._told

    @property
    def tokens(self) -> int:
        """Tokens in the cache."""
        return len(self.request.prompt_ids) + len(self.said)

    def start(self, llama: Llama) -> None:
        """Takes a slot."""
        self._llama = llama
        self._begin()

    def cancel(self) -> None:
        """Ends it; nothing more will be said."""
        self._told = True
        self._call.cancel()

    def advance(self) -> TickRow | None:
        """What is new since the last call."""
        done = self._call.done  # what is seen to be done before its events are taken has no more of them
        for event in self._call.take():
            if not self._call.cancelled:
                self._heed(event)
        if done and not self._finish and not self._told:
            self._proceed()
        return None if self._told else self._row()

    def _begin(self) -> None:
        """llama.cpp goes on from what has been said."""
        self._counted = 0
        self._again = False
        self._call = self._llama.call(self._body())

    def _body(self) -> Body:
        request, sampling = self.request, self.request.sampling
        early = len(self.said) < self._least
        return Body(
            prompt=request.prompt_ids + self.said,
            n_predict=min(self._most - len(self.said) + self._room, self._context - self.tokens),
            temperature=sampling.temperature,
            top_k=0 if sampling.top_k >= _TOP_K_ALL else sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repeat_penalty=sampling.repetition_penalty,
            repeat_last_n=self._context,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            # With what has been said already it must not draw the same numbers once more.
            seed=_RANDOM_SEED if sampling.seed is None else (sampling.seed + len(self.said)) % _RANDOM_SEED,
            ignore_eos=sampling.ignore_eos or early,
            logit_bias=[(id, False) for id in sorted(self._stops)] if early else [],
            grammar=self._grammar or "",
        )

    def _heed(self, event: Event) -> None:
        if event.error is not None:
            self._fail(event.error.message)
            return
        if not self.said:
            self._cached = event.timings.cache_n
        for choice in event.choices:
            if choice.tokens:
                self._accept(choice, event.timings.predicted_n)
            if choice.finish_reason is not None and not self._call.cancelled:
                self._end(choice.finish_reason, event.timings.predicted_n)

    def _accept(self, choice: Choice, generated: int) -> None:
        shown = choice.tokens[-1]
        hidden = generated - self._counted - 1
        self._counted = generated
        ids: list[int] = []
        scores: list[Future[float]] = []
        if hidden > 0:
            held_back = self._llama.fragments.before(shown.id, choice.text, hidden)
            if held_back is None:
                self._fail(f"llama.cpp does not tell {hidden} of the tokens, nor their text")
                return
            ids = held_back
            if self.request.logprobs:
                before = self.request.prompt_ids + self.said
                scores = [self._llama.score(before + ids[:at], id) for at, id in enumerate(ids)]
        self._say([*ids, shown.id], [shown.logprob] if self.request.logprobs else [], scores)

    def _say(self, ids: list[int], logprobs: list[float], scores: list[Future[float]]) -> None:
        """Says the tokens up to the one that ends it all, if one does."""
        early = len(self.said) < self._least
        for length, id in enumerate(ids, len(self.said) + 1):
            if id in self._stops and length > self._least:
                self._finish = "stop"
            elif length == self._most:
                self._finish = "length"
            if self._finish:
                ids = ids[: length - len(self.said)]
                scores = scores[: len(ids)]
                logprobs = logprobs[: len(ids) - len(scores)]
                break
        self.said += ids
        self._pieces.append(_Piece(ids, logprobs, scores))
        self._again = early and len(self.said) >= self._least and not self._finish
        if self._finish or self._again:
            self._call.cancel()

    def _end(self, reason: str, generated: int) -> None:
        """llama.cpp has ended the call."""
        if reason == "stop":
            self._finish = "stop"
        elif generated > self._counted and not self._room and self._grammar is None:
            # The last tokens are part of a character, and not told: they are generated anew, with room for its end.
            self._room = _CHARACTER
            self._again = True
        else:
            self._finish = "length"

    def _proceed(self) -> None:
        """The call has ended, and the generation has not."""
        if error := self._call.future.exception():
            self._fail(f"llama.cpp failed: {error}")
        elif self._again:
            self._begin()
        else:
            self._fail("llama.cpp ended it without a reason")

    def _fail(self, reason: str) -> None:
        self._error = reason
        self._finish = "error"
        self._call.cancel()

    def _row(self) -> TickRow | None:
        ids: list[int] = []
        logprobs: list[float] = []
        while self._pieces and self._pieces[0].settled:
            piece = self._pieces.popleft()
            if failure := piece.failure:
                self._pieces.clear()
                self._fail(f"llama.cpp does not tell a logprob: {failure}")
                break
            ids += piece.token_ids
            logprobs += [*(score.result() for score in piece.scores), *piece.logprobs]
        finish: FinishReason = "" if self._pieces else self._finish
        if not (ids or finish):
            return None
        self._told = bool(finish)
        said = len(self.said) - sum(len(piece.token_ids) for piece in self._pieces)
        prompt_tokens = len(self.request.prompt_ids)
        error = self._error if finish else ""
        return TickRow(self.request.rid, ids, finish, prompt_tokens, said, self._cached, logprobs, error)
