"""The command line of a vLLM engine, with interpreters that pass for ones that have it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from smg_fast.engines.launch import LaunchError
from smg_fast.engines.vllm.launch import PYTHON_VARIABLE, gpus_per_rank, launch_command
from tests.engines import programs
from tests.engines.programs import program

ENGINE = ["serve", "/m", "--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", "30500"]


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    return programs.interpreter(tmp_path, "vllm")


def launch(*options: str, python: str | None = None) -> list[str]:
    return launch_command("/m", "tcp://127.0.0.1:30500", options, python=python)


def test_the_interpreter_that_is_named(interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [interpreter, "-m", "vllm.entrypoints.cli.main", *ENGINE, "--enforce-eager"]
    assert launch("--enforce-eager", python=interpreter) == expected
    monkeypatch.setenv(PYTHON_VARIABLE, interpreter)
    assert launch("--enforce-eager") == expected


def test_the_program_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = program(tmp_path / "vllm", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch() == [vllm, *ENGINE]


def test_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert launch() == [sys.executable, "-m", "vllm.entrypoints.cli.main", *ENGINE]


def test_without_any_it_says_what_to_name() -> None:
    with pytest.raises(LaunchError, match=f"--vllm-python or {PYTHON_VARIABLE}"):
        launch()


def test_an_interpreter_without_it_is_told() -> None:
    with pytest.raises(LaunchError, match=f"the interpreter {sys.executable} has no vllm"):
        launch(python=sys.executable)
    with pytest.raises(LaunchError, match="cannot run the interpreter /nonexistent: No such file"):
        launch(python="/nonexistent")


@pytest.mark.parametrize(
    "option", ["--headless", "--data-parallel-size=2", "--data_parallel_size", "-dp", "--data-parallel-rpc-port"]
)
def test_where_engines_dial_is_not_for_options(option: str, interpreter: str) -> None:
    with pytest.raises(
        LaunchError, match="means nothing here" if option == "--headless" else "is decided here: --dp-size"
    ):
        launch(option, python=interpreter)


def test_a_group_is_one_command(interpreter: str) -> None:
    command = launch_command("/m", "tcp://127.0.0.1:30500", ["--enforce-eager"], ranks=4, python=interpreter)
    group = ["--data-parallel-size", "4", "--data-parallel-size-local", "4"]
    assert command[3:] == [*ENGINE[:3], *group, *ENGINE[3:], "--enforce-eager"]


@pytest.mark.parametrize(
    ("options", "gpus"),
    [([], 1), (["-tp", "2", "-pp=2"], 4), (["--tensor_parallel_size=8"], 8), (["-tp", "2", "--enforce-eager"], 2)],
)
def test_gpus(options: list[str], gpus: int) -> None:
    assert gpus_per_rank(options) == gpus
