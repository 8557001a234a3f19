"""``/workers`` and ``/loads``, with engines as processes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.server import GatewayServer, StartError
from smg_fast.settings import GatewaySettings, WorkerSettings
from tests.transport.engine import Row, ScriptedEngine

from .support import PATIENCE, Simulator, events, eventually, free_port, simulator, texts


class Api:
    """A gateway that was started without workers, and its operator."""

    def __init__(self, server: GatewayServer, session: aiohttp.ClientSession, directory: Path) -> None:
        self.server = server
        self.session = session
        self.directory = directory

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.request(method, self.server.url + path, json=body) as response:
            return response.status, await response.json()

    async def add(self, name: str, **fields: Any) -> dict[str, Any]:
        """A worker that has been accepted; TokenSpeed's, with an address of its own, unless ``fields`` say so."""
        body = {
            "url": self.url(name),
            "runtime_type": "tokenspeed",
            "model": str(MODEL_DIRECTORY),
            "zmq_handshake_address": f"tcp://127.0.0.1:{free_port()}",
            **fields,
        }
        status, worker = await self.call("POST", "/workers", body)
        assert status == 202, worker
        assert isinstance(worker, dict)
        return worker

    async def state(self, worker: dict[str, Any], *states: str) -> dict[str, Any]:
        """The worker, once it is in one of these states."""
        _, seen = await eventually(
            lambda: self.call("GET", f"/workers/{worker['id']}"), lambda answer: answer[1].get("state") in states
        )
        assert isinstance(seen, dict)
        return seen

    async def gone(self, worker: dict[str, Any]) -> None:
        await eventually(lambda: self.call("GET", f"/workers/{worker['id']}"), lambda answer: answer[0] == 404)

    async def complete(self, model: str | None, prompt: str = "hello there", **fields: Any) -> tuple[int, Any]:
        return await self.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 4, **fields})

    async def names(self) -> list[str]:
        _, models = await self.call("GET", "/v1/models")
        return [card["id"] for card in models["data"]]

    def url(self, name: str) -> str:
        return f"ipc://{self.directory}/{name}"

    @property
    def files(self) -> list[str]:
        return files(self.directory)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def directory() -> Iterator[Path]:
    """Shorter than ``tmp_path``: the path of a Unix socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


@pytest.fixture
async def api(directory: Path) -> AsyncIterator[Api]:
    server = GatewayServer(GatewaySettings(port=0), [])
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Api(server, session, directory)
    finally:
        await server.stop()
    # What the next gateway has to know of engines that live on stays, and nothing else.
    assert [name for name in files(directory) if not name.endswith("-engines.json")] == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The model in another directory: another model."""
    return Path(shutil.copytree(MODEL_DIRECTORY, tmp_path / "copy"))


@asynccontextmanager
async def engine_of(worker: dict[str, Any], *options: str) -> AsyncIterator[Simulator]:
    own = ("--runtime", worker["runtime_type"], "--tick-ms", "1")
    async with simulator(worker["zmq_handshake_address"], *own, *options) as engine:
        yield engine


# --- one worker's life ---


@pytest.mark.parametrize("runtime", ["tokenspeed", "vllm"])
async def test_the_life_of_a_worker(api: Api, runtime: str) -> None:
    assert await api.call("GET", "/workers") == (200, {"workers": []})
    assert await api.call("GET", "/loads") == (200, {"loads": []})
    async with api.session.get(f"{api.server.url}/ready") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    body = {
        "url": api.url("a"),
        "runtime_type": runtime,
        "connection_mode": "zmq",
        "model": str(MODEL_DIRECTORY),
        "served_model_name": ["m", "alias"],
        "zmq_handshake_address": f"tcp://127.0.0.1:{free_port()}",
        "engine_count": 1,
        "labels": {"rack": "7"},
        "priority": 3,
    }
    async with api.session.post(f"{api.server.url}/workers", json=body) as response:
        assert response.status == 202
        worker = await response.json()
        assert response.headers["Location"] == f"/workers/{worker['id']}"
    given = {name: body[name] for name in ("url", "runtime_type", "connection_mode", "model", "labels", "priority")}
    assert {name: worker[name] for name in given} == given
    assert worker["state"] == "registering"
    assert worker["history"] is None

    worker = await api.state(worker, "connecting")
    assert worker["reason"] == "engine 0 has not said hello"
    assert await api.names() == ["m", "alias"]
    async with api.session.post(f"{api.server.url}/v1/completions", json={"model": "m", "prompt": "x"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert (await api.call("POST", "/tokenize", {"model": "alias", "prompt": "x"}))[0] == 200

    async with engine_of(worker):
        worker = await api.state(worker, "ready")
        assert (await api.call("GET", "/ready"))[0] == 200
        for name in ("m", "alias", None):
            status, answer = await api.complete(name)
            assert status == 200, answer
            assert answer["model"] == (name or "m")
        history = [(event["step"], event["state"]) for event in worker["history"]]
        assert history[-1] == ("activate", "done")
        assert {step for step, state in history if state == "skipped"} == {
            "detect_connection",
            "resolve_runtime",
            "discover_model",
        }

        _, told = await api.call("GET", "/loads")
        [load] = told["loads"]
        assert (load["id"], load["state"], load["load"]["in_flight"]) == (worker["id"], "ready", 0)
        [told_engine] = load["engines"]
        assert (told_engine["state"], told_engine["running"], told_engine["waiting"]) == ("ready", 0, 0)
        assert 0 <= told_engine["kv_usage"] <= 1
        assert worker["since"] <= told_engine["reported"]

        status, changed = await api.call("PUT", f"/workers/{worker['id']}", {"labels": {"rack": "8"}})
        assert (status, changed["labels"], changed["priority"]) == (200, {"rack": "8"}, 3)
        status, changed = await api.call("PUT", f"/workers/{worker['id']}", {"priority": -1})
        assert (status, changed["labels"], changed["priority"]) == (200, {"rack": "8"}, -1)
        _, listed = await api.call("GET", "/workers")
        assert [(one["id"], one["priority"], one["history"]) for one in listed["workers"]] == [(worker["id"], -1, None)]

        status, removed = await api.call("DELETE", f"/workers/{worker['id']}")
        assert (status, removed["id"], removed["state"]) == (202, worker["id"], "draining")
        await api.gone(worker)
    assert await api.names() == []
    assert (await api.complete("m"))[0] == 404
    assert (await api.complete(None))[0] == 503
    assert api.files == []


async def test_a_killed_engine_and_its_successor(api: Api) -> None:
    worker = await api.add("a", served_model_name="m")
    async with engine_of(worker) as engine:
        await api.state(worker, "ready")
        await engine.kill()
        lost = await api.state(worker, "unhealthy")
        assert lost["reason"] == "engine 0 has disconnected"
        assert lost["engines"][0]["state"] == "lost"
        status, answer = await api.complete("m")
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    async with engine_of(worker):
        back = await api.state(worker, "ready")
        assert back["since"] >= lost["since"]
        assert (await api.complete("m"))[0] == 200


async def test_an_engine_of_another_kind_is_refused_and_the_reason_says_what_to_do(api: Api) -> None:
    worker = await api.add("a", served_model_name="m")
    async with engine_of({**worker, "runtime_type": "vllm"}):
        refused = await api.state(worker, "unhealthy")
        assert "say --runtime vllm" in refused["reason"]
        assert refused["engines"][0]["state"] == "refused"
        assert (await api.complete("m"))[0] == 503


async def test_the_model_is_found_by_what_the_engine_was_started_with(api: Api, copy: Path) -> None:
    worker = await api.add("a", model=None)
    worker = await api.state(worker, "connecting")
    assert (worker["model"], worker["served_model_names"]) == (None, [])
    assert await api.names() == []
    assert (await api.complete(None))[0] == 503
    async with engine_of(worker, "--model", str(copy)):
        worker = await api.state(worker, "ready")
        assert (worker["model"], worker["served_model_names"]) == (str(copy), ["copy"])
        assert await api.names() == ["copy"]
        assert (await api.complete("copy"))[0] == 200


@pytest.mark.parametrize("given", [False, True])
async def test_a_registration_that_fails_tells_why_and_binds_nothing(api: Api, copy: Path, given: bool) -> None:
    """The engine was started without a model, or with one whose directory is gone when it registers."""
    worker = await api.add("a", model=None, served_model_name="m")
    await api.state(worker, "connecting")
    options = ("--model", str(copy), "--slow-load", "0.5") if given else ()
    async with engine_of(worker, *options) as engine:
        if given:
            await eventually(
                lambda: api.state(worker, "connecting"), lambda worker: worker["engines"][0]["state"] == "starting"
            )
            shutil.rmtree(copy)
        failed = await api.state(worker, "failed")
        assert engine.process.returncode is None
        assert (f"no {copy} here" if given else f"process {engine.process.pid}") in failed["reason"]
        [seen] = failed["engines"]
        assert (seen["state"], seen["since"]) == ("absent", failed["since"])
        assert seen["reason"] == "engine 0 has nothing to dial: the worker is closed"
        assert (seen["in_flight"], seen["running"], seen["reported"]) == (0, None, None)
        assert failed["load"] == {"in_flight": 0, "pressure": None}
        _, loads = await api.call("GET", "/loads")
        assert loads["loads"][0]["engines"] == failed["engines"]
        assert not api.server.is_ready(worker["url"], [0])
        _, removed = await api.call("DELETE", f"/workers/{worker['id']}")
        assert (removed["state"], removed["engines"][0]["state"]) == ("removed", "absent")
    assert [event["step"] for event in failed["history"] if event["state"] == "failed"] == ["discover_model"]
    assert api.files == []
    assert (await api.complete("m"))[0] == 404


async def test_a_tokenizer_that_cannot_be_read(api: Api, copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    worker = await api.add("a", model=str(copy), served_model_name="m")
    failed = await api.state(worker, "failed")
    assert str(copy / "tokenizer.json") in failed["reason"]
    assert api.files == []
    assert (await api.complete("m"))[0] == 404
    shutil.copy(MODEL_DIRECTORY / "tokenizer.json", copy)
    again = await api.add("a", model=str(copy), served_model_name="m")
    assert (await api.call("GET", f"/workers/{worker['id']}"))[0] == 404
    await api.state(again, "connecting")
    (copy / "tokenizer.json").unlink()
    other = await api.add("b", model=str(copy), generation_config="none", served_model_name="other")
    await api.state(other, "failed")
    status, removed = await api.call("DELETE", f"/workers/{other['id']}")
    assert (status, removed["state"]) == (202, "removed")
    assert (await api.call("GET", f"/workers/{other['id']}"))[0] == 404


async def test_a_directory_whose_name_cannot_be_a_models_takes_another(api: Api, copy: Path) -> None:
    """Whether it is given or found."""
    odd = Path(shutil.move(copy, copy.with_name("a?b")))
    body = {"url": api.url("a"), "runtime_type": "tokenspeed", "model": str(odd)}
    status, answer = await api.call("POST", "/workers", body)
    assert (status, answer["error"]["param"]) == (400, "model")
    assert f"'{odd}' has to be given another name" in answer["error"]["message"]
    worker = await api.add("a", model=None)
    async with engine_of(worker, "--model", str(odd)):
        failed = await api.state(worker, "failed")
        assert f"'{odd}' has to be given another name" in failed["reason"]
        assert failed["served_model_names"] == []
    assert api.files == []
    named = await api.add("a", model=str(odd), served_model_name="ab")
    await api.state(named, "connecting")
    assert await api.names() == ["ab"]


async def test_a_registration_under_way_is_called_off(api: Api) -> None:
    worker = await api.add("a", model=None)
    status, _ = await api.call("DELETE", f"/workers/{worker['id']}")
    assert status == 202
    await api.gone(worker)
    assert api.files == []
    await api.add("a")


# --- what is refused ---

NEVER = Path(tempfile.gettempdir()) / f"smg-never-{free_port()}"
BASE = {"url": f"ipc://{NEVER}/e", "runtime_type": "vllm", "model": str(MODEL_DIRECTORY)}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"url": None}, "url", "Expected `str`"),
        ({"url": "http://127.0.0.1:8000"}, "url", "only ipc://PATH"),
        ({"url": "ipc://relative"}, "url", "must be absolute"),
        ({"url": f"ipc:///{'x' * 200}"}, "url", "than a Unix socket can have"),
        ({"url": f"ipc://{NEVER}/a\nb"}, "url", r"printable, and '\n' is not"),
        ({"url": f"ipc://{NEVER}/a\x7fb"}, "url", r"printable, and '\x7f' is not"),
        ({"url": f"ipc://{NEVER}/a?b"}, "url", "? # % \\ cannot be in it, got"),
        ({"runtime_type": "sglang"}, "runtime_type", "sglang"),
        ({"connection_mode": "http"}, "connection_mode", "http"),
        ({"model": "relative"}, "model", "must be an absolute path, got 'relative'"),
        ({"model": "/no/such/model"}, "model", "there is no /no/such/model"),
        ({"model": 5}, "model", "Expected `str | null`"),
        ({"model": f"/{'x' * 300}"}, "model", "File name too long"),
        ({"model": "/"}, "model", "'/' has to be given another name: a name must have 1 to 256 characters"),
        ({"chat_template": "/no/such/template"}, "chat_template", "no file /no/such/template"),
        ({"chat_template": "t.jinja"}, "chat_template", "absolute"),
        ({"chat_template": f"/{'x' * 300}"}, "chat_template", "File name too long"),
        ({"generation_config": "maybe"}, "generation_config", "maybe"),
        ({"served_model_name": ""}, "served_model_name", "got ''"),
        ({"served_model_name": []}, "served_model_name", "1 to 64 names, got 0"),
        ({"served_model_name": ["a", " "]}, "served_model_name", "only spaces, got ' '"),
        ({"served_model_name": "x" * 257}, "served_model_name", "1 to 256 characters"),
        ({"served_model_name": "a\tb"}, "served_model_name", r"printable, and '\t' is not, got 'a\tb'"),
        ({"served_model_name": ["m", "a\x1b[2J"]}, "served_model_name", r"printable, and '\x1b' is not"),
        ({"served_model_name": ["m", "a\u2028b"]}, "served_model_name", r"printable, and '\u2028' is not"),
        ({"served_model_name": "a?b"}, "served_model_name", "? # % \\ cannot be in it, got 'a?b'"),
        ({"served_model_name": "a/../b"}, "served_model_name", "got 'a/../b'"),
        ({"zmq_handshake_address": "127.0.0.1:5"}, "zmq_handshake_address", "expected tcp://HOST:PORT"),
        ({"zmq_handshake_address": "ipc:///tmp/h"}, "zmq_handshake_address", "expected tcp://HOST:PORT"),
        ({"zmq_handshake_address": "tcp://127.0.0.1"}, "zmq_handshake_address", "from 1 to 65535"),
        ({"zmq_handshake_address": "tcp://:5"}, "zmq_handshake_address", "expected tcp://HOST:PORT"),
        ({"zmq_handshake_address": "tcp://127.0.0.1:0"}, "zmq_handshake_address", "from 1 to 65535, got 0"),
        ({"zmq_handshake_address": "tcp://127.0.0.1:70000"}, "zmq_handshake_address", "from 1 to 65535, got 70000"),
        ({"zmq_handshake_address": "tcp://127.0.0.1:http"}, "zmq_handshake_address", "from 1 to 65535"),
        ({"zmq_handshake_address": "tcp://127.0.0.1:5\n0"}, "zmq_handshake_address", "from 1 to 65535"),
        ({"zmq_handshake_address": "tcp://[::1]:5"}, "zmq_handshake_address", "an IPv4 address"),
        (
            {"zmq_handshake_address": "tcp://192.0.2.1:5"},
            "zmq_handshake_address",
            "192.0.2.1 is no address of this host",
        ),
        ({"zmq_handshake_address": "tcp://a..b:5"}, "zmq_handshake_address", "a..b is no address of this host"),
        ({"engine_count": 0}, "engine_count", "at least 1 and at most 65536, got 0"),
        ({"engine_count": 65537}, "engine_count", "got 65537"),
        ({"engine_count": 1.5}, "engine_count", "Expected `int | null`"),
        ({"priority": 1001}, "priority", "at least -1000 and at most 1000, got 1001"),
        ({"labels": {"a": 1}}, "labels", "Expected `str`"),
        ({"labels": {str(number): "" for number in range(65)}}, "labels", "at most 64, got 65"),
        ({"labels": {"a": "x" * 257}}, "labels", "at most 256 characters, got 257"),
        ({"labels": {"a": "b\n"}}, "labels", r"printable, and '\n' is not, got 'b\n'"),
        ({"labels": {"a\0": "b"}}, "labels", r"printable, and '\x00' is not"),
        ({"silence_timeout": -1}, "silence_timeout", "at least 0"),
        ({"max_logprobs": -2}, "max_logprobs", "at least -1"),
        ({"request_form": "tagged"}, "request_form", "of the runtime tokenspeed"),
        ({"runtime_type": "tokenspeed", "vllm_version": "0.32.0"}, "vllm_version", "of the runtime vllm"),
        ({"vllm_version": "0.11.0"}, "vllm_version", "0.11.0 is older"),
        ({"engines": 2}, "engines", "unknown"),
    ],
)
async def test_bad_input_is_refused_and_nothing_is_bound(
    api: Api, fields: dict[str, Any], param: str, says: str
) -> None:
    status, answer = await api.call("POST", "/workers", {**BASE, **fields})
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert param in error["message"] or param in ("request_form", "vllm_version")
    assert says in error["message"]
    assert await api.call("GET", "/workers") == (200, {"workers": []})
    assert not NEVER.exists()


async def test_what_is_no_request(api: Api) -> None:
    assert (await api.call("POST", "/workers", []))[0] == 400
    status, answer = await api.call("POST", "/workers", {"model": "/x"})
    assert (status, answer["error"]["param"]) == (400, "url")
    for method in ("GET", "PUT", "DELETE"):
        status, answer = await api.call(method, "/workers/nobody", {"priority": 1} if method == "PUT" else None)
        assert (status, answer["error"]["code"]) == (404, "worker_not_found")
    worker = await api.add("a")
    path = f"/workers/{worker['id']}"
    bodies: list[tuple[dict[str, Any], str]]
    bodies = [
        ({"priority": 5000}, "priority"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": {"a": "b\n"}}, "labels"),
        ({"url": "x"}, "url"),
    ]
    for body, param in bodies:
        status, answer = await api.call("PUT", path, body)
        assert (status, answer["error"]["param"]) == (400, param)
    for query in ("timeout=soon", "timeout=-1", "timeout=nan", "wait=1"):
        status, answer = await api.call("DELETE", f"{path}?{query}")
        assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])
    assert (await api.state(worker, "connecting"))["priority"] == 0


async def test_conflicts(api: Api, copy: Path) -> None:
    worker = await api.add("a", served_model_name="m")
    base = {"model": str(MODEL_DIRECTORY), "zmq_handshake_address": f"tcp://127.0.0.1:{free_port()}"}
    conflicts = [
        ({"url": worker["url"]}, "url", "worker_exists"),
        (
            {"url": api.url("b"), "zmq_handshake_address": worker["zmq_handshake_address"]},
            "zmq_handshake_address",
            "address_in_use",
        ),
        (
            {"url": api.url("b"), "model": str(copy), "served_model_name": "m"},
            "served_model_name",
            "model_name_in_use",
        ),
    ]
    for fields, param, code in conflicts:
        status, answer = await api.call("POST", "/workers", {**base, **fields})
        error = answer["error"]
        assert (status, error["param"], error["code"]) == (409, param, code)
        assert worker["url"] in error["message"]
    await api.add("b", served_model_name="m")


async def test_an_address_that_somebody_else_has(api: Api) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        failed = await api.state(await api.add("a", zmq_handshake_address=address), "failed")
    assert f"cannot bind {address}" in failed["reason"]
    assert api.files == []


# --- many ---


async def test_two_models_and_four_engines(api: Api, copy: Path) -> None:
    """Two workers serve one model; the other one's worker has a group of two engines."""
    first = await api.add("first", served_model_name="small")
    second = await api.add("second", served_model_name="small")
    group = await api.add("group", runtime_type="vllm", model=str(copy), engine_count=2)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine_of(worker)) for worker in (first, second)]
        rank = ("--data-parallel-size", "2", "--index")
        engines += [await stack.enter_async_context(engine_of(group, *rank, index)) for index in "01"]
        for worker in (first, second):
            await api.state(worker, "ready")
        await eventually(
            lambda: api.state(group, "ready"),
            lambda worker: [engine["state"] for engine in worker["engines"]] == ["ready", "ready"],
        )
        assert await api.names() == ["small", "copy"]
        status, answer = await api.complete(None)
        assert (status, answer["error"]["param"]) == (400, "model")
        assert "small, copy" in answer["error"]["message"]
        answers = await asyncio.gather(
            *(api.complete(name, max_tokens=200, ignore_eos=True) for name in ["small"] * 20 + ["copy"] * 12)
        )
        assert {status for status, _ in answers} == {200}
        adds = [(await engine.idle()).adds for engine in engines]
        assert (adds[0] + adds[1], adds[2] + adds[3]) == (20, 12)
        assert abs(adds[0] - adds[1]) <= 4, adds
        assert abs(adds[2] - adds[3]) <= 4, adds
        _, loads = await api.call("GET", "/loads")
        assert [len(load["engines"]) for load in loads["loads"]] == [1, 1, 2]
        _, health = await api.call("GET", "/health")
        assert (health["requests"], health["generations"]) == (0, 0)

        # One model's engines die; the other's clients do not notice.
        await engines[0].kill()
        await engines[1].kill()
        for worker in (first, second):
            await api.state(worker, "unhealthy")
        assert (await api.call("GET", "/ready"))[0] == 200
        status, answer = await api.complete("small")
        assert status == 503
        assert first["url"] in answer["error"]["message"]
        assert second["url"] in answer["error"]["message"]
        assert (await api.complete("copy"))[0] == 200


async def test_a_worker_is_removed_under_load(api: Api) -> None:
    """Streams that run end well, and requests that come all the while are answered."""
    stays = await api.add("stays", served_model_name="m")
    goes = await api.add("goes", served_model_name="m")
    async with engine_of(stays) as remaining, engine_of(goes) as leaving:
        await api.state(stays, "ready")
        await api.state(goes, "ready")
        said = " ".join(f"word{number}" for number in range(60))
        going = True

        async def stream() -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": said}], "stream": True}
            async with api.session.post(f"{api.server.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
                assert texts(events(await response.read())) == said

        async def client() -> int:
            count = 0
            while going:
                await stream()
                count += 1
            return count

        clients = [asyncio.create_task(client()) for _ in range(16)]
        await eventually(leaving.counters, lambda counters: counters.live >= 4)
        status, _ = await api.call("DELETE", f"/workers/{goes['id']}")
        assert status == 202
        await api.gone(goes)
        assert not any(name.startswith("goes") for name in api.files)
        before = (await remaining.counters()).finished
        await eventually(remaining.counters, lambda counters: counters.finished > before + 20)
        going = False
        assert sum(await asyncio.gather(*clients)) > 20
        counters = await leaving.counters()
        assert (counters.live, counters.aborted) == (0, 0)


async def test_removal_is_bounded(api: Api) -> None:
    worker = await api.add("a", served_model_name="m")
    async with engine_of(worker, "--tick-ms", "100") as engine:
        await api.state(worker, "ready")
        endless = asyncio.create_task(api.complete("m", max_tokens=4000, ignore_eos=True))
        await eventually(engine.counters, lambda counters: counters.live == 1)
        await api.call("DELETE", f"/workers/{worker['id']}")
        assert (await api.state(worker, "draining"))["load"]["in_flight"] == 1
        await api.call("DELETE", f"/workers/{worker['id']}?timeout=0.1")
        status, answer = await asyncio.wait_for(endless, PATIENCE)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        await api.gone(worker)
        await engine.idle()


# --- requests whose engine is lost ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_byte_goes_to_another_worker(
    api: Api, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dying = await api.add("dying", served_model_name="m", priority=1)
    other = await api.add("other", served_model_name="m")
    async with engine_of(dying, "--die-after", "0"), engine_of(other) as survivor:
        await api.state(dying, "ready")
        await api.state(other, "ready")
        body = {"model": "m", "prompt": "hello there", "max_tokens": 4, "stream": stream}
        async with api.session.post(f"{api.server.url}/v1/completions", json=body) as response:
            assert response.status == 200
            answer = await response.read()
        if stream:
            assert events(answer)[-1] == "[DONE]"
            assert not any("error" in event for event in events(answer))
        else:
            assert json.loads(answer)["usage"]["completion_tokens"] == 4
        assert (await survivor.idle()).adds == 1
        await api.state(dying, "unhealthy")
        [told] = [record for record in caplog.records if "once more" in record.getMessage()]
        assert told.levelno == logging.WARNING
        assert other["url"] in told.getMessage()


async def test_it_is_tried_once_more_and_no_oftener(api: Api) -> None:
    """Three workers, of which two are lost: the third gets nothing."""
    first = await api.add("first", served_model_name="m", priority=2)
    second = await api.add("second", served_model_name="m", priority=1)
    third = await api.add("third", served_model_name="m")
    async with (
        engine_of(first, "--die-after", "0"),
        engine_of(second, "--die-after", "0"),
        engine_of(third) as survivor,
    ):
        for worker in (first, second, third):
            await api.state(worker, "ready")
        status, answer = await api.complete("m")
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        assert (await survivor.counters()).adds == 0


async def test_after_the_first_byte_it_is_not_tried_again(api: Api) -> None:
    first = await api.add("first", served_model_name="m", priority=1)
    second = await api.add("second", served_model_name="m")
    async with await ScriptedEngine.dial(first["zmq_handshake_address"]) as dying, engine_of(second) as survivor:
        for worker in (first, second):
            await api.state(worker, "ready")
        body = {"model": "m", "prompt": "hello there", "max_tokens": 40, "stream": True}
        asked = asyncio.create_task(api.session.post(f"{api.server.url}/v1/completions", json=body))
        request = await dying.request()
        await dying.send(Row(request.rid, [5]))
        async with await asked as response:
            begun = await response.content.readuntil(b"\n\n")
            dying.close()
            *_, last = events(begun + await response.read())
        assert last["error"]["code"] == "engine_unavailable"
        assert (await survivor.counters()).adds == 0


async def test_another_engine_of_the_same_worker_will_do(api: Api) -> None:
    worker = await api.add("a", served_model_name="m", engine_count=2)
    address = worker["zmq_handshake_address"]
    async with await ScriptedEngine.dial(address, 0) as dying, await ScriptedEngine.dial(address, 1) as other:
        await eventually(
            lambda: api.state(worker, "ready"),
            lambda worker: [engine["state"] for engine in worker["engines"]] == ["ready", "ready"],
        )
        answer = asyncio.create_task(api.complete("m"))
        first = await dying.request()
        dying.close()
        again = await other.request()
        assert again.input_ids == first.input_ids
        assert again.rid != first.rid
        await other.send(Row(again.rid, [5] * 4, "length"))
        assert (await asyncio.wait_for(answer, PATIENCE))[0] == 200


async def test_what_the_other_worker_cannot_take_keeps_its_first_error(api: Api) -> None:
    """A context that is too short there is no fault of the client's."""
    first = await api.add("first", served_model_name="m", priority=1)
    second = await api.add("second", served_model_name="m")
    async with engine_of(first, "--die-after", "0"), engine_of(second, "--max-model-len", "16") as small:
        for worker in (first, second):
            await api.state(worker, "ready")
        status, answer = await api.complete("m", prompt="word " * 50)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        assert (await small.counters()).adds == 0


# --- requests that not every worker takes ---


async def test_a_request_goes_to_a_worker_whose_context_it_fits(api: Api) -> None:
    """The others are preferred, and refuse it."""
    short = await api.add("short", served_model_name="m", priority=2)
    middling = await api.add("middling", served_model_name="m", priority=1)
    long = await api.add("long", served_model_name="m")
    async with (
        engine_of(short, "--max-model-len", "16"),
        engine_of(middling, "--max-model-len", "64"),
        engine_of(long, "--max-model-len", "512") as engine,
    ):
        for worker in (short, middling, long):
            await api.state(worker, "ready")
        said = "word " * 200
        chat = {"model": "m", "messages": [{"role": "user", "content": said}], "max_tokens": 4}
        taken: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"model": "m", "prompt": said, "max_tokens": 4}),
            ("/v1/completions", {"model": "m", "prompt": ["hello", [5] * 200], "max_tokens": 4}),
            ("/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 300, "min_tokens": 300}),
            ("/v1/chat/completions", chat),
        ]
        for path, body in taken:
            status, answer = await api.call("POST", path, body)
            assert status == 200, answer
        assert (await engine.idle()).adds == 5

        # What none takes is refused for what the longest does not take, whoever is asked first.
        refused: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"model": "m", "prompt": "word " * 600}),
            ("/v1/completions", {"model": "m", "prompt": [5] * 600}),
            ("/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 600}),
            ("/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": "word " * 600}]}),
        ]
        for path, body in refused:
            status, answer = await api.call("POST", path, body)
            assert (status, answer["error"]["code"]) == (400, "invalid_value")
            assert "512" in answer["error"]["message"], answer
        # And what is wrong with any worker stays as it is.
        status, answer = await api.complete("m", temperature=9)
        assert (status, answer["error"]["param"]) == (400, "temperature")
        assert (await engine.idle()).adds == 5

        # Where one would take it that is away for now, it is no fault of the request.
        await engine.kill()
        await api.state(long, "unhealthy")
        status, answer = await api.complete("m", prompt=said)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        status, answer = await api.complete("m", prompt="word " * 600)
        assert (status, answer["error"]["code"]) == (400, "invalid_value")


# --- the gateway's beginning and end ---


def settings(directory: Path, name: str, **options: Any) -> WorkerSettings:
    given: dict[str, Any] = {
        "model": str(MODEL_DIRECTORY),
        "runtime": "tokenspeed",
        "handshake_address": f"tcp://127.0.0.1:{free_port()}",
        **options,
    }
    return WorkerSettings(worker=f"ipc://{directory}/{name}", **given)


async def test_workers_of_the_command_line(directory: Path, copy: Path) -> None:
    workers = [
        settings(directory, "a", served_model_name=("m",)),
        settings(directory, "b", served_model_name=("m",)),
        settings(directory, "c", model=str(copy)),
        settings(directory, "d", model=None),
    ]
    server = GatewayServer(GatewaySettings(port=0), workers)
    await server.start()
    try:
        assert server.gateway.registry.names() == ["m", "copy"]
        assert server.handshakes == [worker.handshake_address for worker in workers]
        async with AsyncExitStack() as stack:
            for address in server.handshakes:
                await stack.enter_async_context(simulator(address, "--model", str(MODEL_DIRECTORY)))
            await asyncio.wait_for(server.wait_ready(), PATIENCE)
        assert server.gateway.registry.names() == ["m", "copy", "model"]
    finally:
        await server.stop()
    # What the next gateway has to know of engines that live on stays, and nothing else.
    assert [name for name in files(directory) if not name.endswith("-engines.json")] == []


async def test_a_worker_whose_engine_does_not_tell_its_model_is_not_waited_for(directory: Path) -> None:
    server = GatewayServer(GatewaySettings(port=0), [settings(directory, "a", model=None)])
    await server.start()
    try:
        async with simulator(server.handshakes[0]):
            with pytest.raises(StartError, match="nothing says which model it is"):
                await asyncio.wait_for(server.wait_ready(), PATIENCE)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"name": "a"}, "there is a worker at ipc://{directory}/a already"),
        ({"name": "b", "model": "{copy}", "served_model_name": ("m",)}, "the model 'm' is {model} already"),
        ({"name": "b", "model": "/nonexistent"}, "/nonexistent: not a directory"),
        ({"name": "b", "runtime": "nonsense"}, "unknown runtime 'nonsense'"),
    ],
)
async def test_workers_that_cannot_be_together_are_no_gateway(
    directory: Path, copy: Path, other: dict[str, Any], says: str
) -> None:
    options = {name: value.format(copy=copy) if isinstance(value, str) else value for name, value in other.items()}
    server = GatewayServer(
        GatewaySettings(port=0), [settings(directory, "a", served_model_name=("m",)), settings(directory, **options)]
    )
    with pytest.raises(StartError, match=re.escape(says.format(directory=directory, model=MODEL_DIRECTORY))):
        await server.start()
    assert files(directory) == []


async def test_a_gateway_ends_whatever_its_workers_do(directory: Path) -> None:
    server = GatewayServer(GatewaySettings(port=0, shutdown_timeout=0), [])
    await server.start()
    async with aiohttp.ClientSession() as session:
        api = Api(server, session, directory)
        await api.add("connecting")
        await api.add("unknown", model=None)
        ready = await api.add("ready")
        async with engine_of(ready, "--tick-ms", "100") as engine:
            await api.state(ready, "ready")
            endless = asyncio.create_task(api.complete(None, max_tokens=4000, ignore_eos=True))
            await eventually(engine.counters, lambda counters: counters.live == 1)
            await api.call("DELETE", f"/workers/{ready['id']}")
            await api.add("registering")
            await asyncio.wait_for(server.stop(), 5)
            assert (await endless)[0] == 503
    assert files(directory) == []
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("register", "remove", "load"))]
