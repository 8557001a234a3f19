"""How workers come and go, and which one a request goes to."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import AddressError, BindError, EngineUnavailable, worker_addresses
from smg_fast.workers import ConflictError, Registry, UnknownModelError, UnknownWorkerError, WorkerSpec
from tests.transport.engine import Row, ScriptedEngine
from tests.transport.response import ask, eventually
from tests.workers.support import MODEL, Loader, Serve, Worker, files, free_port, settled, spec


def events(worker: Worker, step: str) -> list[str]:
    return [event.state for event in worker.history if event.step == step]


# --- which one a request goes to ---


async def test_a_request_goes_to_the_workers_of_its_model(
    registry: Registry[Tokenizer], serve: Serve, copy: Path
) -> None:
    small = await serve("a", "small", "tiny")
    large = await serve("b", "large", model=copy)
    assert registry.names() == ["small", "tiny", "large"]
    assert registry.by_model("small") is registry.by_model("tiny") is small
    assert registry.by_model("large") is large
    with pytest.raises(UnknownModelError, match="no model is called 'huge'; there is small, tiny, large"):
        registry.by_model("huge")


async def test_the_ready_worker_under_the_least_pressure(registry: Registry[Tokenizer], serve: Serve) -> None:
    first = await serve("a", "m")
    second = await serve("b", "m")
    await serve("c", "m", engine=False)
    assert registry.names() == ["m"]
    await ask(first.client, first.model, "1")
    assert registry.by_model("m") is second
    await ask(second.client, second.model, "2")
    response = await ask(second.client, second.model, "3")
    assert registry.by_model("m") is first
    second.client.cancel(response.key)
    await ask(first.client, first.model, "4")
    assert registry.by_model("m") is second


async def test_equals_have_their_turns(registry: Registry[Tokenizer], serve: Serve) -> None:
    workers = [await serve(name, "m") for name in "abc"]
    assert [registry.next("m") for _ in range(7)] == [*workers, *workers, workers[0]]
    assert [registry.next("m", lambda worker: worker is not workers[1]) for _ in range(2)] == [workers[2], workers[0]]
    with pytest.raises(EngineUnavailable):
        registry.next("m", lambda _: False)


async def test_a_higher_priority_goes_before_the_load(
    registry: Registry[Tokenizer], serve: Serve, engines: list[ScriptedEngine]
) -> None:
    await serve("a", "m", priority=-1)
    first = await serve("b", "m", priority=5)
    second = await serve("c", "m", priority=5)
    for rid in "123":
        await ask(first.client, first.model, rid)
        await ask(second.client, second.model, rid)
    assert {registry.next("m") for _ in range(4)} == {first, second}
    engines[1].close()
    await settled(first, "unhealthy")
    assert {registry.next("m") for _ in range(4)} == {second}
    engines[2].close()
    await settled(second, "unhealthy")
    spare = registry.by_model("m")
    assert spare.priority == -1
    first.priority = -2
    assert registry.by_model("m") is spare


async def test_a_lost_request_goes_to_another_worker_of_the_model(
    registry: Registry[Tokenizer], serve: Serve, copy: Path, engines: list[ScriptedEngine]
) -> None:
    first = await serve("a", "m")
    await serve("b", "other", model=copy)
    await serve("c", "canary")  # the same model, by a name that the client has not asked for
    assert registry.others("m", first) == [first]
    spare = await serve("d", "m", priority=-1)
    preferred = await serve("e", "m")
    assert registry.others("m", first) == [preferred, spare, first]
    for engine in (engines[0], *engines[3:]):
        engine.close()
    for worker in (first, spare, preferred):
        await settled(worker, "unhealthy")
    assert registry.others("m", first) == []


async def test_a_model_without_a_ready_engine_is_unavailable(registry: Registry[Tokenizer], serve: Serve) -> None:
    worker = await serve("a", "m", engine=False)
    with pytest.raises(EngineUnavailable, match=r"^engine 0 has not said hello$"):
        registry.by_model("m")
    await serve("b", "m", engine=False)
    with pytest.raises(EngineUnavailable, match=f"worker {worker.spec.url}: engine 0 has not said hello; worker "):
        registry.by_model("m")


async def test_a_model_is_called_by_the_name_of_its_directory_unless_named(directory: Path) -> None:
    assert Worker(spec(directory, "a")).names == ("model",)
    assert Worker(spec(directory, "a", "x", "y")).names == ("x", "y")


# --- what can be beside what ---


async def test_a_url_is_registered_once(registry: Registry[Tokenizer], serve: Serve, directory: Path) -> None:
    worker = await serve("a", "m", engine=False)
    for other in ("a", "./a", "/a"):
        with pytest.raises(ConflictError, match=f"there is a worker at {worker.spec.url} already") as conflict:
            registry.add(spec(directory, other, "m"))
        assert conflict.value.over == "url"
    assert registry.workers == (worker,)


def colliding(directory: Path) -> tuple[str, str]:
    """Names of two workers in a directory whose handshake ports are the same."""
    seen: dict[str, str] = {}
    for number in range(20_000):
        address = worker_addresses(f"ipc://{directory}/{number}").handshake
        if address in seen:
            return seen[address], str(number)
        seen[address] = str(number)
    raise AssertionError("10,000 ports cannot be enough")


async def test_two_paths_that_lead_to_one_port_are_named(
    registry: Registry[Tokenizer], serve: Serve, directory: Path
) -> None:
    one, other = colliding(directory)
    worker = await serve(one, "m", engine=False, handshake_address=None)
    with pytest.raises(ConflictError) as conflict:
        registry.add(spec(directory, other, "m", handshake_address=None))
    assert conflict.value.over == "handshake_address"
    message = str(conflict.value)
    address = worker.client.addresses.handshake
    for part in (worker.spec.url, f"ipc://{directory}/{other}", address, "follows from a URL's path", "of its own"):
        assert part in message
    await serve(other, "m", engine=False)  # with an address of its own


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "*"])
async def test_one_handshake_address_is_of_one_worker(
    registry: Registry[Tokenizer], serve: Serve, directory: Path, host: str
) -> None:
    worker = await serve("a", "m", engine=False)
    port = worker.client.addresses.handshake.rpartition(":")[2]
    with pytest.raises(ConflictError, match=f"as those of {worker.spec.url} do") as conflict:
        registry.add(spec(directory, "b", "m", handshake_address=f"tcp://{host}:{port}"))
    assert conflict.value.over == "handshake_address"
    assert "follows from" not in str(conflict.value)


async def test_two_models_cannot_have_one_name(
    registry: Registry[Tokenizer], serve: Serve, directory: Path, copy: Path
) -> None:
    await serve("a", "x", "y", engine=False)
    for different in ({"model": copy}, {"generation_config": "none"}, {"chat_template": MODEL / "chat_template.jinja"}):
        with pytest.raises(ConflictError, match=f"'y' is {MODEL} already") as conflict:
            registry.add(spec(directory, "b", "z", "y", **different))
        assert conflict.value.over == "served_model_names"
    await serve("c", "z", engine=False, model=copy)


async def test_replicas_share_a_model_that_is_loaded_once(
    registry: Registry[Tokenizer], serve: Serve, loader: Loader, tmp_path: Path
) -> None:
    """By whatever path."""
    (tmp_path / "link").symlink_to(MODEL)
    link = tmp_path / "link"
    template = "chat_template.jinja"
    first = await serve("a", "x", engine=False, chat_template=MODEL / template)
    second = await serve("b", "x", "y", engine=False, model=link, chat_template=link / template)
    assert first.model is second.model
    assert len(loader.loaded) == 1
    registry.remove(first, 1)
    await settled(first, "removed")
    third = await serve("c", "x", engine=False, chat_template=MODEL / template)
    assert third.model is second.model
    assert len(loader.loaded) == 1


async def test_a_model_that_nobody_serves_any_more_is_forgotten(
    registry: Registry[Tokenizer], serve: Serve, loader: Loader
) -> None:
    for times in (1, 2):
        worker = await serve("a", "m", engine=False)
        assert len(loader.loaded) == times
        registry.remove(worker, 1)
        await settled(worker, "removed")
        with pytest.raises(UnknownModelError):
            registry.by_model("m")


async def test_workers_that_come_at_once_load_their_model_once(
    registry: Registry[Tokenizer], directory: Path, loader: Loader
) -> None:
    workers = [registry.add(spec(directory, str(number), "m")) for number in range(5)]
    registry.remove(workers[0], 0)  # whoever gives up does so for itself
    for worker in workers[1:]:
        await settled(worker, "connecting")
    assert len({id(worker.model) for worker in workers[1:]}) == 1
    assert len(loader.loaded) == 1


async def test_others_go_on_while_a_model_is_loaded(
    registry: Registry[Tokenizer], serve: Serve, directory: Path, copy: Path, loader: Loader
) -> None:
    ready = await serve("a", "m")
    loader.goes_on.clear()
    loading = registry.add(spec(directory, "b", "other", model=copy))
    engine = await ScriptedEngine.dial(loading.client.addresses.handshake)  # the sockets are there already
    await eventually(lambda: loading.client.ready)
    assert loading.state == "registering"
    with pytest.raises(EngineUnavailable, match="it is being registered"):
        registry.by_model("other")
    assert registry.by_model("m") is ready
    assert registry.names() == ["m"]
    loader.goes_on.set()
    await settled(loading, "ready")
    assert registry.by_model("other") is loading
    engine.close()


# --- how one comes ---


async def test_bad_specs_are_refused_before_anything_is_bound(registry: Registry[Tokenizer], directory: Path) -> None:
    bad: list[tuple[type[ValueError], str, dict[str, Any]]] = [
        (ValueError, "unknown runtime 'nope'; known: vllm, tokenspeed", {"runtime": "nope"}),
        (ValueError, r"0\.11\.0 is older than", {"runtime": "vllm", "vllm_version": "0.11.0"}),
        (ValueError, "--max-logprobs is an option of the runtime vllm", {"max_logprobs": 20}),
        (AddressError, "expected tcp://HOST:PORT", {"handshake_address": "127.0.0.1"}),
        (ValueError, "at least one engine, got 0", {"engine_count": 0}),
    ]
    for error, message, options in bad:
        with pytest.raises(error, match=message):
            registry.add(spec(directory, "a", **options))
    with pytest.raises(AddressError):
        registry.add(WorkerSpec(url="tcp://127.0.0.1:1", runtime="tokenspeed", model=MODEL))
    assert registry.workers == ()
    assert not files(directory)


async def test_a_runtime_that_is_not_given_is_vllm_and_that_is_told(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await serve("a", "m", engine=False, runtime=None)
    assert worker.family.name == "vllm"
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert worker.spec.url in warning
    assert "vllm" in warning
    assert events(worker, "resolve_runtime") == ["running", "done"]


@pytest.mark.parametrize("runtime", ["vllm", "tokenspeed"])
async def test_a_runtime_that_is_given_is_kept(serve: Serve, runtime: str, caplog: pytest.LogCaptureFixture) -> None:
    worker = await serve("a", "m", engine=False, runtime=runtime)
    assert worker.family.name == runtime
    assert events(worker, "resolve_runtime") == ["skipped"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_the_family_has_to_know_reaches_it(directory: Path) -> None:
    options = {"vllm_version": "0.20.2", "structured_outputs_backend": "xgrammar", "max_logprobs": 5}
    engines = Worker(spec(directory, "a", **{**options, "runtime": "vllm"})).family
    assert engines == family("vllm", vllm_version="0.20.2", structured_outputs_backend="xgrammar", max_logprobs=5)


async def test_the_history_of_a_registration(
    registry: Registry[Tokenizer], serve: Serve, engines: list[ScriptedEngine]
) -> None:
    worker = await serve("a", "m", engine=False)
    told = {(event.step, event.state) for event in worker.history}
    assert told == {
        ("detect_connection", "running"),
        ("detect_connection", "done"),
        ("resolve_runtime", "skipped"),
        ("discover_model", "skipped"),
        *((step, state) for step in ("connect", "load_tokenizer", "register") for state in ("running", "done")),
        ("handshake", "running"),
    }
    engines.append(await ScriptedEngine.dial(worker.client.addresses.handshake))
    await settled(worker, "ready")
    assert [(event.step, event.state) for event in worker.history[-3:]] == [
        ("handshake", "done"),
        ("activate", "running"),
        ("activate", "done"),
    ]
    times = [event.at for event in worker.history]
    assert times == sorted(times)
    assert times[-1] <= worker.since + 1


async def test_since_when_a_worker_is_as_it_is(serve: Serve, engines: list[ScriptedEngine]) -> None:
    worker = await serve("a", "m")
    ready = worker.since
    assert worker.created <= ready
    engines[0].close()
    await settled(worker, "unhealthy")
    lost = worker.since
    assert ready <= lost
    engines.append(await ScriptedEngine.dial(worker.client.addresses.handshake))
    await settled(worker, "ready")
    assert lost <= worker.since


async def test_a_handshake_port_in_use_is_named_and_nothing_stays_bound(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        worker = Worker(spec(directory, "a", handshake_address=address))
        with pytest.raises(BindError, match=f"cannot bind {address}: Address already in use"):
            await worker.start()
    assert not files(directory)
    await worker.start()
    await worker.close()


@pytest.mark.parametrize("derived", [False, True])
async def test_a_port_in_use_fails_the_registration(
    registry: Registry[Tokenizer], directory: Path, derived: bool
) -> None:
    own = worker_addresses(f"ipc://{directory}/a").handshake if derived else f"tcp://127.0.0.1:{free_port()}"
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(own.rpartition(":")[2])))
        taken.listen()
        worker = registry.add(spec(directory, "a", "m", handshake_address=None if derived else own))
        await settled(worker, "failed")
    assert f"cannot bind {own}: Address already in use" in worker.reason
    assert ("the port follows from the worker's URL" in worker.reason) == derived
    assert events(worker, "connect") == ["running", "failed"]
    assert not files(directory)
    with pytest.raises(UnknownModelError):
        registry.by_model("m")


async def test_a_model_that_cannot_be_loaded_fails_the_registration_and_unbinds_it(
    registry: Registry[Tokenizer], directory: Path, copy: Path
) -> None:
    (copy / "tokenizer.json").write_text("{")
    worker = registry.add(spec(directory, "a", "m", model=copy))
    await settled(worker, "failed")
    assert "EOF while parsing" in worker.reason
    assert events(worker, "load_tokenizer") == ["running", "failed"]
    assert events(worker, "handshake")[-1:] in (["cancelled"], [])
    assert not files(directory)
    assert registry.names() == []

    # Mended, the next one takes its place.
    shutil.copy(MODEL / "tokenizer.json", copy)
    again = registry.add(spec(directory, "a", "m", model=copy))
    assert registry.workers == (again,)
    await settled(again, "connecting")
    with pytest.raises(UnknownWorkerError):
        registry.get(worker.id)


# --- how they end ---


async def test_close_removes_every_socket(registry: Registry[Tokenizer], serve: Serve, directory: Path) -> None:
    await serve("a", "m")
    await serve("b", "m", engine=False)
    registry.add(spec(directory, "c", "m"))
    assert {"a-in.sock", "a-out.sock", "b-in.sock", "b-out.sock"} <= set(files(directory))
    before = len(asyncio.all_tasks())
    await registry.close()
    assert files(directory) == ["a-engines.json"]  # what the next gateway has to know of an engine that lives on
    assert registry.workers == ()
    assert len(asyncio.all_tasks()) <= before
    with pytest.raises(EngineUnavailable, match="shutting down"):
        registry.by_model("m")
    with pytest.raises(EngineUnavailable, match="shutting down"):
        registry.add(spec(directory, "d", "m"))


async def test_a_removed_worker_ends_what_it_has_in_flight_first(
    registry: Registry[Tokenizer], serve: Serve, engines: list[ScriptedEngine], directory: Path
) -> None:
    worker = await serve("a", "m")
    response = await ask(worker.client, worker.model, "1")
    add = await engines[0].request()
    registry.remove(worker, 60)
    assert worker.state == "draining"
    with pytest.raises(EngineUnavailable):
        registry.by_model("m")
    with pytest.raises(ConflictError, match=r"already \(draining\)"):
        registry.add(spec(directory, "a", "m"))
    await eventually(lambda: not worker.client.accepting)
    with pytest.raises(EngineUnavailable):
        await ask(worker.client, worker.model, "2")
    assert list(registry.workers) == [worker]
    await engines[0].send(Row(add.rid, [1, 2], "length"))
    [output] = await response.outputs()
    assert output.token_ids.tolist() == [1, 2]
    await settled(worker, "removed")
    assert list(registry.workers) == []
    assert not files(directory)


async def test_what_takes_too_long_is_ended_and_its_engine_told(
    registry: Registry[Tokenizer], serve: Serve, engines: list[ScriptedEngine]
) -> None:
    worker = await serve("a", "m")
    response = await ask(worker.client, worker.model, "1")
    await engines[0].request()
    registry.remove(worker, 0.05)
    with pytest.raises(EngineUnavailable, match="closes this worker"):
        await response.outputs()
    assert await engines[0].abort() == ["1"]
    await settled(worker, "removed")


async def test_asked_again_the_new_time_counts(
    registry: Registry[Tokenizer], serve: Serve, engines: list[ScriptedEngine]
) -> None:
    worker = await serve("a", "m")
    await ask(worker.client, worker.model, "1")
    registry.remove(worker, 1000)
    await asyncio.sleep(0)
    registry.remove(worker, 0.01)
    await settled(worker, "removed")


@pytest.mark.parametrize("turns", range(8))
async def test_asked_again_as_it_ends(registry: Registry[Tokenizer], serve: Serve, turns: int) -> None:
    worker = await serve("a", "m")
    before = asyncio.all_tasks()
    registry.remove(worker, 60)
    for _ in range(turns):
        await asyncio.sleep(0)
    if worker.state != "removed":
        registry.remove(worker, 60)
    ends = await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
    assert [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)] == []
    assert worker.state == "removed"


@pytest.mark.parametrize("turns", range(8))
async def test_a_registration_can_be_removed_at_any_time(
    registry: Registry[Tokenizer], directory: Path, turns: int
) -> None:
    before = asyncio.all_tasks()
    worker = registry.add(spec(directory, "a", "m"))
    for _ in range(turns):
        await asyncio.sleep(0)
    registry.remove(worker, 60)
    await settled(worker, "removed")
    assert not files(directory)
    await eventually(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()})
    again = registry.add(spec(directory, "a", "m"))
    await settled(again, "connecting")


@pytest.mark.parametrize("turns", range(12))
async def test_a_worker_that_becomes_ready_as_it_is_removed_takes_no_request(
    registry: Registry[Tokenizer], serve: Serve, turns: int
) -> None:
    worker = await serve("a", "m", engine=False)
    async with ScriptedEngine(worker.client.addresses.handshake) as engine:
        await engine.hello()
        await engine.register()
        await worker.client.wait_ready()  # as the registration does: what follows happens in between its steps
        for _ in range(turns):
            await asyncio.sleep(0)
        registry.remove(worker, 60)
        while worker.state != "removed":
            assert worker.state == "draining"
            with pytest.raises(EngineUnavailable):
                registry.by_model("m")
            await asyncio.sleep(0)


async def test_a_failed_worker_is_removed_at_once(registry: Registry[Tokenizer], directory: Path, copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    worker = registry.add(spec(directory, "a", "m", model=copy))
    await settled(worker, "failed")
    registry.remove(worker, 60)
    assert worker.state == "removed"
    assert registry.workers == ()
