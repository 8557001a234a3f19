"""llama.cpp, loaded into this process: completions of token ids, as events.

Facts about the server inside ``xllamacpp`` (2026.10, llama.cpp b11549) were found by trying it.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from smg_fast.embedded.llamacpp.fragments import Fragments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from smg_fast.embedded.llamacpp.options import LlamaOptions

_Result = TypeVar("_Result")

# Prompt tokens computed between one look at the other generations, and at aborts, and the next.
_BATCH = 256
_ERRORS_ONLY = 1
_LIKELY = 64
_EVERY_TOKEN = 1 << 30
_CERTAIN = 1e6  # as a logit's bias


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A completion, as llama.cpp's server takes it: greedy unless told otherwise.

    All of it is sent, so that nothing is left to the defaults of the server or of the model.
    """

    prompt: list[int]
    n_predict: int
    stream: bool = True
    n_probs: int = 1
    timings_per_token: bool = True
    return_progress: bool = True
    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    samplers: tuple[str, ...] = ("penalties", "temperature", "top_k", "top_p", "min_p")
    seed: int = 0
    ignore_eos: bool = False
    logit_bias: list[tuple[int, bool | float]] = []
    """``False``: never."""
    grammar: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A token that could have been sampled."""

    id: int
    logprob: float
    bytes: list[int]


class Sampled(msgspec.Struct, frozen=True):
    """A token that was."""

    id: int
    logprob: float
    top_logprobs: list[Candidate]
    """The likeliest, best first: as many as ``n_probs``."""


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[Sampled]


class Choice(msgspec.Struct, frozen=True):
    text: str
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None

    @property
    def tokens(self) -> list[Sampled]:
        return self.logprobs.content if self.logprobs is not None else []


class Timings(msgspec.Struct, frozen=True):
    predicted_n: int = 0
    """Tokens generated so far."""
    cache_n: int = 0
    """Tokens of the prompt that were in the cache."""


class _Error(msgspec.Struct, frozen=True):
    message: str


class Event(msgspec.Struct, frozen=True):
    """Progress with the prompt, a token, the end, or an error."""

    choices: list[Choice] = []
    timings: Timings = Timings()
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(Event)


class ModelError(Exception):
    """The model cannot be loaded."""


class Call:
    """A completion under way. ``cancel`` ends it at its next event."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.cancelled = False
        self.future: Future[None]
        self._events: deque[bytes] = deque()

    @property
    def done(self) -> bool:
        """Nothing will come any more, and llama.cpp has let go of it."""
        return self.future.done()

    def cancel(self) -> None:
        self.cancelled = True

    def put(self, event: bytes) -> None:
        """For llama.cpp's side: from any thread."""
        self._events.append(event)

    def take(self) -> Iterator[Event]:
        """The events that have come."""
        while self._events:
            yield _EVENT.decode(self._events.popleft())


class Llama:
    """A model, loaded. Up to ``slots`` calls are worked on at once, each by a thread that waits for llama.cpp.

    Parameters
    ----------
    wake
        Called from any thread when a call or a score has news.

    Raises
    ------
    ModelError
        ``xllamacpp`` is not here, or does not load the file: then llama.cpp writes the reason to standard error.
    """

    def __init__(self, options: LlamaOptions, wake: Callable[[], None]) -> None:
        self._server = _load(options)
        self._wake = wake
        self._threads = ThreadPoolExecutor(options.slots, thread_name_prefix="slot")
        self._shown: list[tuple[int, bool | float]] = []
        vocabulary = self._vocabulary()
        self.fragments = Fragments({token.id: bytes(token.bytes) for token in vocabulary})
        shown = next(token.id for token in vocabulary if bytes(token.bytes).isascii() and token.bytes)
        self._shown = [(shown, _CERTAIN)]

    def call(self, body: Body) -> Call:
        """Begins a completion."""
        call = Call(body)
        call.future = self._begin(partial(self._work, call))
        return call

    def score(self, prompt: list[int], id: int) -> Future[float]:
        """The logprob of a token after a prompt, in a slot of its own as soon as one is free."""
        return self._begin(partial(self._score, prompt, id))

    def close(self) -> None:
        """Returns when every call has ended: cancel them first."""
        self._threads.shutdown(cancel_futures=True)
        del self._server

    def _begin(self, work: Callable[[], _Result]) -> Future[_Result]:
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._wake())
        return future

    def _work(self, call: Call) -> None:
        def callback(event: bytes) -> bool:
            call.put(event)
            self._wake()
            return call.cancelled

        if not call.cancelled:
            self._server.handle_completions(msgspec.json.encode(call.body), callback)

    def _score(self, prompt: list[int], id: int) -> float:
        for count in (_LIKELY, _EVERY_TOKEN):
            for token in self._rank(prompt, count):
                if token.id == id:
                    return token.logprob
        raise LookupError(f"llama.cpp has no logprob for token {id}")

    def _vocabulary(self) -> list[Candidate]:
        """Every token. This is also the first completion, which warms llama.cpp up."""
        for id in range(8):
            if vocabulary := self._rank([id], _EVERY_TOKEN):
                return vocabulary
        raise ModelError("llama.cpp does not tell the model's vocabulary")

    def _rank(self, prompt: list[int], count: int) -> list[Candidate]:
        """The likeliest tokens after a prompt, best first. Empty if the one that is sampled is kept back."""
        events: list[bytes] = []
        body = Body(prompt=prompt, n_predict=1, stream=False, n_probs=count, logit_bias=self._shown)
        self._server.handle_completions(msgspec.json.encode(body), events.append)
        tokens = [token for event in events for choice in _EVENT.decode(event).choices for token in choice.tokens]
        return tokens[0].top_logprobs if tokens else []


def _load(options: LlamaOptions) -> Any:
    # Threads that wait for each other in a loop take the CPU from those they wait for, where others want to run too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelError(f"xllamacpp cannot be imported: {error}") from None

    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.n_ctx = options.context * options.slots
    parameters.n_parallel = options.slots
    parameters.n_batch = parameters.n_ubatch = max(_BATCH, options.slots)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.fit_params = False
    parameters.warmup = False
    # Else gigabytes of old prompts are kept beside the slots, each of which keeps its last.
    parameters.cache_ram_mib = 0
    parameters.verbosity = _ERRORS_ONLY
    # It also listens on a port, which nobody shall use.
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.n_threads_http = 1
    parameters.ui = False
    parameters.endpoint_slots = False
    try:
        return xllamacpp.Server(parameters)
    except RuntimeError as error:
        raise ModelError(f"{options.model}: {error}") from None
