"""``smg-fast launch``: the gateway, for engines that are started on their own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..settings import GatewaySettings, WorkerSettings
from .options import add_options, convert, read_options, refuse

HELP = "run the gateway for engines that are started on their own"
DESCRIPTION = (
    "Run the gateway. Engines dial in when they come up, and again when they come back. There may be several workers: "
    "options before the first --worker are for all of them, those behind a --worker for that one. Others can be added "
    "while the gateway runs: see smg-fast workers."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WorkerSettings, "workers and models", in_order=True)
    add_options(parser, GatewaySettings, "gateway")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """Returns the exit code."""
    refuse(parser, others)
    from . import running

    gateway = read_options(parser, arguments, GatewaySettings)
    workers = _workers(parser, getattr(arguments, "in_order", ()))
    for worker in workers:
        _check_addresses(parser, worker)
    return running.run(_launch(gateway, workers), gateway.log_level)


def _workers(parser: argparse.ArgumentParser, options: Sequence[tuple[str, Any]]) -> list[WorkerSettings]:
    """Of options by name, in the order they came."""
    common: dict[str, Any] = {}
    workers: list[dict[str, Any]] = []
    for name, value in options:
        if name == "worker":
            workers.append({**common, name: value})
        else:
            (workers[-1] if workers else common)[name] = value
    if common and not workers:
        parser.error("there are options for workers and no --worker")
    return [convert(parser, worker, WorkerSettings) for worker in workers]


def _check_addresses(parser: argparse.ArgumentParser, worker: WorkerSettings) -> None:
    """End the process, as argparse does it, if there can be no sockets at them."""
    from ..transport import AddressError, check_own_host, worker_addresses

    option = "--worker"
    try:
        worker_addresses(worker.worker)
        option = "--handshake-address"
        worker_addresses(worker.worker, worker.handshake_address)
        if worker.handshake_address is not None:
            check_own_host(worker.handshake_address)
    except AddressError as error:
        parser.error(f"argument {option}: {error}")


async def _launch(gateway: GatewaySettings, workers: Sequence[WorkerSettings]) -> int:
    from . import processes
    from .running import ExitRequest, freeze

    server = processes.gateway(gateway, workers)
    exit_request = ExitRequest(server.hurry)
    if await exit_request.comes_before(server.start()):
        return exit_request.exit_code
    try:
        dialled = f"engines dial {', '.join(server.handshakes)}" if workers else "smg-fast workers add gives it workers"
        print(f"smg-fast listens on {server.url}; {dialled}", flush=True)
        freeze()
        await exit_request.wait()
    finally:
        await server.stop()
    return exit_request.exit_code
