"""Programs and interpreters that pass for ones with an engine."""

from __future__ import annotations

import stat
import sys
from pathlib import Path


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def interpreter(directory: Path, package: str, modules: dict[str, str] | None = None) -> str:
    """One that finds a package, with these modules by their paths in it."""
    for name, text in {"__init__.py": "", **(modules or {})}.items():
        file = directory / "packages" / package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path = f"{directory / 'packages'}:$PYTHONPATH"
    return program(directory / "python", f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
