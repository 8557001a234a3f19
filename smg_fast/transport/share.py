"""Which gateway processes an engine serves, where several share the engines of a worker.

Each process is a client with an input and an output of its own. INIT tells an engine of those that it serves, in the
order of their client index; the first process of the worker's first engine answers the handshake for all.
"""

from __future__ import annotations

import msgspec


class Share(msgspec.Struct, frozen=True):
    """One process's view of a worker.

    Attributes
    ----------
    process : int
        This process.
    clients : tuple of tuple of int
        By engine: the processes that it serves.
    """

    process: int
    clients: tuple[tuple[int, ...], ...]

    @classmethod
    def alone(cls, engine_count: int) -> Share:
        """That of a process that shares with nobody."""
        return cls(0, ((0,),) * engine_count)

    @property
    def is_alone(self) -> bool:
        """Whether every engine serves this process, and no other."""
        return all(clients == (self.process,) for clients in self.clients)

    @property
    def is_partial(self) -> bool:
        """Whether there are engines that do not serve this process."""
        return not all(self.process in clients for clients in self.clients)

    @property
    def answers_handshake(self) -> bool:
        return self.process == self.clients[0][0]

    @property
    def is_empty(self) -> bool:
        """Whether no engine serves this process."""
        return not any(self.process in clients for clients in self.clients)

    def has(self, engine: int) -> bool:
        """Whether the engine serves this process."""
        return self.process in self.clients[engine]

    @property
    def client_index(self) -> int:
        """What the engines that serve this process know it by; there has to be one."""
        return next(clients.index(self.process) for clients in self.clients if self.process in clients)
