"""``smg-fast simulate``: the simulated engine.

It knows token ids only; what a model's directory says about them it is told here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from .._codec import Tokenizer
from ..embedded import MODEL_DIRECTORY, simulator
from ..engines.launch import EngineLaunch
from ..prompts.errors import ModelDirectoryError
from ..prompts.model_directory import ModelDirectory
from ..settings import ServeSettings, WorkerSettings
from .options import own_engines, refuse

HELP = "run the simulated engine alone"
DESCRIPTION = "An engine without a model, for machines without a GPU. It dials a gateway as any engine does."

#: Start, separator and end of a turn in the chat templates we know; the simulator echoes what is between the last two.
_TURNS = (("<|im_start|>", "\n", "<|im_end|>"), ("<|start|>", "<|message|>", "<|end|>"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what it says")
    group.add_argument(
        "--model",
        metavar="DIR",
        default=str(MODEL_DIRECTORY),
        help="the model to pass for, its directory or GGUF file: tokenizer and context [default: a small one that "
        "comes along]",
    )
    group.add_argument("--text", help="say this; else echo the last message")
    simulator.add_arguments(parser)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """Returns the exit code."""
    refuse(parser, others)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s engine: %(message)s", stream=sys.stderr)
    try:
        model = ModelDirectory.load(arguments.model)
        tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    except (ModelDirectoryError, OSError, ValueError) as error:
        print(f"smg-fast simulate: {error}", file=sys.stderr)
        return 1
    return simulator.run(
        simulator.options_from(
            arguments,
            token_ids=tuple(tokenizer.encode(arguments.text)) if arguments.text else (),
            eos_token_ids=model.eos_token_ids(tokenizer),
            markers=_markers(tokenizer),
            max_model_len=model.context_length,
            vocab_size=model.vocab_size or tokenizer.vocab_size,
        )
    )


def model(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The directory of the model to pass for, and its name."""
    if settings.model is not None:
        return settings.model, Path(settings.model).resolve().name
    return str(MODEL_DIRECTORY), settings.backend


def runtime(options: Sequence[str]) -> str:
    """The engine family that the simulator passes for with these options."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--runtime", default="tokenspeed")
    asked: str = own.parse_known_args(options)[0].runtime
    return asked


def launches(
    settings: ServeSettings, worker: WorkerSettings, handshake: str, model: str, options: Sequence[str]
) -> list[EngineLaunch]:
    """A process for each rank; they end with this one. Raises ``LaunchError`` for what it would not understand."""
    own = ["--model", model]
    if worker.max_logprobs is not None:
        own += ["--max-logprobs", str(worker.max_logprobs)]
    if worker.vllm_version is not None:
        own += ["--vllm-version", worker.vllm_version]
    return own_engines("simulate", add_arguments, settings.dp_size, handshake, own, options)


def _markers(tokenizer: Tokenizer) -> simulator.TurnMarkers | None:
    for start, separator, end in _TURNS:
        first, last = tokenizer.token_to_id(start), tokenizer.token_to_id(end)
        if first is not None and last is not None:
            return simulator.TurnMarkers(first, last, tuple(tokenizer.encode(separator)))
    return None
