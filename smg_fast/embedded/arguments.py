"""Command-line arguments that every engine here has, and the types of arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def add_wire_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """``--handshake``, ``--index``, ``--remote`` and ``--no-redial``; returns their group, for more of the kind."""
    wire = parser.add_argument_group("wire")
    wire.add_argument(
        "--handshake", required=True, type=address, metavar="ADDRESS", help="the gateway's handshake, tcp://HOST:PORT"
    )
    wire.add_argument(
        "--index", type=integer(0, 65535), default=0, metavar="N", help="engine index (default %(default)s)"
    )
    wire.add_argument(
        "--remote", dest="local", action="store_false", help="claim to run on another host than the gateway"
    )
    wire.add_argument(
        "--no-redial", dest="redial", action="store_false", help="do not dial again when the gateway goes away"
    )
    return wire


def add_life_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """``--exit-with-parent``; returns its group."""
    life = parser.add_argument_group("life")
    life.add_argument(
        "--exit-with-parent", type=integer(1), metavar="PID", help="end when process PID, which started this one, ends"
    )
    return life


def address(text: str) -> str:
    """A ZeroMQ address."""
    if not text.startswith(("tcp://", "ipc://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tcp:// or ipc:// address")
    return text


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """An integer within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is not {f'in {least}..{most}' if most else f'at least {least}'}")
        return value

    return parse


def seconds(text: str) -> float:
    """A duration in whatever unit: finite, and not negative."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration")
    return value
