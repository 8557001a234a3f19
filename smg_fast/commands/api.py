"""The API of a gateway that runs, as docs/workers.md has it: what ``smg-fast workers`` needs of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

Answer = TypeVar("Answer", bound=msgspec.Struct)

#: Seconds an answer may take.
_TIMEOUT = 30.0


class Engine(msgspec.Struct, frozen=True):
    """As the API tells of it."""

    index: int
    state: str


class Load(msgspec.Struct, frozen=True):
    """As the API tells of it."""

    in_flight: int


class Worker(msgspec.Struct, frozen=True):
    """As the API tells of it, as far as the table has room."""

    id: str
    url: str
    runtime_type: str | None
    served_model_names: tuple[str, ...]
    priority: int
    state: str
    reason: str | None
    since: float
    engine_count: int
    engines: tuple[Engine, ...]
    load: Load
    #: Whose account this is, of several gateway processes.
    process: int | None = None


class WorkerList(msgspec.Struct, frozen=True):
    """As the API tells of it."""

    workers: tuple[Worker, ...]


class ApiError(msgspec.Struct, frozen=True):
    """As the API tells of it."""

    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """As the API tells of it."""

    error: ApiError


class CommandError(Exception):
    """The gateway cannot be reached, or refuses. The text tells the operator."""


class Api:
    """The API at a gateway's address. Answers are in JSON; all raise ``CommandError``."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def list(self) -> bytes:
        """A ``WorkerList``."""
        return self._call("GET", "/workers")

    def add(self, worker: Mapping[str, Any]) -> bytes:
        """The ``Worker`` whose registration has begun."""
        return self._call("POST", "/workers", json=worker)

    def remove(self, worker: str, timeout: float | None = None) -> bytes:
        """The ``Worker``, by its id or its URL, whose removal has begun."""
        if worker.startswith("ipc://"):
            ids = [other.id for other in decode(self.list(), WorkerList).workers if other.url == worker]
            if not ids:
                raise CommandError(f"there is no worker at {worker}")
            worker = ids[0]
        parameters = {} if timeout is None else {"timeout": f"{timeout:g}"}
        return self._call("DELETE", f"/workers/{quote(worker, safe='')}", params=parameters)

    def _call(self, method: str, path: str, **options: Any) -> bytes:
        return asyncio.run(self._request(method, path, options))

    async def _request(self, method: str, path: str, options: Mapping[str, Any]) -> bytes:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, f"{self._url}{path}", **options) as response,
            ):
                answer = await response.read()
        except asyncio.TimeoutError:
            raise CommandError(f"{self._url} has not answered for {_TIMEOUT:g} s") from None
        except aiohttp.InvalidURL:
            raise CommandError(f"--url {self._url}: expected http://HOST:PORT") from None
        except aiohttp.ClientConnectorError as error:
            raise CommandError(f"cannot reach {self._url}: {_reason(error.os_error)}") from None
        except aiohttp.ClientError as error:
            raise CommandError(f"{self._url}: {error}") from None
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise CommandError(decode(answer, ErrorBody).error.message)
        return answer


def decode(answer: bytes, kind: type[Answer]) -> Answer:
    """An answer as what it shall be. Raises ``CommandError`` if it is something else."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise CommandError(f"this is not how a gateway answers: {error}") from None


def _reason(error: OSError) -> str:
    """Without the addresses, which asyncio puts into the text; those of names that are not known have no number."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
