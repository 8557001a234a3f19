"""What ``smg-fast serve`` has to know of vLLM, which is a program of its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ..engines import VLLM
from ..engines.launch import EngineLaunch
from ..engines.vllm.launch import gpus_per_rank, launch_command
from ..settings import ServeSettings, WorkerSettings
from .gpus import VARIABLE, gpu_shares
from .options import given_directory, refuse_shared


def model(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The model's directory and its name; ends the process, in the name of ``parser``, if there is none."""
    return given_directory(parser, settings)


def runtime(options: Sequence[str]) -> str:
    """The engine family."""
    return VLLM.name


def launches(
    settings: ServeSettings, worker: WorkerSettings, handshake: str, model: str, options: Sequence[str]
) -> list[EngineLaunch]:
    """One process: vLLM starts the ranks of a group itself, and ends them together. Raises ``LaunchError``."""
    refuse_shared(options)
    own = [] if worker.max_logprobs is None else ["--max-logprobs", str(worker.max_logprobs)]
    if settings.tokenizer is not None:
        own += ["--tokenizer", settings.tokenizer]
    ranks = settings.dp_size
    command = launch_command(model, handshake, [*own, *options], ranks=ranks, python=settings.vllm_python)
    (environment,) = gpu_shares(1, ranks * gpus_per_rank(options), os.environ.get(VARIABLE))
    return [EngineLaunch(tuple(range(ranks)), tuple(command), environment)]
