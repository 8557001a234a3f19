"""Settings structs <-> command-line options, and command lines."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

Settings = TypeVar("Settings", bound=msgspec.Struct)


def add_options(parser: argparse.ArgumentParser, settings: type[msgspec.Struct], title: str) -> None:
    """One option per field, described by the field's ``Meta``: its description, and its title as placeholder."""
    group = parser.add_argument_group(title)
    for field in msgspec.structs.fields(settings):
        kind, meta = get_args(field.type)
        described: dict[str, Any] = {"required": field.required, "help": _help(meta.description, field)}
        if kind is bool:
            described |= {"action": "store_const", "const": True}
        elif choices := _choices(kind):
            described["choices"] = choices
        else:
            described["metavar"] = meta.title
        if get_origin(kind) is tuple:
            described["nargs"] = "+"
        group.add_argument(_flag(field.name), **described)


def flags(settings: type[msgspec.Struct]) -> list[str]:
    """The options, one per field."""
    return [_flag(field.name) for field in msgspec.structs.fields(settings)]


def own_command(*arguments: str) -> list[str]:
    """The command line of ``smg-fast`` itself, with these arguments."""
    return [sys.executable, "-m", "smg_fast", *arguments]


def read_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace, settings: type[Settings]) -> Settings:
    """The settings in parsed arguments; what is not given has its default.

    A value of a wrong type or out of bounds ends the process, as argparse does it.
    """
    names = [field.name for field in msgspec.structs.fields(settings)]
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
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
