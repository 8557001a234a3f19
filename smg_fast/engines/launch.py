"""What starting an engine takes, whatever its family: the program to run, and what the options for it say."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec

_HAS_PACKAGE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


class LaunchError(ValueError):
    """An engine that cannot be started as asked. The text tells the operator why."""


class EngineLaunch(msgspec.Struct, frozen=True):
    """A process to start.

    Attributes
    ----------
    ranks : tuple of int
        The engines that it runs, by their index.
    command : tuple of str
        The program and its arguments.
    environment : mapping
        What is added to this process's own environment.
    """

    ranks: tuple[int, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Program(msgspec.Struct, frozen=True):
    """An engine's own program, which may live in a Python environment of its own.

    Attributes
    ----------
    name : str
        Of the program on the ``PATH``, and of the Python package.
    module : str
        What ``python -m`` runs instead of the program.
    variable, option : str
        The environment variable and the option that name an interpreter with the package.
    """

    name: str
    module: str
    variable: str
    option: str

    def command(self, python: str | None = None) -> list[str]:
        """How it is run: by the interpreter ``python``, else the one that the variable names, else as it is found.

        Raises
        ------
        LaunchError
            There is none, or the interpreter that is named cannot be used.
        """
        python = python or os.environ.get(self.variable)
        if python is not None:
            self._check(python)
            return [python, "-m", self.module]
        if (program := shutil.which(self.name)) is not None:
            return [program]
        if importlib.util.find_spec(self.name) is not None:
            return [sys.executable, "-m", self.module]
        raise LaunchError(
            f"there is no {self.name} on the PATH, nor has this interpreter one: name one that has, with "
            f"{self.option} or {self.variable}"
        )

    def _check(self, python: str) -> None:
        command = [python, "-c", _HAS_PACKAGE, self.name]
        try:
            has_package = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0
        except OSError as error:
            raise LaunchError(f"cannot run the interpreter {python}: {error.strerror}") from None
        if not has_package:
            raise LaunchError(f"the interpreter {python} has no {self.name}")


def option_names(options: Sequence[str]) -> Iterator[str]:
    """The names among an engine's options, without values; engines take underscores for dashes."""
    for option in options:
        if option.startswith("-"):
            yield option.partition("=")[0].replace("_", "-")


def refuse_options(options: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Refuse options by name: those in ``reasons``, whose texts go on after the name. Raises ``LaunchError``.

    A name that ends with ``*`` is all that begin with it.
    """
    for name in option_names(options):
        for refused, reason in reasons.items():
            if name == refused or (refused.endswith("*") and name.startswith(refused[:-1])):
                raise LaunchError(f"{name} {reason}")


def option_value(options: Sequence[str], *names: str) -> str | None:
    """The value of an option that may go by several names: the last one, as engines see it. ``None``: not given.

    Raises ``LaunchError`` if there is the name alone.
    """
    value = None
    for place, option in enumerate(options):
        name, equals, attached = option.partition("=")
        if name.replace("_", "-") in names and option.startswith("-"):
            if not equals and place + 1 == len(options):
                raise LaunchError(f"{name}: expected a value")
            value = attached if equals else options[place + 1]
    return value


def size(options: Sequence[str], *names: str) -> int:
    """The value of an option that is a number of something, by any of its names; 1 if it is not given.

    Raises ``LaunchError`` for a value that is none.
    """
    value = option_value(options, *names)
    if value is None:
        return 1
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise LaunchError(f"{names[0]}: expected a number from 1, got {value!r}")
    return number
