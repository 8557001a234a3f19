"""``smg-fast serve``: engines and the gateway for them, started and ended together."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..engines.launch import EngineLaunch, LaunchError
from ..settings import GatewaySettings, ModelSettings, ServeSettings, WorkerSettings
from . import llamacpp, simulate, tokenspeed, vllm
from .options import add_options, read_options

if TYPE_CHECKING:
    from .terminal import Terminal

logger = logging.getLogger(__name__)

HELP = "start engines and the gateway together"
DESCRIPTION = "Start an engine, or several, and the gateway for them. All end together."
EPILOG = (
    "Options that are not listed here, and whatever follows --, go to the engine: those of vllm are in `vllm serve "
    "--help`, those of tokenspeed in `tokenspeed serve --help`, those of llamacpp in `smg-fast llamacpp --help` "
    "(--ctx-size, --slots, --threads), those of the simulator in `smg-fast simulate --help`."
)


class Backend(Protocol):
    """What a module of this package has to have for its engine to be started here. ``options`` are the engine's own."""

    def model(self, parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
        """What the engine shall serve, and its name; ends the process, in the name of ``parser``, if there is none."""

    def runtime(self, options: Sequence[str]) -> str:
        """The engine family."""

    def launches(
        self, settings: ServeSettings, worker: WorkerSettings, handshake: str, model: str, options: Sequence[str]
    ) -> list[EngineLaunch]:
        """The processes to start, which run ``settings.dp_size`` engines. Raises ``LaunchError``.

        ``handshake`` is where they shall dial.
        """


_BACKENDS: dict[str, Backend] = {
    "vllm": vllm,
    "tokenspeed": tokenspeed,
    "llamacpp": llamacpp,
    "simulator": simulate,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_options(parser, ServeSettings, "engine")
    add_options(parser, GatewaySettings, "gateway")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """``others`` are the engine's own options. Returns the exit code."""
    from ..transport import AddressError, worker_addresses
    from . import running
    from .terminal import Terminal

    gateway = read_options(parser, arguments, GatewaySettings)
    settings = read_options(parser, arguments, ServeSettings)
    options = list(others)
    if "--" in options:
        options.remove("--")
    backend = _BACKENDS[settings.backend]
    model, name = backend.model(parser, settings)
    try:
        worker = _worker(settings, backend.runtime(options), model, name)
        handshake = worker_addresses(worker.worker).handshake
        launches = backend.launches(settings, worker, handshake, model, options)
    except (AddressError, LaunchError) as error:
        parser.error(str(error))
    terminal = Terminal()
    return running.run(_serve(gateway, worker, launches, terminal), gateway.log_level, terminal)


async def _serve(
    gateway: GatewaySettings, worker: WorkerSettings, launches: Sequence[EngineLaunch], terminal: Terminal
) -> int:
    from ..transport.addresses import worker_addresses
    from ..transport.socket_directory import clear_left_workers, user_directory
    from ..transport.survivors import roster_path
    from . import processes
    from .engines import run_engines
    from .running import ExitRequest, freeze

    server = processes.gateway(gateway, [worker], terminal)
    exit_request = ExitRequest(server.hurry)
    if await exit_request.comes_before(server.start()):
        return exit_request.exit_code
    for path in clear_left_workers(user_directory()):
        logger.info("cleared away what a gateway that was killed has left at %s", path)
    logger.info("listening on %s; requests are answered with 503 until an engine is ready", server.url)
    is_ready = partial(server.is_ready, worker.worker)
    engines = asyncio.create_task(run_engines(launches, is_ready, terminal, verbose=gateway.log_level == "debug"))
    asked = asyncio.create_task(exit_request.wait())
    ready = asyncio.create_task(server.wait_ready())
    try:
        await asyncio.wait((engines, asked, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            terminal.erase()
            print(_ready_text(server.url, worker.served_model_name[0]), flush=True)
            freeze()
        await asyncio.wait((engines, asked), return_when=asyncio.FIRST_COMPLETED)
        if engines.done():
            engines.result()
    finally:
        await server.stop()
        for task in (engines, asked, ready):
            task.cancel()
        await asyncio.gather(engines, asked, ready, return_exceptions=True)
        # The engines have ended as well, and nobody has to know them any more.
        addresses = worker_addresses(worker.worker)
        for process in range(gateway.gateway_processes):
            roster_path(addresses.of_process(process)).unlink(missing_ok=True)
    return exit_request.exit_code


def _worker(settings: ServeSettings, runtime: str, model: str, name: str) -> WorkerSettings:
    from ..transport.addresses import unused_worker_url
    from ..transport.socket_directory import process_name, user_directory

    model_settings = {field: getattr(settings, field) for field in ModelSettings.__struct_fields__}
    return WorkerSettings(
        **{**model_settings, "served_model_name": settings.served_model_name or (name,)},
        worker=unused_worker_url(user_directory() / process_name(settings.backend)),
        runtime=runtime,
        model=settings.tokenizer or model,
        engine_count=settings.dp_size,
    )


def _ready_text(url: str, model: str) -> str:
    body = msgspec.json.encode(
        {
            "model": model,
            "stream": True,
            "temperature": 0.2,
            "messages": [{"role": "user", "content": "Hello, who are you?"}],
        }
    ).decode()
    return (
        f"smg-fast is ready at {url}/v1 with model {model!r}; Ctrl-C stops it. Try:\n"
        f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
