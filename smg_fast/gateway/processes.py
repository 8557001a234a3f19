"""Several gateway processes behind one port. What operators ask one of them, it asks all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from .errors import ApiError, Handler, unavailable

#: Seconds a process may take to tell of itself.
_TIMEOUT = 2.0


class GatewayProcess(msgspec.Struct, frozen=True):
    """One of them.

    Attributes
    ----------
    index, count : int
        Its number, from 0, and how many there are.
    path : str
        Where they have their own sockets, which the others reach them by: ``PATH-http.INDEX.sock``.
    """

    index: int
    count: int
    path: str

    @property
    def socket(self) -> Path:
        return Path(f"{self.path}-http.{self.index}.sock")

    @property
    def all(self) -> list[GatewayProcess]:
        return [msgspec.structs.replace(self, index=index) for index in range(self.count)]


PROCESS: web.AppKey[GatewayProcess] = web.AppKey("process", GatewayProcess)


class Answer(msgspec.Struct, frozen=True):
    """What one process has told of itself."""

    process: int
    status: int
    body: bytes

    def decoded(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body, content_type="application/json")


async def ask(process: GatewayProcess, path: str) -> Answer | None:
    """What a process tells of itself at a path; ``None`` while there is nobody who does."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(process.socket)), timeout=aiohttp.ClientTimeout(total=_TIMEOUT)
            ) as session,
            session.get(f"http://gateway{path}") as response,
        ):
            return Answer(process.index, response.status, await response.read())
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return None


async def ask_all(process: GatewayProcess, path: str) -> list[Answer]:
    """What all that are there tell, this one included."""
    answers = await asyncio.gather(*(ask(each, path) for each in process.all))
    return [answer for answer in answers if answer is not None]


@web.middleware
async def all_processes_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer for all processes where an operator asks, unless it is one of them that does.

    A client that cannot be served here may find another process with its next connection.
    """
    resource = request.match_info.route.resource
    together = None if resource is None else _TOGETHER.get(resource.canonical)
    if together is None or _from_process(request):
        response = await handler(request)
        if response.status == HTTPStatus.SERVICE_UNAVAILABLE and not response.prepared:
            response.force_close()
        return response
    process = request.app[PROCESS]
    if request.method != "GET":
        return ApiError(
            HTTPStatus.CONFLICT,
            f"the workers of {process.count} gateway processes are those of the command line; they can be changed "
            "with --gateway-processes 1",
            code="several_processes",
        ).response()
    answers = await ask_all(process, request.path_qs)
    if not answers:
        return unavailable(f"none of {process.count} gateway processes has answered within {_TIMEOUT:g} s").response()
    return together(process, answers)


def _from_process(request: web.Request) -> bool:
    """A Unix socket's address is a path."""
    return request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), str)


def _sum(process: GatewayProcess, answers: Sequence[Answer]) -> web.Response:
    total, *others = [answer.decoded() for answer in answers]
    for other in others:
        for name, value in other.items():
            if isinstance(value, int):
                total[name] += value
    return _json(total)


def _worst(process: GatewayProcess, answers: Sequence[Answer]) -> web.Response:
    return max(answers, key=lambda answer: answer.status).response()


def _first(process: GatewayProcess, answers: Sequence[Answer]) -> web.Response:
    """Of the only one that has it."""
    for answer in answers:
        if answer.status == HTTPStatus.OK:
            return _json({"process": answer.process, **answer.decoded()})
    return answers[0].response()


def _joined(name: str) -> Callable[[GatewayProcess, Sequence[Answer]], web.Response]:
    def join(process: GatewayProcess, answers: Sequence[Answer]) -> web.Response:
        entries = [{"process": answer.process, **entry} for answer in answers for entry in answer.decoded()[name]]
        told = {answer.process for answer in answers}
        return _json({name: entries, "silent": [each.index for each in process.all if each.index not in told]})

    return join


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


#: By path: one answer of several.
_TOGETHER: dict[str, Callable[[GatewayProcess, Sequence[Answer]], web.Response]] = {
    "/health": _sum,
    "/ready": _worst,
    "/workers": _joined("workers"),
    "/workers/{id}": _first,
    "/loads": _joined("loads"),
}
