"""Whether a constraint compiles: an engine that is sent one that does not fails the request, or worse.

Compiling is left to processes, see ``grammars``: one that takes too long is killed, and where one crashes nothing else
does.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from http import HTTPStatus

import msgspec

from ..engines import Capabilities
from .constraints import NamedConstraint
from .errors import RETRY_AFTER, ApiError, invalid
from .grammars import FRAME_SIZE, MAX_MEMORY, READY, Task

logger = logging.getLogger(__name__)

#: The backend that compiles with the same library as ``grammars``.
_GUIDANCE = "guidance"

#: Processes: while one is busy with what takes long, there is another.
_HELPERS = 2
#: Seconds that a constraint may take to compile. Most take 1 ms, large ones 0.2 s.
DEADLINE = 1.5
#: Seconds that a request waits, for those before it and its own.
_PATIENCE = 10.0
#: Seconds that a process may take to start. It takes 0.1 s.
_START_TIMEOUT = 20.0
#: Constraints whose verdict is remembered, by their digest.
_REMEMBERED = 1024
_DIGEST_SIZE = 16

_PROGRAM = ("-m", "smg_fast.gateway.grammars")


class _TooComplexError(Exception):
    """A process came to its end by a constraint; the text says how."""


class _DiedError(Exception):
    """A process has ended."""


class _StartError(Exception):
    """A process cannot be started."""


class _Job(msgspec.Struct, frozen=True, eq=False):
    """``verdict`` is why it does not compile, if it does not; done without one if its client has gone."""

    task: bytes
    digest: bytes
    verdict: asyncio.Future[str | None]


class Compiler:
    """Compiles constraints in the order in which they come, one at a time in each of its processes.

    Verdicts are remembered; that a process came to its end is not, since it may be the machine that was slow.
    """

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._waiting: set[asyncio.Future[str | None]] = set()
        self._verdicts: dict[bytes, str | None] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False

    async def check(self, named: NamedConstraint, capabilities: Capabilities) -> None:
        """Compile a constraint and forget the result. The first one starts the processes.

        Raises
        ------
        ApiError
            400, telling what is wrong with it; 503, if too many others are before it, or no process can be started.
        """
        kind, value = named.constraint.kind, named.constraint.value
        if kind == "json_object":
            return
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        task = msgspec.msgpack.encode(Task(kind, text, capabilities.constraint_backend == _GUIDANCE))
        digest = hashlib.blake2b(task, digest_size=_DIGEST_SIZE).digest()
        try:
            error = self._verdicts[digest] if digest in self._verdicts else await self._compile(task, digest)
        except _TooComplexError as reason:
            raise invalid(named.param, f"{named.param} is too complex to compile: {reason}") from None
        if error is not None:
            raise invalid(named.param, f"{named.param} does not compile: {error}")

    async def close(self) -> None:
        """End the processes, whatever they are at; what waits for them gets a 503."""
        self._closed = True
        for verdict in self._waiting:
            if not verdict.done():
                verdict.set_exception(_unavailable("The server is shutting down"))
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _compile(self, task: bytes, digest: bytes) -> str | None:
        if self._closed:
            raise _unavailable("The server is shutting down")
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(_HELPERS)]
        verdict: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.add(verdict)
        self._jobs.put_nowait(_Job(task, digest, verdict))
        try:
            return await asyncio.wait_for(verdict, _PATIENCE)
        except asyncio.TimeoutError:
            raise _unavailable("Too many constraints wait to be compiled") from None
        finally:
            self._waiting.discard(verdict)

    async def _work(self) -> None:
        """Take one job after the other. A request that is cancelled meanwhile leaves the process undisturbed."""
        helper = _Helper()
        try:
            while True:
                job = await self._jobs.get()
                if job.verdict.done():
                    continue
                failure: Exception | None = None
                try:
                    if job.digest not in self._verdicts:
                        self._remember(job.digest, await helper.compile(job.task))
                except _TooComplexError as error:
                    failure = error
                except _StartError as error:
                    logger.error("constraints cannot be compiled: %s", error)
                    failure = _unavailable("Constraints cannot be compiled now")
                if job.verdict.done():
                    continue
                if failure is None:
                    job.verdict.set_result(self._verdicts[job.digest])
                else:
                    job.verdict.set_exception(failure)
        finally:
            await helper.kill()

    def _remember(self, digest: bytes, error: str | None) -> None:
        self._verdicts[digest] = error
        if len(self._verdicts) > _REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]  # the oldest


class _Helper:
    """A process that compiles: started when it is needed, and again when it has ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def compile(self, task: bytes) -> str | None:
        """Why it does not compile, if it does not. Raises ``_TooComplexError``, ``_StartError``.

        A process that has been there may have ended before, or have too little memory left: only if a new one ends,
        too, it is by this constraint.
        """
        if self._process is not None:
            try:
                return await self._ask(self._process, task)
            except _DiedError:
                pass
        process = await self._start()
        try:
            return await self._ask(process, task)
        except _DiedError:
            raise _TooComplexError(f"it is too deep, or takes more than {MAX_MEMORY >> 20} MiB of memory") from None

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            # In a session of its own: what ends the gateway by way of a terminal is not its affair.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_PROGRAM,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            ready = await asyncio.wait_for(_receive(process), _START_TIMEOUT)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            await self.kill()
            raise _StartError(f"{sys.executable} {' '.join(_PROGRAM)} does not start: {error!r}") from error
        assert ready == READY
        return process

    async def _ask(self, process: asyncio.subprocess.Process, task: bytes) -> str | None:
        """Raises ``_DiedError``, ``_TooComplexError``; either way the process has ended."""
        try:
            return msgspec.msgpack.decode(await asyncio.wait_for(_exchange(process, task), DEADLINE), type=str | None)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.kill()
            raise _DiedError from None
        except asyncio.TimeoutError:
            await self.kill()
            raise _TooComplexError(f"it takes more than {DEADLINE} s") from None


async def _exchange(process: asyncio.subprocess.Process, frame: bytes) -> bytes:
    assert process.stdin is not None
    process.stdin.write(FRAME_SIZE.pack(len(frame)) + frame)
    await process.stdin.drain()
    return await _receive(process)


async def _receive(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    (size,) = FRAME_SIZE.unpack(await process.stdout.readexactly(FRAME_SIZE.size))
    return await process.stdout.readexactly(size)


def _unavailable(message: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        code="compiler_unavailable",
        headers={"Retry-After": str(RETRY_AFTER)},
    )
