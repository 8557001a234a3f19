"""The native per-token path: engine wire, tokenization, detokenization, rendering.

Every class is immutable or guarded by a lock; none of them is tied to an event loop.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, final

__all__ = [
    "CodecError",
    "Connection",
    "Detokenizer",
    "Dispatcher",
    "Handshake",
    "Load",
    "Logprobs",
    "Outcome",
    "Output",
    "Prompt",
    "Protocol",
    "ReadyResponse",
    "RequestHead",
    "ResponseFormat",
    "TextOptions",
    "TokenIds",
    "Tokenizer",
    "Utility",
    "Wave",
    "__revision__",
    "__version__",
    "decode_handshake",
    "decode_ready_response",
    "encode_abort",
    "encode_init",
    "encode_start_wave",
    "encode_tokenspeed_request",
    "encode_vllm_request",
]

__version__: str
__revision__: str | None
"""The git revision that it was built from, where the build was told: ``make wheels`` does."""

class CodecError(ValueError):
    """Bytes from an engine that cannot be read; the message names the field, what was expected and what was seen."""

@final
class TokenIds:
    """An immutable column of token ids (u32). ``numpy.asarray`` sees it without a copy.

    Raises ``OverflowError`` for an id outside ``[0, 2**32)``, ``TypeError`` for what is not an integer.
    """

    def __new__(cls, ids: Iterable[int] | None = None, /) -> TokenIds: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def tolist(self) -> list[int]: ...
    def max(self) -> int | None:
        """The highest id; ``None`` for an empty column."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Logprobs:
    """An immutable column of natural-log probabilities (float64), one per token. ``numpy.asarray`` sees it without
    a copy.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> float: ...
    def __iter__(self) -> Iterator[float]: ...
    def tolist(self) -> list[float]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Tokenizer:
    """A ``tokenizer.json``, loaded once and shared by every request of a model."""

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        """Raises ``OSError`` if the file cannot be read, ``ValueError`` if it is not a tokenizer."""
    def encode(self, text: str, add_special_tokens: bool = False) -> TokenIds:
        """Token ids of ``text``, the same as ``tokenizers`` has them. The GIL is released for all but short texts."""
    def encoding_cost(self, text: str) -> int:
        """What ``encode`` has to do, in bytes that ``tokenizers`` would encode in the time; nothing for what it
        remembers.
        """
    def decode(self, ids: TokenIds | Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the whole sequence at once; ids outside the vocabulary contribute nothing."""
    def token_to_id(self, token: str) -> int | None: ...
    def id_to_token(self, id: int) -> str | None: ...
    def stop_token(self, text: str) -> int | None:
        """The token that is exactly this text wherever it stands, and shows in every text.

        An engine may stop at it in the place of the text. ``None`` where there is none: no single token, a special
        one, or a decoder that spells a token by its place.
        """
    @property
    def vocab_size(self) -> int:
        """Ids known to the tokenizer, added tokens included: the highest id plus one."""
    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token, as the vocabulary spells it: a token never stands for more of a text."""

@final
class Detokenizer:
    """Incremental decoding of one sequence: what ``push`` and ``finish`` return, joined, is ``Tokenizer.decode``
    of all ids.
    """

    def __new__(cls, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> Detokenizer: ...
    def push(self, ids: TokenIds | Sequence[int]) -> str:
        """Text that is settled by these ids; an unfinished character waits for the next call."""
    def finish(self) -> str:
        """What was still held back; the sequence ends here."""

@final
class TextOptions:
    """What to do with the text of every generation of a response.

    ``stop``: strings that end a generation; the text ends before the match, or after it with ``include_stop_str``.
    The match that ends first counts, of those that end together the first in the list; none that ends within the first
    ``min_tokens`` tokens.
    ``stop_token_ids`` (the request's) and ``eos_token_ids`` (the model's) are for the engine to stop at; here they
    say which last token has no text (unless ``include_stop_str``), and the first are reported as ``stop_reason`` where
    the engine gives no reason of its own. A token that is in neither (``Tokenizer.stop_token``) has its text, and the
    stop string in it is found.
    ``logprobs``: alternatives asked for with every token, 0 for the sampled token alone. ``prompt_logprobs`` the same
    for the tokens of the prompt. ``None``: none at all. A response whose engine does not send them fails.
    ``hide_output``: what is generated is counted and not shown; the answer is the prompt's echo and logprobs.
    Raises ``ValueError`` for an empty stop string, ``OverflowError`` for a negative number.
    """

    def __new__(
        cls,
        *,
        stop: Sequence[str] = ...,
        stop_token_ids: Sequence[int] = ...,
        eos_token_ids: Sequence[int] = ...,
        include_stop_str: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        hide_output: bool = False,
    ) -> TextOptions: ...

@final
class Prompt:
    """One prompt of a response, as its answers need it. ``echo`` is a text that goes before each of them.

    A chat's stream has it in an event of its own, a completion's in the first. With ``logprobs`` and
    ``prompt_logprobs`` a completion's echo has the logprobs of the prompt's tokens too; its first event waits for them.
    """

    def __new__(cls, ids: TokenIds, *, echo: str | None = None) -> Prompt: ...

@final
class ResponseFormat:
    """What the client of a response receives. ``created`` is in seconds since the epoch."""

    @staticmethod
    def chat(
        *,
        id: str,
        model: str,
        created: int,
        stream: bool,
        include_usage: bool = False,
        continuous_usage: bool = False,
        role: str = "assistant",
    ) -> ResponseFormat:
        """``chat.completion``, or ``chat.completion.chunk`` events with ``stream``.

        ``continuous_usage``: every event tells the usage of its choice so far. ``role``: whose the answer is.
        ``prompt_logprobs`` are a field of the body, and of no event.
        """
    @staticmethod
    def completion(
        *,
        id: str,
        model: str,
        created: int,
        stream: bool,
        include_usage: bool = False,
        continuous_usage: bool = False,
    ) -> ResponseFormat:
        """``text_completion``, whole or as events. Each choice of a body has its ``prompt_logprobs``."""
    @staticmethod
    def outputs() -> ResponseFormat:
        """No rendering: the response ends with a list of ``Output``, for callers in this process.

        Their text equals that of all tokens decoded at once, while a client is spared the U+FFFD of a last character
        that is not all there.
        """

@final
class Output:
    """One finished generation."""

    @property
    def index(self) -> int:
        """Position of the choice in its response."""
    @property
    def text(self) -> str:
        """What was generated, without the prompt's echo."""
    @property
    def token_ids(self) -> TokenIds: ...
    @property
    def logprobs(self) -> Logprobs | None:
        """One per token id; ``None`` where not asked for."""
    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]] | None:
        """Per token: the sampled id, then the likeliest others, with their logprobs; none twice. ``None`` where no
        alternatives were asked for.
        """
    @property
    def prompt_logprobs(self) -> list[list[tuple[int, float, int]] | None] | None:
        """Per token of the prompt: its own id, logprob and rank, then those of the likeliest others. The first has
        ``None``. The whole is ``None`` where not asked for.
        """
    @property
    def finish_reason(self) -> str:
        """``stop``, ``length``, ``abort`` or ``repetition``."""
    @property
    def stop_reason(self) -> str | int | None:
        """The stop string that matched, else the engine's reason, else the request's stop token that was sampled."""
    @property
    def cached_tokens(self) -> int:
        """Prompt tokens the engine found in its cache."""

@final
class Load:
    """An engine's own account of its load, as it came with a tick."""

    @property
    def engine_index(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float:
        """The share of the KV cache that is in use, in [0, 1]."""

@final
class Wave:
    """What an engine of a data-parallel group that runs in lockstep says of its waves (vLLM)."""

    @property
    def engine_index(self) -> int: ...
    @property
    def complete(self) -> int | None:
        """The wave that has ended: the group is idle."""
    @property
    def start(self) -> int | None:
        """The wave that the others shall start."""

@final
class Utility:
    """The answer to a call of an engine's utility method (vLLM). What the method has returned is not kept."""

    @property
    def call_id(self) -> int:
        """The number the call was given."""
    @property
    def failure(self) -> str | None:
        """Why it failed; ``None``: it did not."""

@final
class Protocol:
    """Which wire an engine speaks."""

    @staticmethod
    def tokenspeed() -> Protocol:
        """TokenSpeed's, in every revision."""
    @staticmethod
    def vllm(version: str) -> Protocol:
        """EngineCore's, as this version of vLLM lays it out: ``0.32.0``, ``0.32.0+cpu``, ``0.33.1rc1.dev5``.

        A release between two whose wire is known has that of the lower one; one after them all that of the newest,
        with a ``warning``. Versions of one wire make equal protocols.
        Raises ``ValueError`` for a version before them all, and for what is no version.
        """
    @property
    def warning(self) -> str | None:
        """What an operator should know: the version is newer than all whose wire is known."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Outcome:
    """What one call to the dispatcher has for its caller to do."""

    @property
    def chunks(self) -> list[tuple[object, bytes]]:
        """Per response with news: its sink and the bytes to write.

        Of a stream with a connection it is what that did not take at once. Whoever writes it pauses the response, and
        resumes it when all is written.
        """
    @property
    def ended(self) -> list[tuple[object, bytes | list[Output] | None, str | None]]:
        """Responses that end: sink, last data, error.

        The data are a stream's last events (usage and ``[DONE]`` included), a whole JSON body, or the outputs. Of a
        stream with a connection they are what that did not take at once, its end included.
        With an error they are ``None``, or empty if something of a stream has gone to its connection.
        """
    @property
    def aborts(self) -> list[str]:
        """Request ids the engine must stop: a stop string matched, a sibling failed, or nobody here knows them."""
    @property
    def finished(self) -> list[str]:
        """Request ids that are in flight no more, whichever way they ended."""
    @property
    def loads(self) -> list[Load]: ...
    @property
    def waves(self) -> list[Wave]: ...
    @property
    def utilities(self) -> list[Utility]: ...
    @property
    def consumed(self) -> int:
        """Messages that were read: all of them, or up to the refused one."""
    @property
    def refused(self) -> str | None:
        """Why the last message read was refused, if it was. No row of it was applied."""
    @property
    def engine_dead(self) -> bool:
        """An engine said that it is dying."""
    @property
    def quiet(self) -> bool:
        """There is nothing of all this, or loads alone: most ticks only add to what goes to connections."""

@final
class Connection:
    """An HTTP connection that a streamed response is written to."""

    def __new__(cls, head: bytes, *, fd: int | None, chunked: bool) -> Connection:
        """
        Parameters
        ----------
        head
            What goes before the first bytes: the status line and the headers.
        fd
            The socket, which has to be non-blocking; it is written to without a call of the sink. ``None``, or one that
            cannot be duplicated: the sink writes everything.
        chunked
            Whether events are framed in HTTP/1.1's chunked transfer coding.

        Raises
        ------
        ValueError
            The descriptor is negative.
        """

@final
class RequestHead:
    """The head of an HTTP/1.1 request that asks for no more than to read a body and to answer.

    Attributes
    ----------
    path : str
        The target as written.
    content_length : int
        Bytes of the body.
    keep_alive : bool
        Whether the connection may be used again.
    rank : str or None
        The value of ``X-data-parallel-rank``.
    size : int
        Bytes of the head; the body follows.
    """

    @property
    def path(self) -> str: ...
    @property
    def content_length(self) -> int: ...
    @property
    def keep_alive(self) -> bool: ...
    @property
    def rank(self) -> str | None: ...
    @property
    def size(self) -> int: ...
    @staticmethod
    def parse(data: bytes) -> RequestHead | None:
        """The head that ``data`` begins with.

        ``None`` unless all of it is there, it is well-formed, a POST whose body has a told length and is JSON if any
        type is given, and has nothing to do with other codings, expectations, or protocols.
        """

@final
class Dispatcher:
    """Request id -> generation. One call takes an engine's messages and gives back the bytes to write."""

    def __new__(cls) -> Dispatcher: ...
    def __len__(self) -> int:
        """Generations in flight."""
    def open(
        self,
        sink: object,
        format: ResponseFormat,
        tokenizer: Tokenizer,
        options: TextOptions,
        rids: Sequence[str],
        prompts: Sequence[Prompt],
        connection: Connection | None = None,
    ) -> int:
        """Begin a response with one generation per request id, in the order of its choices; returns its key.

        Each prompt has as many choices as the others: the first ids are those of the first prompt. The events of a
        stream go to ``connection``; without one they come as they are. Raises ``ValueError`` for an id in flight
        already, no id, and ids that do not divide by the prompts.
        """
    def feed(self, protocol: Protocol, messages: Sequence[Sequence[bytes]]) -> Outcome:
        """Apply messages (each a sequence of frames) in order.

        It ends behind a message that is refused: what that held is lost, and the caller settles what becomes of the
        generations it may have been about before it feeds the rest.

        An engine's error fails the response, and so does an abort before any token where that is how the engine
        refuses (TokenSpeed; vLLM's is shown as ``abort``), and an id listed as finished that no row has ended.
        """
    def fail(self, rids: Sequence[str], message: str) -> Outcome:
        """End the responses these generations belong to with an error. Ids not in flight are passed over."""
    def cancel(self, key: int) -> list[str]:
        """Forget a response; returns the request ids an engine is still working on. An unknown key has none."""
    def pause(self, key: int) -> None:
        """Render nothing for a response whose reader is slow; it goes on accumulating. Unknown keys are passed over."""
    def resume(self, key: int) -> bytes | None:
        """End the pause; returns what gathered, as in ``Outcome.chunks``, if anything did. Unknown keys have nothing.

        A response that ends while paused is unpaused by its end: what gathered comes with its last data.
        """

@final
class Handshake:
    """HELLO or READY, as an engine sends them."""

    @property
    def status(self) -> str: ...
    @property
    def local(self) -> bool: ...
    @property
    def headless(self) -> bool: ...

@final
class ReadyResponse:
    """What an engine tells of itself when it registers on the input socket. ``None``: it did not say."""

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and output together."""
    @property
    def num_gpu_blocks(self) -> int | None: ...
    @property
    def block_size(self) -> int | None:
        """Tokens a KV block holds (``block_size``; ``prefix_granularity`` on TokenSpeed)."""
    @property
    def vllm_version(self) -> str | None: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def world_size(self) -> int | None: ...
    @property
    def data_parallel_size(self) -> int | None: ...
    @property
    def data_parallel_rank(self) -> int | None: ...
    @property
    def max_num_seqs(self) -> int | None: ...
    @property
    def max_num_batched_tokens(self) -> int | None:
        """-1 is legal."""

def decode_handshake(payload: bytes) -> Handshake:
    """Raises ``CodecError``."""

def decode_ready_response(payload: bytes) -> ReadyResponse:
    """Raises ``CodecError``."""

def encode_init(inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The INIT answer to HELLO, with the addresses the engine shall connect to."""

def encode_abort(rids: Sequence[str]) -> list[bytes]:
    """Frames of an ABORT message, without the identity: ``[type byte, payload]``."""

def encode_start_wave(wave: int) -> list[bytes]:
    """Frames of vLLM's START_DP_WAVE message, without the identity: ``[type byte, payload]``.

    The engine begins the wave, unless it has passed it. Raises ``OverflowError`` for a wave outside ``[0, 2**64)``.
    """

def encode_tokenspeed_request(
    rid: str,
    input_ids: TokenIds,
    *,
    form: Literal["tagged", "tuple"] = "tagged",
    max_new_tokens: int | None = None,
    stop_token_ids: Sequence[int] | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 1 << 30,
    min_p: float = 0.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    min_new_tokens: int = 0,
    ignore_eos: bool = False,
    seed: int | None = None,
    json_schema: str | None = None,
    regex: str | None = None,
    ebnf: str | None = None,
    structural_tag: str | None = None,
    return_logprob: bool = False,
    stream: bool = True,
) -> list[bytes]:
    """Frames of an ADD message, without the identity: ``[type byte, payload]``.

    Values go on the wire as given; the caller normalises them. ``form="tuple"`` is the first revision of the wire
    (5 and 13 elements, no constraints: ``ValueError`` if one is given).
    """

def encode_vllm_request(
    protocol: Protocol,
    rid: str,
    prompt_token_ids: TokenIds,
    *,
    max_tokens: int,
    min_tokens: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop_token_ids: Sequence[int] = ...,
    ignore_eos: bool = False,
    eos_token_id: int | None = None,
    all_stop_token_ids: Sequence[int] = ...,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    logit_bias: dict[int, float] | None = None,
    allowed_token_ids: Sequence[int] | None = None,
    bad_words_token_ids: Sequence[Sequence[int]] = ...,
    json: str | None = None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    grammar: str | None = None,
    json_object: bool = False,
    structural_tag: str | None = None,
    backend: str | None = None,
    disable_any_whitespace: bool = False,
    disable_additional_properties: bool = False,
    whitespace_pattern: str | None = None,
    skip_reading_prefix_cache: bool = False,
    arrival_time: float = 0.0,
    cache_salt: str | None = None,
    data_parallel_rank: int | None = None,
    client_index: int = 0,
    current_wave: int = 0,
    priority: int = 0,
) -> list[bytes]:
    """Frames of an ADD message, without the identity: ``[type byte, payload]``, in the layout of ``protocol``.

    Values go on the wire as given, and the engine checks none of them: the caller does. ``eos_token_id`` and
    ``all_stop_token_ids`` (the model's and the request's) are what the engine stops at. ``backend`` and the three
    arguments after it say how a constraint is enforced; without one they are not sent. Raises ``ValueError`` for a
    protocol that is not vLLM's, and for more than one constraint (``json``, ``regex``, ``choice``, ``grammar``,
    ``json_object``, ``structural_tag``).
    """
