"""The workers of this gateway, by the models they serve."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

from ..transport import BindError, EngineUnavailable
from .launch_command import ProcessGoneError
from .models import ModelSource, SharedModels
from .registration import Registration
from .spec import WorkerSpec
from .worker import Worker
from .workflow import StepFailed, StepTimeoutError

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

#: What of a spec another worker has already.
Conflict = Literal["url", "handshake_address", "served_model_names"]

#: What a step may fail with; anything else is a mistake of ours.
_EXPECTED = (ValueError, BindError, ProcessGoneError, StepTimeoutError)

_ANY_HOST = ("0.0.0.0", "*", "::")
_LOCAL_HOST = {"localhost": "127.0.0.1"}
_CLOSING = "the gateway is shutting down"


class UnknownModelError(LookupError):
    """No worker serves a model of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no model is called {name!r}; there is {', '.join(known) or 'none'}")
        self.name = name


class UnknownWorkerError(LookupError):
    """No worker has this id."""


class ConflictError(ValueError):
    """A worker that cannot be beside another one. The text names both, and tells what to do."""

    def __init__(self, over: Conflict, message: str) -> None:
        super().__init__(message)
        self.over: Conflict = over


class Registry(Generic[ModelT]):
    """All workers. A model may have several; a request goes to one of them."""

    def __init__(self, load: Callable[[ModelSource], ModelT]) -> None:
        """``load`` makes a model; it runs in a thread."""
        self._models = SharedModels(load)
        self._workers: dict[str, Worker[ModelT]] = {}
        self._registrations: dict[str, Registration[ModelT]] = {}
        self._registering: dict[str, asyncio.Task[None]] = {}
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._turns = itertools.count(1)
        self._closing = False

    # --- which there are ---

    @property
    def workers(self) -> tuple[Worker[ModelT], ...]:
        """In the order they came."""
        return tuple(self._workers.values())

    def get(self, id: str) -> Worker[ModelT]:
        """Raises ``UnknownWorkerError``."""
        try:
            return self._workers[id]
        except KeyError:
            raise UnknownWorkerError(f"there is no worker {id!r}") from None

    def names(self) -> list[str]:
        """All names of all models that are loaded, each once, in the order they came."""
        return list(dict.fromkeys(name for worker in self._workers.values() if worker.loaded for name in worker.names))

    def serving(self, name: str) -> list[Worker[ModelT]]:
        """The workers of a model, whatever their state.

        Raises
        ------
        UnknownModelError
            There is none.
        EngineUnavailable
            The registry is closing.
        """
        if self._closing:
            raise EngineUnavailable(_CLOSING)
        workers = [worker for worker in self._workers.values() if name in worker.names and worker.state != "failed"]
        if not workers:
            raise UnknownModelError(name, self.names())
        return workers

    # --- who gets the next request ---

    def by_model(self, name: str) -> Worker[ModelT]:
        """Of the model's ready workers with the highest priority the one under the least pressure.

        Raises
        ------
        UnknownModelError
            No worker serves the model.
        EngineUnavailable
            None that does is ready.
        """
        return _least_loaded(self._usable(name))

    def next(self, name: str, fits: Callable[[Worker[ModelT]], bool] = lambda _: True) -> Worker[ModelT]:
        """As ``by_model``, among the workers that fit, for a request that is sent now: of equals, each has its turn.

        Raises as ``by_model`` does.
        """
        workers = [worker for worker in self._usable(name) if fits(worker)]
        if not workers:
            raise EngineUnavailable(reasons(self.serving(name)))
        return self._take(workers)

    def others(self, name: str, lost: Worker[ModelT]) -> list[Worker[ModelT]]:
        """Ready workers of this name for a request that one has lost, the best first.

        That one itself is the last, if it has another engine that is ready.
        """
        if self._closing:
            return []
        ready = [worker for worker in self._workers.values() if worker.ready and name in worker.names]
        return sorted(ready, key=lambda worker: (worker is lost, *_preference(worker)))

    def _usable(self, name: str) -> list[Worker[ModelT]]:
        """Those that are ready; with none ready, those on which a request may be tried."""
        ready = [worker for worker in self._workers.values() if worker.ready and name in worker.names]
        if ready and not self._closing:
            return ready
        workers = self.serving(name)
        usable = [worker for worker in workers if worker.accepting]
        if not usable:
            raise EngineUnavailable(reasons(workers))
        return usable

    def _take(self, workers: Sequence[Worker[ModelT]]) -> Worker[ModelT]:
        chosen = _least_loaded(workers)
        chosen.turn = next(self._turns)
        return chosen

    # --- their coming and going ---

    def add(self, spec: WorkerSpec, *, quiet: bool = False) -> Worker[ModelT]:
        """Begin the registration of a worker. Nothing is bound before this returns.

        One whose registration failed gives way to another at its URL. ``quiet``: the caller waits, and tells of a
        failure itself.

        Raises
        ------
        ConflictError
            Another worker has its URL, its handshake address, or its name for another model.
        EngineUnavailable
            The registry is closing.
        ValueError
            The spec cannot be served.
        """
        if self._closing:
            raise EngineUnavailable(_CLOSING)
        worker = Worker[ModelT](spec)
        self._check(worker)
        for other in self.workers:
            if other.state == "failed" and _socket(other) == _socket(worker):
                self._forget(other)
        self._workers[worker.id] = worker
        self._registrations[worker.id] = Registration(worker, self._models, self._check)
        task = self._registering[worker.id] = asyncio.create_task(
            self._register(worker, quiet), name=f"register {spec.url}"
        )
        task.add_done_callback(lambda _: self._registering.pop(worker.id))  # it may be cancelled before it begins
        return worker

    def remove(self, worker: Worker[ModelT], timeout: float) -> None:
        """Begin the removal of a worker: its registration ends, and what it has in flight may take ``timeout`` seconds
        more. Called again, the new time counts.
        """
        if worker.state == "failed":
            self._forget(worker)
            return
        before = self._removing.get(worker.id)
        if before is not None:
            before.cancel()
        logger.info("worker %s is being removed; it has %d generations", worker.spec.url, worker.client.in_flight)
        worker.enter("draining", "it is being removed")
        self._removing[worker.id] = asyncio.create_task(self._remove(worker, timeout), name=f"remove {worker.spec.url}")

    async def close(self) -> None:
        """Close all workers, and begin with none any more."""
        self._closing = True
        tasks = [*self._registering.values(), *self._removing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers:
            await self._end(worker, for_good=False)
            self._forget(worker)

    async def _register(self, worker: Worker[ModelT], quiet: bool) -> None:
        try:
            await self._registrations[worker.id].run()
        except StepFailed as failed:
            unexpected = not isinstance(failed.__cause__, _EXPECTED)
            if unexpected or not quiet:
                trace = failed if unexpected else None
                logger.error("worker %s cannot be registered: %s", worker.spec.url, failed, exc_info=trace)
            await self._end(worker)
            worker.enter("failed", failed.why)

    async def _remove(self, worker: Worker[ModelT], timeout: float) -> None:
        registering = self._registering.get(worker.id)
        if registering is not None:
            registering.cancel()
            await asyncio.wait((registering,))
        # Not asyncio.wait_for, which before Python 3.12 loses a cancellation that comes as the work ends.
        draining = asyncio.create_task(worker.client.drain())
        try:
            done, _ = await asyncio.wait((draining,), timeout=timeout)
        finally:
            draining.cancel()
        if not done:
            in_flight = worker.client.in_flight
            logger.warning("worker %s: ending %d generations that are still in flight", worker.spec.url, in_flight)
        await self._end(worker)
        self._forget(worker)
        logger.info("worker %s is removed", worker.spec.url)

    async def _end(self, worker: Worker[ModelT], *, for_good: bool = True) -> None:
        """End what it has in flight, unbind it, and let go of its model."""
        try:
            await worker.close(for_good=for_good)
        except BindError as error:
            logger.error("worker %s: %s", worker.spec.url, error)
        self._registrations[worker.id].release()

    def _forget(self, worker: Worker[ModelT]) -> None:
        for of_workers in (self._workers, self._registrations, self._removing):
            of_workers.pop(worker.id, None)
        worker.enter("removed", "it is removed")

    # --- who can be beside whom ---

    def _check(self, worker: Worker[ModelT]) -> None:
        """Raises ``ConflictError`` if the worker, as far as it is known by now, cannot be beside the others."""
        for other in self._workers.values():
            if other is not worker and other.state != "failed":
                _check_pair(worker, other)


def reasons(workers: Sequence[Worker[ModelT]]) -> str:
    """Why each of some workers is in its state, in words; one that is alone needs no name."""
    if len(workers) == 1:
        return workers[0].reason
    return "; ".join(f"worker {worker.spec.url}: {worker.reason}" for worker in workers)


def _least_loaded(workers: Sequence[Worker[ModelT]]) -> Worker[ModelT]:
    """Of the highest priority; of equals the one whose turn is longest ago."""
    if len(workers) == 1:
        return workers[0]
    return min(workers, key=_preference)


def _preference(worker: Worker[ModelT]) -> tuple[int, float, int]:
    """Least first."""
    return -worker.priority, worker.client.pressure, worker.turn


def _check_pair(worker: Worker[ModelT], other: Worker[ModelT]) -> None:
    url, others = worker.spec.url, other.spec.url
    if _socket(worker) == _socket(other):
        raise ConflictError("url", f"there is a worker at {others} already ({other.state})")
    address = worker.client.addresses.handshake
    if _overlap(address, other.client.addresses.handshake):
        derived = worker.spec.handshake_address is None and other.spec.handshake_address is None
        why = "the port follows from a URL's path, and the two paths lead to the same one; " if derived else ""
        raise ConflictError(
            "handshake_address",
            f"engines of {url} would dial {address}, as those of {others} do: {why}"
            "give this worker a handshake address of its own, and have its engines dial that",
        )
    shared = [name for name in worker.names if name in other.names]
    if shared and worker.source is not None and other.source is not None and worker.source != other.source:
        raise ConflictError(
            "served_model_names",
            f"the model {shared[0]!r} is {_described(other.source)} already (worker {others}), and this one would be "
            f"{_described(worker.source)}: workers that share a name have to share the model; give this one another",
        )


def _described(source: ModelSource) -> str:
    template = f" with the chat template {source.chat_template}" if source.chat_template is not None else ""
    return f"{source.path}{template}{' without its generation_config' if source.generation_config == 'none' else ''}"


def _socket(worker: Worker[ModelT]) -> str:
    """What its URL names, whatever way it is written."""
    return os.path.realpath(worker.client.addresses.input)


def _overlap(address: str, other: str) -> bool:
    """Whether one TCP port would have to be bound for both."""
    one, two = urlsplit(address), urlsplit(other)
    hosts = {_LOCAL_HOST.get(host, host) for host in (one.hostname or "", two.hostname or "")}
    return one.port == two.port and (len(hosts) == 1 or not hosts.isdisjoint(_ANY_HOST))
