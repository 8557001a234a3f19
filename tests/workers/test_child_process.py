"""Engines as child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from smg_fast.workers.child_process import ChildProcess, ProcessFailedError

PATIENCE = 20.0


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", script, *arguments]


@contextlib.asynccontextmanager
async def ending(pid: int) -> AsyncIterator[None]:
    """What is done in it has a process end."""
    descriptor = os.pidfd_open(pid)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        yield
        await asyncio.wait_for(ended.wait(), PATIENCE)
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


async def test_an_engine_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(3)"
    engine = ChildProcess(python(script, str(log)), first_pause=0.01)
    with pytest.raises(ProcessFailedError, match="ended with exit code 3"):
        await asyncio.wait_for(engine.run(), PATIENCE)
    assert log.read_text() == "xxxxx"


async def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(ProcessFailedError, match="/nonexistent/engine: No such file"):
        await ChildProcess(["/nonexistent/engine"]).run()


async def test_a_shortage_of_descriptors_is_waited_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = ChildProcess(python("import sys; open(sys.argv[1], 'w').close(); sys.exit(3)", str(log)), first_pause=0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        task = asyncio.create_task(engine.run())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.2)
        assert not log.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(ProcessFailedError, match="ended with exit code 3"):
        await asyncio.wait_for(task, PATIENCE)
    assert log.exists()


@pytest.mark.parametrize("ignores_sigterm", [False, True])
async def test_the_engine_ends_with_the_task(tmp_path: Path, ignores_sigterm: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignores_sigterm else ""
    script = (
        f"import os, signal, sys; {ignore} print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); signal.pause()"
    )
    task = asyncio.create_task(ChildProcess(python(script, str(fifo)), patience=0.2).run())
    pid = int(await asyncio.wait_for(asyncio.to_thread(fifo.read_text), PATIENCE))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_the_engine_has_started_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = tmp_path / "end"
    os.mkfifo(end)
    child = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); signal.pause()"
    )
    # The engine ends by itself.
    engine = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:3]]); open(sys.argv[3]).read()"
    )
    task = asyncio.create_task(ChildProcess(python(engine, child, str(fifo), str(end)), first_pause=60).run())
    pid = int(await asyncio.wait_for(asyncio.to_thread(fifo.read_text), PATIENCE))
    async with ending(pid):
        await asyncio.to_thread(end.write_text, "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_engine_outlives_no_gateway_that_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    engine = "import os, signal, sys; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); signal.pause()"
    gateway = (
        "import asyncio, sys; from smg_fast.workers.child_process import ChildProcess; "
        "asyncio.run(ChildProcess([sys.executable, '-c', *sys.argv[1:]]).run())"
    )
    running = await asyncio.create_subprocess_exec(*python(gateway, engine, str(fifo)))
    pid = int(await asyncio.wait_for(asyncio.to_thread(fifo.read_text), PATIENCE))
    async with ending(pid):
        running.kill()
        await running.wait()


async def test_what_the_engine_says_is_for_the_operator(capfd: pytest.CaptureFixture[str]) -> None:
    engine = ChildProcess(python("print('loading'); raise SystemExit(3)"), first_pause=0.01)
    with pytest.raises(ProcessFailedError):
        await asyncio.wait_for(engine.run(), PATIENCE)
    out, err = capfd.readouterr()
    assert (out, err.count("loading")) == ("", 5)


class Recorder:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.done = asyncio.Event()

    def started(self) -> None:
        self.told.append("started")

    def said(self, line: str) -> None:
        self.told.append(line)

    def ended(self) -> bool:
        self.told.append("ended")
        self.done.set()
        return False


async def test_a_watcher_is_told_every_line_on_either_output_to_the_last() -> None:
    script = (
        "import os, sys; write = lambda to, text: os.write(to, text.encode()); "
        "write(1, 'one\\n\\n'); write(2, '10%\\r'); write(2, '20%\\r\\n'); "
        "write(1, os.environ['WORD'])"
    )
    watcher = Recorder()
    engine = ChildProcess(python(script), environment={"WORD": "last"}, watcher=watcher, first_pause=60)
    task = asyncio.create_task(engine.run())
    await asyncio.wait_for(watcher.done.wait(), PATIENCE)
    assert watcher.told == ["started", "one", "10%", "20%", "last", "ended"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_child_that_keeps_the_output_open_holds_nothing_up(tmp_path: Path) -> None:
    watcher = Recorder()
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    task = asyncio.create_task(ChildProcess(python(script), watcher=watcher, first_pause=60).run())
    await asyncio.wait_for(watcher.done.wait(), PATIENCE)
    started, pid, ended = watcher.told
    assert (started, ended) == ("started", "ended")
    os.kill(int(pid), signal.SIGKILL)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
