"""Which worker a request goes to."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast.engines import GenerationRequest, SamplingParams, family
from smg_fast.transport import AddressError, BindError, EngineUnavailable
from smg_fast.workers import Registry, UnknownModelError, Worker, WorkerSpec
from tests.transport.engine import ScriptedEngine
from tests.transport.response import Response

MODEL = Path(__file__).parents[2] / "smg_fast" / "embedded" / "model"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        yield Path(directory)


def spec(directory: Path, name: str, *names: str, **options: Any) -> WorkerSpec:
    handshake = f"tcp://127.0.0.1:{free_port()}"
    url = f"ipc://{directory}/{name}"
    return WorkerSpec(
        url=url,
        model=MODEL,
        served_model_names=names,
        **{"runtime": "tokenspeed", "handshake_address": handshake, **options},
    )


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    yield registry
    await registry.close()


Serve = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def serve(registry: Registry, directory: Path) -> AsyncIterator[Serve]:
    """A registered worker, with an engine unless ``engine`` is false."""
    engines = []

    async def serve(name: str, *names: str, engine: bool = True) -> Worker:
        worker = Worker(spec(directory, name, *names))
        await worker.start()
        registry.add(worker)
        if engine:
            engines.append(await ScriptedEngine.dial(worker.client.addresses.handshake))
            await worker.client.wait_ready(5)
        return worker

    yield serve
    for engine in engines:
        engine.close()


async def ask(worker: Worker, rid: str) -> int:
    return await worker.client.generate(
        Response(),
        format=ResponseFormat.outputs(),
        options=TextOptions(),
        tokenizer=Tokenizer.from_file(str(MODEL / "tokenizer.json")),
        prompts=[Prompt(TokenIds([1]))],
        requests=[GenerationRequest(rid=rid, prompt_ids=TokenIds([1]), sampling=SamplingParams(max_tokens=9))],
    )


async def test_a_request_goes_to_the_workers_of_its_model(registry: Registry, serve: Serve) -> None:
    small = await serve("a", "small", "tiny")
    large = await serve("b", "large")
    assert registry.models() == ["small", "tiny", "large"]
    assert registry.by_model("small") is registry.by_model("tiny") is small
    assert registry.by_model("large") is large
    with pytest.raises(UnknownModelError, match="no model is called 'huge'; there is small, tiny, large"):
        registry.by_model("huge")


async def test_the_ready_worker_with_the_least_in_flight(registry: Registry, serve: Serve) -> None:
    first = await serve("a", "m")
    second = await serve("b", "m")
    await serve("c", "m", engine=False)
    assert registry.models() == ["m"]
    await ask(first, "1")
    assert registry.by_model("m") is second
    await ask(second, "2")
    key = await ask(second, "3")
    assert registry.by_model("m") is first
    second.client.cancel(key)
    await ask(first, "4")
    assert registry.by_model("m") is second


async def test_a_model_without_a_ready_engine_is_unavailable(registry: Registry, serve: Serve) -> None:
    await serve("a", "m", engine=False)
    with pytest.raises(EngineUnavailable, match="engine 0 has not said hello"):
        registry.by_model("m")


async def test_a_model_is_called_by_the_name_of_its_directory_unless_named(directory: Path) -> None:
    assert spec(directory, "a").names == ("model",)
    assert spec(directory, "a", "x", "y").names == ("x", "y")


async def test_a_url_is_registered_once(registry: Registry, serve: Serve) -> None:
    worker = await serve("a", "m", engine=False)
    with pytest.raises(ValueError, match=f"there is a worker at {worker.spec.url} already"):
        registry.add(Worker(worker.spec))


async def test_bad_specs_are_refused_before_anything_is_bound(directory: Path) -> None:
    with pytest.raises(ValueError, match="unknown runtime 'nope'; known: vllm, tokenspeed"):
        Worker(WorkerSpec(url=f"ipc://{directory}/a", runtime="nope", model=MODEL))
    with pytest.raises(ValueError, match=r"0\.11\.0 is older than"):
        Worker(WorkerSpec(url=f"ipc://{directory}/a", runtime="vllm", model=MODEL, vllm_version="0.11.0"))
    with pytest.raises(ValueError, match="--max-logprobs is an option of the runtime vllm"):
        Worker(spec(directory, "a", max_logprobs=20))
    with pytest.raises(AddressError):
        Worker(WorkerSpec(url="tcp://127.0.0.1:1", runtime="tokenspeed", model=MODEL))
    with pytest.raises(ValueError, match="at least one engine, got 0"):
        Worker(spec(directory, "a", engine_count=0))
    assert not files(directory)


async def test_a_runtime_that_is_not_given_is_vllm_and_that_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"ipc://{directory}/a"
    assert Worker(WorkerSpec(url=url, model=MODEL)).family.name == "vllm"
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert url in warning
    assert "vllm" in warning
    for runtime in ("vllm", "tokenspeed"):
        assert Worker(WorkerSpec(url=url, model=MODEL, runtime=runtime)).family.name == runtime
    assert len(caplog.records) == 1


async def test_what_the_family_has_to_know_reaches_it(directory: Path) -> None:
    options = {"vllm_version": "0.20.2", "structured_outputs_backend": "xgrammar", "max_logprobs": 5}
    engines = Worker(spec(directory, "a", **{**options, "runtime": "vllm"})).family
    assert engines == family("vllm", vllm_version="0.20.2", structured_outputs_backend="xgrammar", max_logprobs=5)


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


async def test_close_removes_every_socket(registry: Registry, serve: Serve, directory: Path) -> None:
    await serve("a", "m")
    await serve("b", "m", engine=False)
    assert files(directory) == ["a-in.sock", "a-out.sock", "b-in.sock", "b-out.sock"]
    await registry.close()
    assert not files(directory)
    assert registry.workers == ()
