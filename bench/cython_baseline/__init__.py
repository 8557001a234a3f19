"""Builds ``ticks.pyx`` on first use, into ``build/bench`` of the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Protocol, cast

from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

SOURCE = Path(__file__).parent / "ticks.pyx"
BUILD = Path(__file__).parent.parent.parent / "build" / "bench"


class Accumulator(Protocol):
    """Request id -> columns, written in Cython."""

    def __init__(self, rids: list[str]) -> None: ...
    def feed(self, payload: bytes) -> None: ...
    def token_ids(self, rid: str) -> list[int]: ...


def load() -> type[Accumulator]:
    """Raises ``setuptools.errors.CCompilerError`` where no C compiler or no Python headers are installed."""
    name = "smg_fast_cython_baseline"
    extension = Extension(name, [str(SOURCE)], extra_compile_args=["-O3"])
    modules = cythonize([extension], build_dir=str(BUILD), quiet=True)
    command = build_ext(Distribution({"ext_modules": modules}))
    command.build_lib = str(BUILD)
    command.build_temp = str(BUILD)
    command.ensure_finalized()
    command.run()
    spec = importlib.util.spec_from_file_location(name, command.get_ext_fullpath(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("type[Accumulator]", module.Accumulator)
