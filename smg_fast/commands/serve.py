"""``smg-fast serve``: an engine and the gateway for it, started and ended together."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ..settings import GatewaySettings, ModelSettings, ServeSettings, WorkerSettings
from . import llamacpp, simulate, vllm
from .options import add_options, read_options

logger = logging.getLogger(__name__)

HELP = "start an engine and the gateway together"
DESCRIPTION = "Start an engine and the gateway for it. Both end together."
EPILOG = (
    "Options that are not listed here, and whatever follows --, go to the engine: those of vllm are in `vllm serve "
    "--help`, those of llamacpp in `smg-fast llamacpp --help` (--ctx-size, --slots, --threads), those of the simulator "
    "in `smg-fast simulate --help`."
)


class Backend(Protocol):
    """What a module of this package has to have for its engine to be started here. ``options`` are the engine's own."""

    def model(self, parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
        """What the engine shall serve, and its name."""

    def runtime(self, options: Sequence[str]) -> str:
        """The engine family."""

    def command(
        self,
        parser: argparse.ArgumentParser,
        settings: ServeSettings,
        worker: WorkerSettings,
        model: str,
        options: Sequence[str],
    ) -> list[str]:
        """The engine's command line. Both end the process, in the name of ``parser``, for what cannot be."""


_BACKENDS: dict[str, Backend] = {"vllm": vllm, "llamacpp": llamacpp, "simulator": simulate}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_options(parser, ServeSettings, "engine")
    add_options(parser, GatewaySettings, "gateway")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """``others`` are the engine's own options. Returns the exit code."""
    from . import running

    gateway = read_options(parser, arguments, GatewaySettings)
    settings = read_options(parser, arguments, ServeSettings)
    options = list(others)
    if "--" in options:
        options.remove("--")
    backend = _BACKENDS[settings.backend]
    model, name = backend.model(parser, settings)
    worker = _worker(settings, backend.runtime(options), model, name)
    command = backend.command(parser, settings, worker, model, options)
    return running.run(_serve(gateway, worker, command), gateway.log_level)


async def _serve(gateway: GatewaySettings, worker: WorkerSettings, command: list[str]) -> None:
    from ..gateway.server import GatewayServer
    from ..workers.engine_process import EngineProcess
    from .running import exit_signal, freeze

    asked_to_exit = exit_signal()
    server = GatewayServer(gateway, [worker])
    await server.start()
    logger.info("listening on %s; requests are answered with 503 until the engine is ready", server.url)
    engine = asyncio.create_task(EngineProcess(command).run())
    asked = asyncio.create_task(asked_to_exit.wait())
    ready = asyncio.create_task(server.wait_ready())
    try:
        await asyncio.wait((engine, asked, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            print(_ready_text(server.url, worker.served_model_name[0]), flush=True)
            freeze()
        await asyncio.wait((engine, asked), return_when=asyncio.FIRST_COMPLETED)
        if engine.done():
            engine.result()
    finally:
        await server.stop()
        for task in (engine, asked, ready):
            task.cancel()
        await asyncio.gather(engine, asked, ready, return_exceptions=True)


def _worker(settings: ServeSettings, runtime: str, model: str, name: str) -> WorkerSettings:
    model_settings = {field: getattr(settings, field) for field in ModelSettings.__struct_fields__}
    return WorkerSettings(
        **{**model_settings, "served_model_name": settings.served_model_name or (name,)},
        worker=f"ipc://{socket_directory()}/{settings.backend}-{os.getpid()}",
        runtime=runtime,
        model=settings.tokenizer or model,
        # One that is free, as the one that belongs to the path may be taken and nobody else has to know it.
        handshake_address=f"tcp://127.0.0.1:{_free_port()}",
    )


def socket_directory() -> Path:
    """Where sockets live: ``SMG_ZMQ_SOCKET_DIR``, or a directory of this user's own."""
    if given := os.environ.get("SMG_ZMQ_SOCKET_DIR"):
        return Path(given).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime).absolute() / "smg-fast"
    return Path(tempfile.gettempdir()).absolute() / f"smg-fast-{os.getuid()}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
