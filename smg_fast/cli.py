"""The command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol

from . import _codec
from .commands import launch, llamacpp, serve, simulate, workers


class Command(Protocol):
    """What a module of ``commands`` has."""

    HELP: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
        """``others`` are the arguments that the parser did not know. Returns the exit code."""


_COMMANDS: dict[str, Command] = {
    "launch": launch,
    "serve": serve,
    "workers": workers,
    "simulate": simulate,
    "llamacpp": llamacpp,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit code: 0, or 1 if it failed. Wrong usage exits with 2.

    When whoever reads its output has gone, as ``head`` does, that is as if SIGPIPE had ended it.
    """
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:  # it is where it was closed
                sys.stdout.flush()
    except BrokenPipeError:
        # What is left would be written at the exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="smg-fast",
        description="An OpenAI-compatible gateway that speaks the inference engine's own ZeroMQ wire.",
    )
    parser.add_argument("--version", action="version", version=f"smg-fast {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION, allow_abbrev=False)
        for name, command in _COMMANDS.items()
    }
    for name, command in _COMMANDS.items():
        command.add_arguments(parsers[name])
    arguments, others = parser.parse_known_args(argv)
    return _COMMANDS[arguments.command].run(parsers[arguments.command], arguments, others)


def _version() -> str:
    return f"{_codec.__version__} ({_codec.__revision__})" if _codec.__revision__ else _codec.__version__
