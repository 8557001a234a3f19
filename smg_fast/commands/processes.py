"""Several gateway processes in the place of one: started, watched, started again when they die, and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from io import TextIOBase
from typing import Any, TextIO

import msgspec

from ..gateway.processes import GatewayProcess, ask, ask_all
from ..gateway.server import GatewayServer, StartError, cannot_listen, url_of, worker_spec
from ..settings import GatewaySettings, WorkerSettings
from ..transport import BindError, worker_addresses
from ..transport.socket_directory import clear_stale_socket, process_name, user_directory
from ..transport.survivors import Roster
from ..workers import shared
from ..workers.child_process import ChildProcess, ProcessFailedError
from .api import WorkerList
from .gateway_process import HURRY, Arguments, command

logger = logging.getLogger(__name__)

#: Seconds between looks at processes that start, and at engines that load.
_LOOK_INTERVAL = 0.1
#: Seconds between looks at engines that have been ready: fewer than it takes until one that died is started again.
_READY_INTERVAL = 0.4
#: Seconds that a process may take to end beyond those of the requests in flight.
_END_PATIENCE = 10.0
#: Seconds until a process that has died again and again, or cannot be started, is tried again.
_LONG_PAUSE = 8.0


def gateway(
    settings: GatewaySettings, workers: Sequence[WorkerSettings], log: TextIO | TextIOBase | None = None
) -> GatewayServer | GatewayProcesses:
    """The gateway, in this process or in several. ``log``: see ``running.run``."""
    if settings.gateway_processes == 1:
        return GatewayServer(settings, workers)
    return GatewayProcesses(settings, workers, sys.stderr if log is None else log)


class GatewayProcesses:
    """As a ``GatewayServer``, but for what only one that is in this process can offer."""

    def __init__(self, settings: GatewaySettings, workers: Sequence[WorkerSettings], log: TextIO | TextIOBase) -> None:
        """Nothing is bound or started yet. What the processes say goes to ``log``."""
        self._settings = settings
        self._workers = tuple(workers)
        self._log = log
        first = GatewayProcess(0, settings.gateway_processes, str(user_directory() / process_name("gateway")))
        self._processes = first.all
        self._children: list[ChildProcess] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._port: _Port | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ready: dict[str, set[int]] = {}

    async def start(self) -> None:
        """Take the port, and start the processes.

        Returns when all listen, for clients and for engines. Raises ``StartError`` if the engines cannot be shared, the
        port is taken, or a process does not start; nothing is left running.
        """
        self._check()
        self._port = _Port(self._settings)
        try:
            # One tells what is wrong, if anything is.
            await self._start(self._processes[:1])
            await self._start(self._processes[1:])
        except (StartError, asyncio.CancelledError):
            await self.stop()
            raise

    async def stop(self) -> None:
        """As ``GatewayServer.stop``, in all processes at once. One that does not end in time is killed."""
        tasks = [*self._keeping, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._clear()
        if self._port is not None:
            self._port.close()

    def hurry(self) -> None:
        """As of a ``GatewayServer``, in every process; what has not ended some seconds after it is killed."""
        self._signal(HURRY)
        asyncio.get_running_loop().call_later(_END_PATIENCE, self._signal, signal.SIGKILL)

    @property
    def handshakes(self) -> list[str]:
        """As of a ``GatewayServer``."""
        return [worker_addresses(worker.worker, worker.handshake_address).handshake for worker in self._workers]

    @property
    def url(self) -> str:
        """As of a ``GatewayServer``."""
        assert self._port is not None
        return url_of(*self._port.address)

    async def wait_ready(self) -> None:
        """As of a ``GatewayServer``, in every process. From then on they are asked for what ``is_ready`` tells."""
        while True:
            if await self._look():
                break
            await asyncio.sleep(_LOOK_INTERVAL)
        self._looking = asyncio.create_task(self._keep_looking())

    def is_ready(self, url: str, ranks: Sequence[int]) -> bool:
        """As of a ``GatewayServer``, where the engines serve; as the processes have last told."""
        return self._ready.get(url, set()).issuperset(ranks)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_READY_INTERVAL)
            await self._look()

    async def _look(self) -> bool:
        """Whether every worker is ready in every process. Raises ``StartError`` if the registration of one failed."""
        answers = await ask_all(self._processes[0], "/workers")
        workers = [worker for answer in answers for worker in msgspec.json.decode(answer.body, type=WorkerList).workers]
        ready: dict[str, set[int]] = {}
        waited: dict[str, set[int]] = {}
        for worker in workers:
            if worker.state == "failed":
                raise StartError(f"worker {worker.url}: {worker.reason}")
            for engine in worker.engines:
                if engine.state != "elsewhere":
                    (ready if engine.state == "ready" else waited).setdefault(worker.url, set()).add(engine.index)
        self._ready = {url: engines - waited.get(url, set()) for url, engines in ready.items()}
        return len(answers) == len(self._processes) and all(worker.state == "ready" for worker in workers)

    def _check(self) -> None:
        """Raises ``StartError`` for what several processes cannot share."""
        count = len(self._processes)
        if not self._workers:
            raise StartError(
                f"--gateway-processes {count}: give it workers with --worker; to come and go while it runs they need "
                "a single process"
            )
        try:
            shared([worker_spec(worker) for worker in self._workers], count, 0)
        except ValueError as error:
            raise StartError(str(error)) from error

    async def _start(self, processes: Sequence[GatewayProcess]) -> None:
        """Raises ``StartError`` if one ends before it listens."""
        started = []
        for process in processes:
            watcher = _Watcher(_name(process), self._log)
            keeping = asyncio.create_task(self._keep(process, watcher))
            self._keeping.append(keeping)
            started.append(self._started(process, watcher, keeping))
        await asyncio.gather(*started)

    async def _started(self, process: GatewayProcess, watcher: _Watcher, keeping: asyncio.Task[None]) -> None:
        while await ask(process, "/health") is None:
            await asyncio.wait((keeping,), timeout=_LOOK_INTERVAL)
            if keeping.done():
                keeping.result()
        watcher.has_started = True

    async def _keep(self, process: GatewayProcess, watcher: _Watcher) -> None:
        assert self._port is not None
        settings = msgspec.structs.replace(self._settings, port=self._port.address[1])
        child = ChildProcess(
            command(Arguments(process, settings, self._workers)),
            name=watcher.name,
            watcher=watcher,
            patience=settings.shutdown_timeout + _END_PATIENCE,
        )
        self._children.append(child)
        while True:
            await _run(child, watcher)

    def _signal(self, number: int) -> None:
        for child in self._children:
            child.send_signal(number)

    def _clear(self) -> None:
        """Remove what processes that were killed have left, and what is known of engines if none lives on."""
        for process in self._processes:
            with contextlib.suppress(BindError):
                clear_stale_socket(process.socket)
            for worker in self._workers:
                # Where another gateway has the sockets, the rest is that one's too.
                with contextlib.suppress(ValueError, BindError, OSError):
                    addresses = worker_addresses(worker.worker, worker.handshake_address).of_process(process.index)
                    clear_stale_socket(addresses.input)
                    clear_stale_socket(addresses.output)
                    Roster(addresses).close()


class _Watcher:
    """Of one gateway process."""

    def __init__(self, name: str, log: TextIO | TextIOBase) -> None:
        self.name = name
        self.has_started = False
        self._log = log

    def started(self) -> None:
        """See ``Watcher``."""

    def said(self, line: str) -> None:
        """See ``Watcher``."""
        self._log.write(f"{line}\n")
        self._log.flush()

    def ended(self) -> bool:
        """See ``Watcher``. Raises ``StartError``: one that has never started will not the next time."""
        if not self.has_started:
            raise StartError(f"{self.name} has not started; its messages are above")
        return True


class _Port:
    """The port that the processes share. As long as this socket is bound nobody else gets it while they are away.

    It listens to nothing, and so does not stop them. Without ``SO_REUSEPORT`` it is refused where anybody listens, even
    those who would share.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises ``StartError``."""
        self._sockets: list[socket.socket] = []
        port = settings.port
        try:
            for family, kind, protocol, _, address in _addresses(settings.host, port):
                taken = socket.socket(family, kind, protocol)
                self._sockets.append(taken)
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken.bind((address[0], port, *address[2:]))
                port = taken.getsockname()[1]
        except OSError as error:
            self.close()
            raise cannot_listen(settings, error) from error

    @property
    def address(self) -> tuple[str, int]:
        """The first, if there are several of one name."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        for taken in self._sockets:
            taken.close()


def _addresses(host: str, port: int) -> list[Any]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))


async def _run(child: ChildProcess, watcher: _Watcher) -> None:
    """Until it may be tried again. Raises ``StartError`` for one that has never started."""
    try:
        await child.run()
    except ProcessFailedError as error:
        if not watcher.has_started:
            raise StartError(str(error)) from error
        logger.error("%s; it is tried again in %g s", error, _LONG_PAUSE)
        await asyncio.sleep(_LONG_PAUSE)


def _name(process: GatewayProcess) -> str:
    return f"gateway process {process.index}"
