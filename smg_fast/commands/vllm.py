"""What ``smg-fast serve`` has to know of vLLM, which is a program of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..engines import VLLM
from ..engines.vllm.launch import LaunchError, launch_command
from ..settings import ModelSettings, ServeSettings, WorkerSettings
from .options import flags

#: What the gateway has to know as well; or knows alone, like the names of the model.
_GATEWAY_OPTIONS = frozenset((*flags(ModelSettings), "--model", "--tokenizer"))


def model(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The model's directory and its name; ends the process, in the name of ``parser``, if there is none."""
    if settings.model is None:
        parser.error("argument --model: give the model's directory")
    return settings.model, Path(settings.model).resolve().name


def runtime(options: Sequence[str]) -> str:
    """The engine family."""
    return VLLM.name


def command(
    parser: argparse.ArgumentParser,
    settings: ServeSettings,
    worker: WorkerSettings,
    model: str,
    options: Sequence[str],
) -> list[str]:
    """The engine's command line; ends the process, in the name of ``parser``, if it cannot be started like that."""
    assert worker.handshake_address is not None
    for option in options:
        name = option.partition("=")[0].replace("_", "-")
        if name in _GATEWAY_OPTIONS:
            parser.error(f"{name} is for the gateway too: give it before --")
    own = [] if worker.max_logprobs is None else ["--max-logprobs", str(worker.max_logprobs)]
    if settings.tokenizer is not None:
        own += ["--tokenizer", settings.tokenizer]
    try:
        return launch_command(model, worker.handshake_address, [*own, *options], python=settings.vllm_python)
    except LaunchError as error:
        parser.error(str(error))
