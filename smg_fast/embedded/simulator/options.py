"""The simulator's options, as a struct and as command-line arguments."""

from __future__ import annotations

import argparse
from typing import get_args

import msgspec

from smg_fast.embedded.arguments import add_life_arguments, add_wire_arguments, integer, seconds
from smg_fast.embedded.simulator.faults import Failure, Faults
from smg_fast.embedded.simulator.rules import Runtime
from smg_fast.embedded.simulator.script import TurnMarkers
from smg_fast.embedded.wire.tokenspeed import REVISIONS, Revision
from smg_fast.embedded.wire.vllm import DEFAULT_VERSION, VERSIONS
from smg_fast.embedded.wire.vllm.layouts import layout_of

RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
FAILURES: tuple[Failure, ...] = get_args(Failure)


class SimulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulator behaves. It knows token ids only: who has a tokenizer fills ``eos_token_ids``, ``markers`` and
    ``token_ids`` (see ``options_from``).
    """

    handshake: str
    index: int = 0
    runtime: Runtime = "tokenspeed"
    """The engine family whose wire is spoken."""
    revision: Revision = "tagged14"
    """Of TokenSpeed's ticks."""
    vllm_version: str = DEFAULT_VERSION
    tick_ms: float = 10.0
    """0: as fast as the gateway reads."""
    tokens_per_tick: int = 1
    max_running: int = 256
    max_model_len: int = 8192
    vocab_size: int = 1 << 31
    """Token ids there are; by default as many as an engine's arrays can hold."""
    max_logprobs: int = 20
    """Alternatives that a request for logprobs may ask for (vLLM); -1: all."""
    page_size: int = 64
    cached_tokens: int = 0
    abort_rows: bool = False
    rules: bool = True
    """Refuse requests that a gateway must not send. Other gateways than this one send some that engines take."""
    data_parallel_size: int = 1
    """Engines of the group. Those of more than one step together, and tell of their waves (vLLM)."""
    token_ids: tuple[int, ...] = ()
    """What to say; empty: echo the prompt."""
    answers: str | None = None
    """A file of recorded answers to give instead, see ``answers``."""
    eos_token_ids: tuple[int, ...] = ()
    markers: TurnMarkers | None = None
    local: bool = True
    redial: bool = True
    exit_with_parent: int | None = None
    faults: Faults = Faults()

    @property
    def waves(self) -> bool:
        """Whether it tells of waves: TokenSpeed's wire has none."""
        return self.runtime == "vllm" and self.data_parallel_size > 1

    @property
    def num_pages(self) -> int:
        """Enough for every slot at full length."""
        return self.max_running * -(-self.max_model_len // self.page_size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option; ``options_from`` reads them back."""
    default = SimulatorOptions(handshake="")
    wire = add_wire_arguments(parser)
    wire.add_argument(
        "--runtime", choices=RUNTIMES, default=default.runtime, help="the engine to pass for (default %(default)s)"
    )
    wire.add_argument(
        "--revision",
        choices=REVISIONS,
        default=default.revision,
        help="of TokenSpeed's output ticks (default %(default)s)",
    )
    wire.add_argument(
        "--vllm-version",
        type=_vllm_version,
        default=default.vllm_version,
        metavar="VERSION",
        help=f"of vLLM, from {VERSIONS[0]} (default %(default)s)",
    )
    wire.add_argument(
        "--data-parallel-size",
        type=integer(1),
        default=default.data_parallel_size,
        metavar="N",
        help="engines of a group in lockstep, this one included; vLLM's tell of their waves (default %(default)s)",
    )

    speed = parser.add_argument_group("pace and size")
    speed.add_argument(
        "--tick-ms",
        type=seconds,
        default=default.tick_ms,
        metavar="MS",
        help="milliseconds between ticks; 0: as fast as the gateway reads (default %(default)g)",
    )
    speed.add_argument(
        "--tokens-per-tick",
        type=integer(1),
        default=default.tokens_per_tick,
        metavar="N",
        help="several are what speculative decoding gives (default %(default)s)",
    )
    speed.add_argument(
        "--max-running",
        type=integer(1),
        default=default.max_running,
        metavar="N",
        help="slots; more requests wait (default %(default)s)",
    )
    speed.add_argument(
        "--max-model-len",
        dest="context",
        type=integer(2),
        metavar="N",
        help=f"context: prompt and output together (default: the model's, or {default.max_model_len})",
    )
    speed.add_argument(
        "--vocab-size",
        dest="vocabulary",
        type=integer(1),
        metavar="N",
        help="token ids there are; a request with another breaks a rule (default: the model's, or any)",
    )
    speed.add_argument(
        "--max-logprobs",
        type=integer(-1),
        default=default.max_logprobs,
        metavar="N",
        help="alternatives that vLLM gives logprobs of; -1: any number (default %(default)s)",
    )
    speed.add_argument(
        "--page-size", type=integer(1), default=default.page_size, metavar="N", help="tokens in a cache page"
    )
    speed.add_argument(
        "--cached-tokens",
        type=integer(0),
        default=default.cached_tokens,
        metavar="N",
        help="so much of each prompt is said to come from the cache (default %(default)s)",
    )

    ids = parser.add_argument_group("token ids", "what the simulator says, where no tokenizer gives these")
    ids.add_argument(
        "--token-ids", type=integer(0), nargs="+", default=(), metavar="ID", help="say this; else echo the prompt"
    )
    ids.add_argument(
        "--answers", metavar="FILE", help="give these recorded answers, in JSON, and refuse what is not among them"
    )
    ids.add_argument(
        "--eos-token-id",
        dest="eos_token_ids",
        type=integer(0),
        nargs="+",
        default=(),
        metavar="ID",
        help="these end a generation; the first is the one said",
    )
    ids.add_argument(
        "--turn-start-id", type=integer(0), metavar="ID", help="with --turn-end-id: echo only the last turn"
    )
    ids.add_argument("--turn-end-id", type=integer(0), metavar="ID")
    ids.add_argument(
        "--role-separator-ids",
        type=integer(0),
        nargs="+",
        default=(),
        metavar="ID",
        help="any of them ends a turn's role",
    )

    life = add_life_arguments(parser)
    life.add_argument("--abort-rows", action="store_true", help="answer an abort with a last row in the next tick")
    life.add_argument(
        "--no-rules", dest="rules", action="store_false", help="take requests that a gateway must not send, too"
    )

    faults = parser.add_argument_group("faults", "each after N good ticks")
    faults.add_argument("--die-after", type=integer(0), metavar="N", help="kill itself without a word")
    faults.add_argument("--dead-frame-after", type=integer(0), metavar="N", help="announce its death and exit")
    faults.add_argument("--silent-after", type=integer(0), metavar="N", help="never say anything again")
    faults.add_argument("--malformed-after", type=integer(0), metavar="N", help="send half a tick")
    faults.add_argument(
        "--malformed-count", type=integer(1), default=1, metavar="N", help="so many in a row (default 1)"
    )
    faults.add_argument(
        "--ragged-after", type=integer(0), metavar="N", help="send a tick with a column too short (vLLM: a row)"
    )
    faults.add_argument(
        "--fail-after", type=integer(0), metavar="N", help="end each generation so, after N ticks of its own"
    )
    faults.add_argument(
        "--fail-as", choices=FAILURES, default="error", help="with this finish reason (default %(default)s)"
    )
    faults.add_argument("--slow-start", type=seconds, default=0.0, metavar="SECONDS", help="wait before the handshake")
    faults.add_argument("--slow-load", type=seconds, default=0.0, metavar="SECONDS", help="wait between INIT and READY")


def options_from(
    arguments: argparse.Namespace,
    *,
    token_ids: tuple[int, ...] = (),
    eos_token_ids: tuple[int, ...] = (),
    markers: TurnMarkers | None = None,
    max_model_len: int | None = None,
    vocab_size: int | None = None,
) -> SimulatorOptions:
    """The options of parsed arguments. The keyword arguments are a model directory's word; the parsed ones go first."""
    options = msgspec.convert(arguments, SimulatorOptions, from_attributes=True)
    if arguments.turn_start_id is not None and arguments.turn_end_id is not None:
        markers = TurnMarkers(arguments.turn_start_id, arguments.turn_end_id, tuple(arguments.role_separator_ids))
    return msgspec.structs.replace(
        options,
        token_ids=options.token_ids or token_ids,
        eos_token_ids=options.eos_token_ids or eos_token_ids,
        markers=markers,
        max_model_len=arguments.context or max_model_len or options.max_model_len,
        vocab_size=arguments.vocabulary or vocab_size or options.vocab_size,
        faults=msgspec.convert(arguments, Faults, from_attributes=True),
    )


def _vllm_version(text: str) -> str:
    try:
        layout_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
