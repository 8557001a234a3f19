"""The model of a worker that was not told, from what its engine was started with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.workers import Registry
from smg_fast.workers.launch_command import LaunchedModel, ProcessGoneError, UnknownLaunchError, launched_model
from tests.workers.support import MODEL, Worker, files, settled, spec

ROOT = Path(__file__).parents[2]

#: A program that says that it is there and does nothing, and one that starts what follows "--" and waits for it.
IDLE = "import sys; print('here', flush=True); sys.stdin.read()"
PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[sys.argv.index('--') + 1 :]))"

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts programs that end with the test."""
    processes: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str, cwd: Path = ROOT) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["serve", "{model}"], ()),
        (["serve", "{model}", "--headless", "--served-model-name", "a", "b", "--port", "1"], ("a", "b")),
        (["serve", "--model", "{model}", "--served-model-name=a"], ("a",)),
        (["--model={model}"], ()),
        (["--model-path", "{model}"], ()),
        (["--model_path", "{model}", "--x"], ()),
        (["--model", "nope", "--model", "{model}"], ()),
        (["--model", "org/some-model", "--tokenizer", "{model}"], ("some-model",)),
        (["-m", "nope", "--model", "{model}"], ()),
    ],
)
@pytest.mark.parametrize("model", [str(MODEL), os.path.relpath(MODEL, MODEL.parent)])
async def test_what_command_lines_say(start: Start, arguments: list[str], names: tuple[str, ...], model: str) -> None:
    told = [argument.format(model=model) for argument in arguments]
    assert launched_model(await started(start, *told, cwd=MODEL.parent)) == LaunchedModel(MODEL, names)


@pytest.mark.parametrize("arguments", [[], ["serve"], ["serve", "--headless"], ["--model"], ["--models", "x"]])
async def test_command_lines_that_say_nothing(start: Start, arguments: list[str]) -> None:
    pid = await started(start, *arguments)
    with pytest.raises(UnknownLaunchError, match=f"neither .* process {pid}, nor those above it"):
        launched_model(pid)


async def test_a_model_that_is_not_here_is_named(start: Start) -> None:
    pid = await started(start, "serve", "org/some-model")
    with pytest.raises(UnknownLaunchError, match=r"started with 'org/some-model' .* no .*/org/some-model here"):
        launched_model(pid)


async def test_a_process_that_has_ended(start: Start) -> None:
    process = await start("-c", "")
    await process.wait()
    with pytest.raises(ProcessGoneError, match=f"process {process.pid}, has ended"):
        launched_model(process.pid)


def test_a_process_that_has_ended_and_is_still_listed() -> None:
    with subprocess.Popen([sys.executable, "-c", IDLE, "--model", str(MODEL)], stdin=subprocess.PIPE) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessGoneError, match=f"process {process.pid}, has ended"):
            launched_model(process.pid)


async def started(start: Start, *arguments: str, cwd: Path = ROOT) -> int:
    """Id of a process with these arguments, which has them by now."""
    process = await start("-c", IDLE, *arguments, cwd=cwd)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"here\n"
    return process.pid


def engine(worker: Worker) -> list[str]:
    """An engine's command line that says nothing of a model."""
    return ["-m", "tests.transport.engine", worker.client.addresses.handshake, "0"]


async def waiting(registry: Registry[Tokenizer], directory: Path, *names: str) -> Worker:
    worker = registry.add(spec(directory, "a", *names, model=None))
    await settled(worker, "connecting")
    assert worker.source is None
    assert registry.names() == []
    return worker


async def test_a_model_from_the_engine_s_command_line(
    registry: Registry[Tokenizer], directory: Path, start: Start
) -> None:
    worker = await waiting(registry, directory)
    assert worker.names == ()
    process = await start(*engine(worker), "--model", str(MODEL))
    await settled(worker, "ready")
    assert worker.source is not None
    assert worker.source.path == MODEL
    assert registry.names() == ["model"]
    assert registry.by_model("model") is worker
    [found] = [event.detail for event in worker.history if (event.step, event.state) == ("discover_model", "done")]
    assert found is not None
    assert str(process.pid) in found


async def test_a_model_from_the_process_above_the_engine(
    registry: Registry[Tokenizer], directory: Path, start: Start
) -> None:
    """As with vLLM, whose EngineCore is a child of what was started."""
    worker = await waiting(registry, directory)
    command = [sys.executable, *engine(worker)]
    await start("-c", PARENT, "serve", MODEL.name, "--served-model-name", "a", "b", "--", *command, cwd=MODEL.parent)
    await settled(worker, "ready")
    assert worker.source is not None
    assert worker.source.path == MODEL
    assert worker.names == ("a", "b")


async def test_the_names_that_were_given_go_first(registry: Registry[Tokenizer], directory: Path, start: Start) -> None:
    worker = await waiting(registry, directory, "mine")
    await start(*engine(worker), "--model", str(MODEL), "--served-model-name", "theirs")
    await settled(worker, "ready")
    assert registry.names() == ["mine"]


@pytest.mark.parametrize("gone", [False, True])
async def test_a_model_that_nothing_tells_fails_the_registration(
    registry: Registry[Tokenizer], directory: Path, copy: Path, start: Start, gone: bool
) -> None:
    worker = await waiting(registry, directory)
    shutil.rmtree(copy)
    process = await start(*engine(worker), *(["--model", str(copy)] if gone else []))
    await settled(worker, "failed")
    assert (f"there is no {copy} here" if gone else f"process {process.pid}") in worker.reason
    assert files(directory) == []
    assert registry.names() == []


async def test_another_model_s_name_that_is_found_late_fails_the_registration(
    registry: Registry[Tokenizer], directory: Path, copy: Path, start: Start
) -> None:
    first = registry.add(spec(directory, "first", "m"))
    await settled(first, "connecting")
    worker = registry.add(spec(directory, "a", "m", model=None))
    await settled(worker, "connecting")
    await start(*engine(worker), "--model", str(copy))
    await settled(worker, "failed")
    assert f"'m' is {MODEL} already (worker {first.spec.url})" in worker.reason
    assert registry.serving("m") == [first]
