"""The command line of a TokenSpeed engine, with an interpreter that passes for one that has it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from smg_fast.engines.launch import LaunchError
from smg_fast.engines.tokenspeed.launch import (
    PYTHON_VARIABLE,
    STORE_OFFSET,
    engine_ports,
    gpus_per_rank,
    launch_command,
)
from tests.engines.programs import interpreter, program

DEFAULTS = ["--grammar-backend", "xgrammar", "--enable-output-logprobs"]


@pytest.fixture(autouse=True)
def no_tokenspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def python(tmp_path: Path) -> str:
    return interpreter(tmp_path, "tokenspeed")


def launch(*options: str, python: str | None, rank: int = 0) -> list[str]:
    return launch_command("/m", "tcp://127.0.0.1:21126", options, rank=rank, port=30032, python=python)


def test_the_interpreter_that_is_named(python: str) -> None:
    assert launch("--max-model-len", "4096", python=python, rank=3) == [
        *(python, "-m", "tokenspeed.cli", "serve", "--headless", "--model", "/m"),
        *("--port", "30032", "--dist-init-addr", "127.0.0.1:30265"),
        *("--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", "21126", "--zmq-engine-index", "3"),
        *DEFAULTS,
        *("--max-model-len", "4096"),
    ]


def test_the_program_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenspeed = program(tmp_path / "tokenspeed", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch(python=None)[:2] == [tokenspeed, "serve"]


def test_without_any_it_says_what_to_name() -> None:
    with pytest.raises(LaunchError, match=f"no tokenspeed .* --tokenspeed-python or {PYTHON_VARIABLE}"):
        launch(python=None)


@pytest.mark.parametrize(
    "given", [["--grammar-backend", "llguidance"], ["--grammar_backend=llguidance"], ["--enable-output-logprobs"]]
)
def test_defaults_give_way_to_what_is_given(given: list[str], python: str) -> None:
    name = given[0].partition("=")[0].replace("_", "-")
    command = launch(*given, python=python)
    assert command[-len(given) :] == given
    assert [option.partition("=")[0].replace("_", "-") for option in command].count(name) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "1"], "--port is decided here, so that no two engines have the same ports"),
        (["--dist_init_addr=h:1"], "--dist-init-addr is decided here"),
        (["--zmq-engine-index", "1"], "--zmq-engine-index is decided here, by the gateway"),
        (["--data-parallel-rpc-port", "1"], "--data-parallel-rpc-port is decided here, by the gateway"),
        (["--data-parallel-size", "2"], "--dp-size starts engines that are each complete"),
        (["--control-port=7"], "--control-port means nothing here: engines start without a server"),
        (["--nnodes", "2"], "--nnodes means nothing here: engines start on this host alone"),
        (["--grammar-backend", "none"], "would have the engine pass over the constraints"),
    ],
)
def test_what_is_decided_here_is_not_for_options(options: list[str], said: str, python: str) -> None:
    with pytest.raises(LaunchError, match=said):
        launch(*options, python=python)


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ([], 1),
        (["--tp", "4"], 4),
        (["--attn-tp-size=2"], 2),
        (["--tensor_parallel_size", "2", "--pipeline-parallel-size", "3"], 6),
        (["--world-size", "8", "--attn-tp-size", "4"], 8),
    ],
)
def test_gpus(options: list[str], gpus: int) -> None:
    assert gpus_per_rank(options) == gpus


@pytest.mark.parametrize("options", [["--tp", "none"], ["--tp", "0"], ["--tp=-1"], ["--tp"]])
def test_a_size_that_is_none(options: list[str]) -> None:
    with pytest.raises(LaunchError, match="--t"):
        gpus_per_rank(options)


def test_no_two_engines_come_upon_the_same_port() -> None:
    ports = engine_ports(8, seed=21126)
    clusters = [{port, *range(port + STORE_OFFSET, port + STORE_OFFSET + 10)} for port in ports]
    assert len(set().union(*clusters)) == 8 * 11
    assert all(30000 <= port <= 32767 for cluster in clusters for port in cluster)


def test_a_port_in_use_is_left_to_its_owner() -> None:
    (first,) = engine_ports(1, seed=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + STORE_OFFSET))
        taken.listen()
        assert first not in engine_ports(3, seed=0)


def test_more_engines_than_ports() -> None:
    with pytest.raises(
        LaunchError, match=r"1000 engines need ports of their own, and .* only those for [0-9]+ are free"
    ):
        engine_ports(1000, seed=7)
