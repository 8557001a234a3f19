"""``python -m smg_fast.commands.gateway_process JSON``: one of several gateway processes; ``processes`` starts them."""

from __future__ import annotations

import os
import sys

import msgspec

from ..gateway.processes import GatewayProcess
from ..gateway.server import GatewayServer
from ..settings import GatewaySettings, WorkerSettings
from . import running


class Arguments(msgspec.Struct, frozen=True):
    """What a process is told, in JSON. The port is that which all share."""

    process: GatewayProcess
    gateway: GatewaySettings
    workers: tuple[WorkerSettings, ...]


def command(arguments: Arguments) -> list[str]:
    """The command line that runs it."""
    return [sys.executable, "-m", __name__, msgspec.json.encode(arguments).decode()]


def run(arguments: Arguments) -> int:
    """Returns the exit code."""
    name = f"gateway {arguments.process.index}: "
    return running.run(_serve(arguments), arguments.gateway.log_level, name=name)


async def _serve(arguments: Arguments) -> None:
    parent = os.getppid()
    # Whoever signals a whole group of processes, as systemd does, has the parent signal as well: it decides.
    asked_to_exit = running.exit_signal(at_once=lambda: os.getppid() != parent)
    server = GatewayServer(arguments.gateway, arguments.workers, arguments.process)
    await server.start()
    try:
        running.freeze()
        await asked_to_exit.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(run(msgspec.json.decode(sys.argv[1], type=Arguments)))
