"""What the command line that an engine was started with says about its model.

The process that serves is often not the one that was started: vLLM's EngineCore is a child of ``vllm serve``, and has
overwritten its own command line. So the processes above it are asked as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

#: Options that name the model, and the subcommand whose first argument does.
_MODEL = ("--model", "--model-path")
_SERVE = "serve"
_TOKENIZER = ("--tokenizer", "--tokenizer-path")
_NAMES = ("--served-model-name",)

#: Processes that are asked: an engine is not started by anything further up.
_MOST_ANCESTORS = 8


class UnknownLaunchError(ValueError):
    """The command line names no model that can be read here. The text tells the operator what was seen."""


class ProcessGoneError(Exception):
    """The engine has ended meanwhile."""


class LaunchedModel(msgspec.Struct, frozen=True):
    """``path`` is where its tokenizer is; ``names`` is empty where the command line gives none."""

    path: Path
    names: tuple[str, ...]


def launched_model(pid: int) -> LaunchedModel:
    """The model of the engine that is, or belongs to, the process ``pid``.

    Raises
    ------
    UnknownLaunchError
        No command line names a model, or what it names is no directory or file here.
    ProcessGoneError
        There is no such process.
    """
    own = os.getpid()
    for process in _with_ancestors(pid):
        if process == own:
            break  # our own command line may be about any model
        arguments = _command_line(process)
        model = _model(arguments)
        if model is not None:
            return _launched(process, model, arguments)
    raise UnknownLaunchError(
        f"nothing says which model it is: neither the command line of the engine, process {pid}, nor those above it "
        f"have {' or '.join(_MODEL)}, or {_SERVE!r} and a model"
    )


def _launched(process: int, model: str, arguments: Sequence[str]) -> LaunchedModel:
    files = _value(arguments, _TOKENIZER) or model
    path = _directory(process) / files
    if not path.exists():
        raise UnknownLaunchError(
            f"the engine was started with {files!r} (process {process}), and there is no {path} here: "
            "the model's directory has to be given"
        )
    names = _values(arguments, _NAMES)
    if not names and files != model:
        names = (Path(model).name,)
    return LaunchedModel(path, names)


def _model(arguments: Sequence[str]) -> str | None:
    named = _value(arguments, _MODEL)
    if named is not None:
        return named
    after = arguments[arguments.index(_SERVE) + 1 :] if _SERVE in arguments else ()
    return after[0] if after and not after[0].startswith("-") else None


def _value(arguments: Sequence[str], options: Sequence[str]) -> str | None:
    """Of the last of these options, as argparse has it."""
    values = _values(arguments, options)
    return values[0] if values else None


def _values(arguments: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    for position, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option.replace("_", "-") not in options:
            continue
        following = [value] if equals else list(_until_option(arguments[position + 1 :]))
        found = tuple(following)
    return found


def _until_option(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument.startswith("-"):
            return
        yield argument


def _with_ancestors(pid: int) -> Iterator[int]:
    for _ in range(_MOST_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        pid = _parent(pid)


def _command_line(pid: int) -> list[str]:
    line = _read(pid, "cmdline")
    if not line:  # its memory is gone: it ends, or waits for its parent to take note
        raise ProcessGoneError(f"the engine, process {pid}, has ended")
    return [os.fsdecode(argument) for argument in line.split(b"\0") if argument]


def _parent(pid: int) -> int:
    # The second field, the name of the program, may be anything, in parentheses.
    return int(_read(pid, "stat").rpartition(b")")[2].split()[1])


def _directory(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError as error:
        raise UnknownLaunchError(f"cannot tell where process {pid} was started: {error.strerror}") from None


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError as error:
        raise ProcessGoneError(f"the engine, process {pid}, has ended: {error.strerror}") from None
