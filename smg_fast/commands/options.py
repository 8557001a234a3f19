"""Settings structs <-> command-line options, and command lines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import msgspec

from ..engines.launch import EngineLaunch, LaunchError, refuse_options
from ..settings import ModelSettings, ServeSettings

Settings = TypeVar("Settings", bound=msgspec.Struct)

_BEFORE = "is for the gateway too: give it before --"
_LAUNCHER = "is decided here, by the gateway"


class InOrder(argparse.Action):
    """Keeps options of a group in the order they came, repeated ones too: ``in_order`` has their names and values."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        namespace.in_order = [*getattr(namespace, "in_order", ()), (self.dest, value)]


def add_options(
    parser: argparse.ArgumentParser,
    settings: type[msgspec.Struct],
    title: str,
    *,
    leave_out: Sequence[str] = (),
    in_order: bool = False,
) -> None:
    """One option per field, described by the field's ``Meta``: its description, its title as placeholder, and what it
    has to ``check`` a text with.

    Fields that are left out are up to the caller. ``in_order``: see ``InOrder``; then none is required.
    """
    group = parser.add_argument_group(title)
    for field in msgspec.structs.fields(settings):
        if field.name in leave_out:
            continue
        kind, meta = get_args(field.type)
        described: dict[str, Any] = {"help": _help(meta.description, field)}
        if in_order:
            described["action"] = InOrder
        elif field.required:
            described["required"] = True
        if kind is bool:
            described |= {"action": "store_const", "const": True}
        elif choices := _choices(kind):
            described["choices"] = choices
        else:
            described["metavar"] = meta.title
        if get_origin(kind) is tuple:
            described["nargs"] = "+"
        if meta.extra is not None:
            described["type"] = checked(meta.extra["check"])
        group.add_argument(_flag(field.name), **described)


def given_directory(parser: argparse.ArgumentParser, settings: ServeSettings) -> tuple[str, str]:
    """The model's directory and its name; ends the process, in the name of ``parser``, if it is not given."""
    if settings.model is None:
        parser.error("argument --model: give the model's directory")
    return settings.model, Path(settings.model).resolve().name


def refuse_shared(options: Sequence[str]) -> None:
    """Refuse engine options that the gateway has to know as well, or knows alone. Raises ``LaunchError``."""
    shared = [_flag(field.name) for field in msgspec.structs.fields(ModelSettings)]
    refuse_options(options, dict.fromkeys((*shared, "--model", "--tokenizer"), _BEFORE))


def own_engines(
    command: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    ranks: int,
    handshake: str,
    given: Sequence[str],
    options: Sequence[str],
) -> list[EngineLaunch]:
    """A process for each rank of an engine that is a command of this program's; they end with this one.

    ``given`` are arguments for all, ``options`` the operator's. Raises ``LaunchError`` for those that the command would
    not understand, and those that are decided here.
    """
    refuse_shared(options)
    refuse_options(options, dict.fromkeys(("--handshake", "--index", "--exit-with-parent"), _LAUNCHER))
    arguments = ["--handshake", handshake, "--exit-with-parent", str(os.getpid()), *given, *options]
    parser = _Checker(add_help=False)
    add_arguments(parser)
    parser.parse_args(arguments)
    program = (sys.executable, "-m", "smg_fast", command)
    return [EngineLaunch((rank,), (*program, "--index", str(rank), *arguments)) for rank in range(ranks)]


def read_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace, settings: type[Settings]) -> Settings:
    """The settings in parsed arguments; what is not given has its default.

    A value of a wrong type or out of bounds ends the process, as argparse does it.
    """
    names = [field.name for field in msgspec.structs.fields(settings)]
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return convert(parser, given, settings)


def convert(parser: argparse.ArgumentParser, given: Mapping[str, Any], settings: type[Settings]) -> Settings:
    """The settings of these values, by name; see ``read_options``."""
    try:
        return msgspec.convert(given, settings, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        parser.error(f"argument {_flag(name)}: {message}, got {given[name]!r}")


def refuse(parser: argparse.ArgumentParser, others: list[str]) -> None:
    """End the process if there are arguments that the parser did not know."""
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")


def checked(check: Callable[[str], None]) -> Callable[[str], str]:
    """The type of an argument that is what ``check``, which raises ``ValueError``, has nothing against."""

    def parse(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return parse


class _Checker(argparse.ArgumentParser):
    """Raises ``LaunchError`` where others end the process."""

    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


def _choices(kind: Any) -> tuple[str, ...]:
    """Of a literal, which may be one that can be left out."""
    for alternative in (kind, *get_args(kind)):
        if get_origin(alternative) is Literal:
            return get_args(alternative)
    return ()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _help(description: str, field: msgspec.structs.FieldInfo) -> str:
    text = description.replace("%", "%%")
    if field.required or field.default in (None, (), False):
        return text
    default = f"{field.default:g}" if isinstance(field.default, float) else field.default
    return f"{text} [default: {default}]"
