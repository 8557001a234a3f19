"""The workers of this gateway, by the models they serve."""

from __future__ import annotations

from collections.abc import Iterable

from ..transport import EngineUnavailable
from .worker import Worker


class UnknownModelError(LookupError):
    """No worker serves a model of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no model is called {name!r}; there is {', '.join(known) or 'none'}")
        self.name = name


class Registry:
    """Started workers. A model may have several; a request goes to one of them."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    def add(self, worker: Worker) -> None:
        """Raises ``ValueError`` if there is a worker at the URL already."""
        if worker.spec.url in self._workers:
            raise ValueError(f"there is a worker at {worker.spec.url} already")
        self._workers[worker.spec.url] = worker

    def models(self) -> list[str]:
        """All names of all models, each once, in the order they came."""
        return list(dict.fromkeys(name for worker in self._workers.values() for name in worker.spec.names))

    def by_model(self, name: str) -> Worker:
        """Of the model's ready workers, the one with the least in flight.

        Raises
        ------
        UnknownModelError
            No worker serves the model.
        EngineUnavailable
            None that does is ready.
        """
        workers = [worker for worker in self._workers.values() if name in worker.spec.names]
        if not workers:
            raise UnknownModelError(name, self.models())
        usable = [worker for worker in workers if worker.client.ready] or [
            worker for worker in workers if worker.client.accepting
        ]
        if not usable:
            raise EngineUnavailable("; ".join(worker.client.reason for worker in workers))
        return min(usable, key=lambda worker: worker.client.in_flight)

    async def close(self) -> None:
        """Close all workers."""
        while self._workers:
            _, worker = self._workers.popitem()
            await worker.close()
