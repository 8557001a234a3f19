"""What ``smg-fast serve`` has to know of TokenSpeed, which is a program of its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from ..engines import TokenSpeed
from ..engines.launch import EngineLaunch
from ..engines.tokenspeed.launch import engine_ports, gpus_per_rank, launch_command
from ..settings import ServeSettings, WorkerSettings
from .gpus import VARIABLE, gpu_shares
from .options import given_directory, refuse_shared


def model(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The model's directory and its name; ends the process, in the name of ``parser``, if there is none."""
    return given_directory(parser, settings)


def runtime(options: Sequence[str]) -> str:
    """The engine family."""
    return TokenSpeed.name


def launches(
    settings: ServeSettings, worker: WorkerSettings, handshake: str, model: str, options: Sequence[str]
) -> list[EngineLaunch]:
    """A process for each rank, with GPUs and ports of its own. Raises ``LaunchError``."""
    refuse_shared(options)
    own = [] if settings.tokenizer is None else ["--tokenizer", settings.tokenizer]
    ranks = range(settings.dp_size)
    ports = engine_ports(len(ranks), seed=urlsplit(handshake).port or 0)
    environments = gpu_shares(len(ranks), gpus_per_rank(options), os.environ.get(VARIABLE))
    python = settings.tokenspeed_python
    return [
        EngineLaunch(
            (rank,),
            tuple(launch_command(model, handshake, [*own, *options], rank=rank, port=port, python=python)),
            environment,
        )
        for rank, port, environment in zip(ranks, ports, environments, strict=True)
    ]
