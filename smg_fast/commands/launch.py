"""``smg-fast launch``: the gateway, for an engine that is started on its own."""

from __future__ import annotations

import argparse

from ..settings import GatewaySettings, WorkerSettings
from .options import add_options, read_options, refuse

HELP = "run the gateway for an engine that is started on its own"
DESCRIPTION = "Run the gateway. Engines dial in when they come up, and again when they come back."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WorkerSettings, "worker and model")
    add_options(parser, GatewaySettings, "gateway")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """Returns the exit code."""
    refuse(parser, others)
    from . import running

    gateway = read_options(parser, arguments, GatewaySettings)
    worker = read_options(parser, arguments, WorkerSettings)
    return running.run(_launch(gateway, worker), gateway.log_level)


async def _launch(gateway: GatewaySettings, worker: WorkerSettings) -> None:
    from ..gateway.server import GatewayServer
    from .running import exit_signal, freeze

    asked_to_exit = exit_signal()
    server = GatewayServer(gateway, [worker])
    await server.start()
    try:
        print(f"smg-fast listens on {server.url}; engines dial {', '.join(server.handshakes)}", flush=True)
        freeze()
        await asked_to_exit.wait()
    finally:
        await server.stop()
