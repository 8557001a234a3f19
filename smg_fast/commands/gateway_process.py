"""``python -m smg_fast.commands.gateway_process JSON``: one of several gateway processes; ``processes`` starts them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from ..gateway.processes import GatewayProcess
from ..gateway.server import GatewayServer
from ..settings import GatewaySettings, WorkerSettings
from . import running

#: Tells it to wait for no request any more. The parent alone sends it: a second SIGTERM may come from whoever signals a
#: whole group of processes, as systemd does.
HURRY = signal.SIGUSR1


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


async def _serve(arguments: Arguments) -> int:
    parent = os.getppid()
    server = GatewayServer(arguments.gateway, arguments.workers, arguments.process)
    exit_request = running.ExitRequest(server.hurry, again=lambda: os.getppid() != parent)
    asyncio.get_running_loop().add_signal_handler(HURRY, server.hurry)
    if await exit_request.comes_before(server.start()):
        return exit_request.exit_code
    try:
        running.freeze()
        await exit_request.wait()
    finally:
        await server.stop()
    return exit_request.exit_code


if __name__ == "__main__":
    sys.exit(run(msgspec.json.decode(sys.argv[1], type=Arguments)))
