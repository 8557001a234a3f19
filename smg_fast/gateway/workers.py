"""``/workers`` and ``/loads``: the operator's side of the workers. ``docs/workers.md`` describes it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from aiohttp import web

from ..engines import MOST_LOGPROBS, ConstraintBackend, RequestForm, RuntimeOptionError
from ..names import UnfitNameError, check_label, check_model_name
from ..transport import AddressError, EngineStatus, check_own_host, worker_addresses
from ..workers import ConflictError, UnknownWorkerError, Worker, WorkerSpec
from ..workers.spec import ConnectionMode
from ..workers.worker import WorkerState
from ..workers.workflow import Event
from .body import read_request
from .errors import ApiError, invalid
from .limits import Range
from .models import ServedModel
from .serving import GATEWAY

T = TypeVar("T")

_RANGES = {
    # An engine's identity has two bytes.
    "engine_count": Range(1, 1 << 16),
    "priority": Range(-1000, 1000),
    "max_logprobs": Range(-1, MOST_LOGPROBS),
    "silence_timeout": Range(0, 86_400),
    "timeout": Range(0, 86_400),
}
_MAX_LABELS = 64
_MAX_NAMES = 64

#: Of a conflict: the parameter, and the code.
_CONFLICTS = {
    "url": ("url", "worker_exists"),
    "handshake_address": ("zmq_handshake_address", "address_in_use"),
    "served_model_names": ("served_model_name", "model_name_in_use"),
}


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /workers``."""

    url: str
    runtime_type: Literal["vllm", "tokenspeed"] | None = None
    connection_mode: ConnectionMode | None = None
    model: str | None = None
    served_model_name: str | list[str] | None = None
    zmq_handshake_address: str | None = None
    engine_count: int | None = None
    labels: dict[str, str] | None = None
    priority: int | None = None
    chat_template: str | None = None
    generation_config: Literal["auto", "none"] | None = None
    request_form: RequestForm | None = None
    vllm_version: str | None = None
    structured_outputs_backend: ConstraintBackend | None = None
    max_logprobs: int | None = None
    silence_timeout: float | None = None


class WorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``PUT /workers/{id}``; what is not given stays."""

    labels: dict[str, str] | None = None
    priority: int | None = None


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. ``running``, ``waiting`` and ``kv_usage`` are what it told last, ``reported`` when."""

    index: int
    state: str
    reason: str
    since: float
    in_flight: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    reported: float | None

    @classmethod
    def of(cls, engine: EngineStatus) -> EngineView:
        load = engine.load
        return cls(
            index=engine.index,
            state=engine.state,
            reason=engine.reason,
            since=engine.since,
            in_flight=engine.in_flight,
            running=None if load is None else load.running,
            waiting=None if load is None else load.waiting,
            kv_usage=None if load is None else load.kv_usage,
            reported=None if load is None else time.time() - load.age,
        )


class LoadView(msgspec.Struct, frozen=True, kw_only=True):
    """Of a worker; ``pressure`` is null where nothing is ready."""

    in_flight: int
    pressure: float | None

    @classmethod
    def of(cls, worker: Worker[ServedModel]) -> LoadView:
        pressure = worker.client.pressure
        return cls(in_flight=worker.client.in_flight, pressure=pressure if math.isfinite(pressure) else None)


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, as ``docs/workers.md`` explains."""

    id: str
    url: str
    runtime_type: str
    connection_mode: ConnectionMode
    model: str | None
    served_model_names: Sequence[str]
    zmq_handshake_address: str
    labels: dict[str, str]
    priority: int
    state: WorkerState
    reason: str
    since: float
    created: float
    engine_count: int
    engines: list[EngineView]
    load: LoadView
    history: list[Event] | None

    @classmethod
    def of(cls, worker: Worker[ServedModel], *, history: bool = False) -> WorkerView:
        return cls(
            id=worker.id,
            url=worker.spec.url,
            runtime_type=worker.family.name,
            connection_mode=worker.connection_mode,
            model=None if worker.source is None else str(worker.source.path),
            served_model_names=worker.names,
            zmq_handshake_address=worker.client.addresses.handshake,
            labels=worker.labels,
            priority=worker.priority,
            state=worker.state,
            reason=worker.reason,
            since=worker.since,
            created=worker.created,
            engine_count=worker.client.engine_count,
            engines=_engines(worker),
            load=LoadView.of(worker),
            history=worker.history if history else None,
        )


class WorkerList(msgspec.Struct, frozen=True):
    workers: list[WorkerView]


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's share of ``GET /loads``."""

    id: str
    url: str
    served_model_names: Sequence[str]
    state: WorkerState
    load: LoadView
    engines: list[EngineView]


class LoadList(msgspec.Struct, frozen=True):
    loads: list[WorkerLoad]


_ADD = msgspec.json.Decoder(WorkerRequest)
_CHANGE = msgspec.json.Decoder(WorkerChange)


async def add_worker(http: web.Request) -> web.Response:
    """``POST /workers``: begin a registration. What is wrong with it is told before anything is bound."""
    request = await read_request(http, _ADD, strict=True)
    spec = _spec(request)
    await asyncio.to_thread(_check_host, spec)
    try:
        worker = http.app[GATEWAY].registry.add(spec)
    except ConflictError as error:
        param, code = _CONFLICTS[error.over]
        raise ApiError(HTTPStatus.CONFLICT, f"{param}: {error}", param=param, code=code) from None
    except RuntimeOptionError as error:
        raise invalid(error.parameter, str(error)) from None
    except UnfitNameError as error:  # names that are given are checked already
        raise invalid("model", f"model: {error}") from None
    except ValueError as error:  # addresses are checked already
        raise invalid("vllm_version", f"vllm_version: {error}") from None
    return _json(WorkerView.of(worker), HTTPStatus.ACCEPTED, {"Location": f"/workers/{worker.id}"})


async def list_workers(http: web.Request) -> web.Response:
    """``GET /workers``"""
    return _json(WorkerList([WorkerView.of(worker) for worker in http.app[GATEWAY].registry.workers]))


async def get_worker(http: web.Request) -> web.Response:
    """``GET /workers/{id}``: with its history."""
    return _json(WorkerView.of(_worker(http), history=True))


async def change_worker(http: web.Request) -> web.Response:
    """``PUT /workers/{id}``: its labels, its priority."""
    change = await read_request(http, _CHANGE, strict=True)
    worker = _worker(http)
    _check_range("priority", change.priority)
    _check_labels(change.labels)
    if change.labels is not None:
        worker.labels = change.labels
    if change.priority is not None:
        worker.priority = change.priority
    return _json(WorkerView.of(worker))


async def remove_worker(http: web.Request) -> web.Response:
    """``DELETE /workers/{id}``: begin its removal."""
    gateway = http.app[GATEWAY]
    worker = _worker(http)
    gateway.registry.remove(worker, _timeout(http, gateway.removal_timeout))
    return _json(WorkerView.of(worker), HTTPStatus.ACCEPTED)


async def list_loads(http: web.Request) -> web.Response:
    """``GET /loads``"""
    return _json(
        LoadList(
            [
                WorkerLoad(
                    id=worker.id,
                    url=worker.spec.url,
                    served_model_names=worker.names,
                    state=worker.state,
                    load=LoadView.of(worker),
                    engines=_engines(worker),
                )
                for worker in http.app[GATEWAY].registry.workers
            ]
        )
    )


def _worker(http: web.Request) -> Worker[ServedModel]:
    try:
        return http.app[GATEWAY].registry.get(http.match_info["id"])
    except UnknownWorkerError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error), code="worker_not_found") from None


def _engines(worker: Worker[ServedModel]) -> list[EngineView]:
    return [EngineView.of(engine) for engine in worker.engines]


def _spec(request: WorkerRequest) -> WorkerSpec:
    """Raises ``ApiError`` for what cannot be; nothing is looked up yet."""
    for name in ("engine_count", "priority", "max_logprobs", "silence_timeout"):
        _check_range(name, getattr(request, name))
    _check_labels(request.labels)
    _check_address("url", request.url)
    _check_address("zmq_handshake_address", request.url, request.zmq_handshake_address)
    return WorkerSpec(
        url=request.url,
        runtime=request.runtime_type,
        connection_mode=request.connection_mode,
        model=_path("model", request.model),
        served_model_names=_names(request.served_model_name),
        chat_template=_path("chat_template", request.chat_template),
        generation_config=request.generation_config or "auto",
        handshake_address=request.zmq_handshake_address,
        request_form=request.request_form,
        vllm_version=request.vllm_version,
        structured_outputs_backend=request.structured_outputs_backend,
        max_logprobs=request.max_logprobs,
        engine_count=_given(request.engine_count, 1),
        silence_timeout=_given(request.silence_timeout, 300.0),
        labels=_given(request.labels, {}),
        priority=_given(request.priority, 0),
    )


def _check_host(spec: WorkerSpec) -> None:
    """Whether this host has what is named. Files are read in the registration."""
    if spec.handshake_address is not None:
        try:
            check_own_host(spec.handshake_address)
        except AddressError as error:
            raise invalid("zmq_handshake_address", f"zmq_handshake_address: {error}") from None
    if spec.model is not None and not _is_there("model", spec.model, Path.exists):
        raise invalid("model", f"model: there is no {spec.model} on the gateway's host")
    if spec.chat_template is not None and not _is_there("chat_template", spec.chat_template, Path.is_file):
        raise invalid("chat_template", f"chat_template: there is no file {spec.chat_template} on the gateway's host")


def _is_there(param: str, path: Path, look: Callable[[Path], bool]) -> bool:
    try:
        return look(path)
    except OSError as error:  # too long, or in a directory that is closed to us
        raise invalid(param, f"{param}: cannot look at {path}: {error.strerror}") from None


def _check_address(param: str, url: str, handshake: str | None = None) -> None:
    try:
        worker_addresses(url, handshake)
    except AddressError as error:
        raise invalid(param, f"{param}: {error}") from None


def _path(param: str, given: str | None) -> Path | None:
    if given is None:
        return None
    if not given.startswith("/") or "\0" in given:
        raise invalid(param, f"{param} must be an absolute path, got {given!r}")
    return Path(given)


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given or []
    if given == [] or len(names) > _MAX_NAMES:
        raise invalid("served_model_name", f"served_model_name must have 1 to {_MAX_NAMES} names, got {len(names)}")
    for name in names:
        _check_name("served_model_name", name, check_model_name)
    return tuple(dict.fromkeys(names))


def _check_labels(labels: dict[str, str] | None) -> None:
    if labels is None:
        return
    if len(labels) > _MAX_LABELS:
        raise invalid("labels", f"labels: at most {_MAX_LABELS}, got {len(labels)}")
    for text in (*labels, *labels.values()):
        _check_name("labels", text, check_label)


def _check_name(param: str, name: str, check: Callable[[str], None]) -> None:
    try:
        check(name)
    except UnfitNameError as error:
        raise invalid(param, f"{param}: {error}") from None


def _check_range(param: str, value: float | None) -> None:
    if value is not None and value not in _RANGES[param]:
        raise invalid(param, f"{param} must be {_RANGES[param]}, got {value}")


def _timeout(http: web.Request, default: float) -> float:
    """Of the query. Raises ``ApiError`` for what is no number of seconds, and for other parameters."""
    for name in http.query:
        if name != "timeout":
            raise ApiError(
                HTTPStatus.BAD_REQUEST, f"{name}: unknown; there is only timeout", param=name, code="unknown_field"
            )
    given = http.query.get("timeout")
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        raise invalid("timeout", f"timeout must be a number of seconds, got {given!r}") from None
    _check_range("timeout", seconds)
    return seconds


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _json(
    value: msgspec.Struct, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )
