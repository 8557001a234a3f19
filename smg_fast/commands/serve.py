"""``smg-fast serve``: an engine and the gateway for it, started and ended together."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ..settings import GatewaySettings, ServeSettings, WorkerSettings
from . import llamacpp, simulate
from .options import add_options, read_options

HELP = "start an engine and the gateway together"
DESCRIPTION = "Start an engine and the gateway for it. Both end together."
EPILOG = (
    "Options that are not listed here go to the engine: those of llamacpp are in `smg-fast llamacpp --help` "
    "(--ctx-size, --slots, --threads), those of the simulator in `smg-fast simulate --help`."
)


class Backend(Protocol):
    """What the module of an engine's own command has for this one."""

    RUNTIME: str

    def model(self, parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]: ...

    def command(self, model: str, worker: WorkerSettings, *, parent: int, options: Sequence[str]) -> list[str]: ...

    def check(self, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None: ...


_BACKENDS: dict[str, Backend] = {"llamacpp": llamacpp, "simulator": simulate}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_options(parser, ServeSettings, "engine")
    add_options(parser, GatewaySettings, "gateway")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """``others`` are the engine's own options. Returns the exit code."""
    from . import running

    gateway = read_options(parser, arguments, GatewaySettings)
    settings = read_options(parser, arguments, ServeSettings)
    backend = _BACKENDS[settings.backend]
    model, name = backend.model(parser, settings)
    worker = _worker(settings, backend, model, name)
    command = backend.command(model, worker, parent=os.getpid(), options=others)
    backend.check(parser, command)
    return running.run(_serve(gateway, worker, command), gateway.log_level)


async def _serve(gateway: GatewaySettings, worker: WorkerSettings, command: list[str]) -> None:
    from ..gateway.server import GatewayServer
    from ..workers.engine_process import EngineProcess
    from .running import exit_signal, freeze

    asked_to_exit = exit_signal()
    server = GatewayServer(gateway, [worker])
    await server.start()
    engine = asyncio.create_task(EngineProcess([sys.executable, "-m", "smg_fast", *command]).run())
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


def _worker(settings: ServeSettings, backend: Backend, model: str, name: str) -> WorkerSettings:
    return WorkerSettings(
        worker=f"ipc://{socket_directory()}/{settings.backend}-{os.getpid()}",
        runtime=backend.RUNTIME,
        model=settings.tokenizer or model,
        served_model_name=settings.served_model_name or (name,),
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
