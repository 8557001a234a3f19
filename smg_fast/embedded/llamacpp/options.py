"""The engine's options, as a struct and as command-line arguments."""

from __future__ import annotations

import argparse
import os

import msgspec

from smg_fast.embedded.arguments import add_life_arguments, add_wire_arguments, integer

_LONGEST_CONTEXT = 8192


class LlamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine behaves. It knows token ids only."""

    handshake: str
    model: str
    """A GGUF file."""
    index: int = 0
    context: int = _LONGEST_CONTEXT
    """Tokens of prompt and output together that one generation may have."""
    slots: int = 4
    """Generations at once; more requests wait."""
    threads: int = 1
    """Threads that compute."""
    local: bool = True
    redial: bool = True
    exit_with_parent: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option; ``options_from`` reads them back."""
    add_wire_arguments(parser)
    size = parser.add_argument_group("model and size")
    size.add_argument("--model", required=True, metavar="FILE", help="the model, a GGUF file")
    size.add_argument(
        "--ctx-size",
        dest="given_context",
        type=integer(2),
        metavar="N",
        help="context: tokens of prompt and output together that one request may have (default: the model's, "
        f"or {_LONGEST_CONTEXT} if that is less)",
    )
    size.add_argument(
        "--slots",
        type=integer(1),
        default=4,
        metavar="N",
        help="requests at once, each with its own context; more wait (default %(default)s)",
    )
    size.add_argument(
        "--threads", type=integer(1), default=_cpus(), metavar="N", help="threads that compute (default: the CPUs')"
    )
    add_life_arguments(parser)


def options_from(arguments: argparse.Namespace, *, context: int | None = None) -> LlamaOptions:
    """The options of parsed arguments; ``context`` is what the model was made for, if it says so."""
    options = msgspec.convert(arguments, LlamaOptions, from_attributes=True)
    return msgspec.structs.replace(
        options, context=arguments.given_context or min(context or _LONGEST_CONTEXT, _LONGEST_CONTEXT)
    )


def _cpus() -> int:
    """Those this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
