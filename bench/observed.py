"""smg-fast, telling what it holds: python -m bench.observed SOCKET ARGUMENT...

Runs ``smg-fast ARGUMENT...``, and at each SIGUSR1 sends its ``Holdings`` to a Unix datagram socket, as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from types import FrameType

import msgspec

from smg_fast import cli


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What the interpreter keeps alive: asyncio's tasks, and all objects that the garbage collector looks at."""

    tasks: int
    objects: int


def main() -> int:
    """Returns the exit code."""
    path, *arguments = sys.argv[1:]
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def tell(number: int, frame: FrameType | None) -> None:
        gc.collect()
        objects = gc.get_objects()
        tasks = sum(issubclass(type(one), asyncio.Task) for one in objects)
        sender.sendto(msgspec.json.encode(Holdings(tasks=tasks, objects=len(objects))), path)

    signal.signal(signal.SIGUSR1, tell)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
