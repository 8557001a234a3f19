"""Many clients, clients that leave, engines that die."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import GatewayProcess, eventually
from tests.e2e.engines import Capability, Engine, EngineProcess

CHATS = 200


def said(number: int) -> str:
    """A text of its own for each chat, in which anything lost, doubled or moved would show."""
    return " ".join(f"{number}:{word}" for word in range(40)) + " 🎉 fin"


def message(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


async def chat(client: openai.AsyncOpenAI, number: int) -> None:
    pieces: list[str] = []
    finishes = 0
    stream = await client.chat.completions.create(model="model", messages=message(said(number)), stream=True)
    async for event in stream:
        pieces.append(event.choices[0].delta.content or "")
        finishes += event.choices[0].finish_reason is not None
    assert "".join(pieces) == said(number)
    assert finishes == 1


async def chat_and_vanish(client: openai.AsyncOpenAI, number: int) -> None:
    stream = await client.chat.completions.create(model="model", messages=message(said(number)), stream=True)
    events = 0
    async with stream:
        async for _ in stream:
            events += 1
            if events == 5:
                return
    raise AssertionError("the stream ended before the client could leave")


@pytest.mark.needs(Capability.ECHO, Capability.COUNTERS)
async def test_two_hundred_chats_while_a_tenth_vanish(gateway: GatewayProcess, engine_process: EngineProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        await asyncio.gather(
            *((chat_and_vanish if number % 10 == 3 else chat)(client, number) for number in range(CHATS))
        )
    eventually(lambda: gateway.in_flight() == 0, within=5)
    eventually(lambda: engine_process.counters()["live"] == 0, within=5)


@pytest.mark.needs(Capability.COUNTERS)
def test_a_client_that_leaves_frees_its_engine(client: openai.OpenAI, engine_process: EngineProcess) -> None:
    before = engine_process.counters()["aborts"]
    with client.chat.completions.create(
        model="model", messages=message("go on"), max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    eventually(lambda: engine_process.counters()["live"] == 0, within=5)
    assert engine_process.counters()["aborts"] == before + 1


async def test_more_chats_than_an_engine_has_room_for_all_end(
    gateway: GatewayProcess, engine_process: EngineProcess
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model="model", messages=message(f"Number {number}?"), max_tokens=16)
                for number in range(16)
            )
        )
    assert all(answer.choices[0].message.content for answer in answers)
    assert all(answer.choices[0].finish_reason in ("stop", "length") for answer in answers)
    assert gateway.in_flight() == 0


async def test_sixty_four_streams_at_once(gateway: GatewayProcess, engine_process: EngineProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        async def streamed(number: int) -> None:
            stream = await client.chat.completions.create(
                model="model",
                messages=message(f"Count on from {number}."),
                max_tokens=12,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            *events, last = [event async for event in stream]
            assert "".join(event.choices[0].delta.content or "" for event in events)
            assert [finish for event in events if (finish := event.choices[0].finish_reason)] in (["stop"], ["length"])
            assert last.usage is not None
            assert 0 < last.usage.completion_tokens <= 12

        await asyncio.gather(*map(streamed, range(64)))
    eventually(lambda: gateway.in_flight() == 0, within=5)


@pytest.mark.needs(Capability.FEW_SLOTS)
async def test_clients_that_leave_make_room(
    engine: Engine, gateway: GatewayProcess, engine_process: EngineProcess
) -> None:
    """What they asked for would take the engine much longer than the one who stays has to wait."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        async def ask_and_leave() -> None:
            async with await client.chat.completions.create(
                model="model", messages=message("go on"), max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
            ) as stream:
                async for event in stream:
                    if event.choices[0].delta.content:
                        all_run.release()
                        break
                await leave.wait()

        all_run, leave = asyncio.Semaphore(0), asyncio.Event()
        clients = [asyncio.create_task(ask_and_leave()) for _ in range(engine.slots)]
        for _ in clients:
            await all_run.acquire()
        leave.set()
        await asyncio.gather(*clients)
        start = time.monotonic()
        answer = await client.chat.completions.create(model="model", messages=message("hello"), max_tokens=2)
        assert answer.choices[0].message.content
        assert time.monotonic() - start < 5
    eventually(lambda: gateway.in_flight() == 0, within=5)


def test_a_killed_engine_ends_every_request_and_its_successor_serves(engine: Engine, tmp_path: Path) -> None:
    with GatewayProcess(engine, tmp_path) as gateway:
        endpoint = f"{gateway.url}/v1"
        with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0, timeout=30) as client:
            with pytest.raises(openai.InternalServerError) as refused:
                client.chat.completions.create(model="model", messages=message("nobody is here yet"))
            assert refused.value.status_code == 503
            assert int(refused.value.response.headers["Retry-After"]) > 0

            with EngineProcess(engine, gateway.handshake) as process:
                eventually(gateway.is_ready, within=engine.patience)
                asyncio.run(killed_under_load(endpoint, process))
            eventually(lambda: not gateway.is_ready(), within=5)
            assert gateway.in_flight() == 0

            with EngineProcess(engine, gateway.handshake):
                eventually(gateway.is_ready, within=engine.patience)
                answer = client.chat.completions.create(model="model", messages=message("welcome back"), max_tokens=4)
                assert answer.choices[0].message.content


async def killed_under_load(endpoint: str, process: EngineProcess) -> None:
    """Eight streams and eight whole answers; the engine is killed when every stream has begun."""
    async with openai.AsyncOpenAI(base_url=endpoint, api_key="none", max_retries=0, timeout=30) as client:
        begun = asyncio.Semaphore(0)

        async def streamed() -> None:
            stream = await client.chat.completions.create(
                model="model", messages=message("go on"), max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
            )
            async for event in stream:
                if event.choices[0].delta.content:
                    begun.release()

        async def whole() -> None:
            await client.chat.completions.create(
                model="model", messages=message("go on"), max_tokens=1000, extra_body={"ignore_eos": True}
            )

        tasks = [asyncio.create_task(make()) for make in (streamed, whole) for _ in range(8)]
        for _ in range(64):
            await begun.acquire()
        killed = time.monotonic()
        process.kill()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - killed < 1
    assert all(isinstance(result, openai.APIError) for result in results), results


@pytest.mark.needs(Capability.FAULTS)
@pytest.mark.parametrize("fault", ["--malformed-after", "--ragged-after", "--dead-frame-after", "--die-after"])
def test_a_fault_ends_in_an_error_never_in_a_wrong_answer(engine: Engine, tmp_path: Path, fault: str) -> None:
    with (
        GatewayProcess(engine, tmp_path) as gateway,
        EngineProcess(engine, gateway.handshake, fault, "5"),
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):
        eventually(gateway.is_ready, within=engine.patience)
        stream = client.chat.completions.create(model="model", messages=message(said(1)), stream=True)
        with pytest.raises(openai.APIError):
            list(stream)
        eventually(lambda: gateway.in_flight() == 0, within=5)


@pytest.mark.needs(Capability.FAULTS)
def test_what_an_engine_fails_is_never_an_empty_answer(engine: Engine, tmp_path: Path) -> None:
    with (
        GatewayProcess(engine, tmp_path) as gateway,
        EngineProcess(engine, gateway.handshake, "--fail-after", "3"),
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):
        eventually(gateway.is_ready, within=engine.patience)
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="model", messages=message(said(1)))
        assert failed.value.status_code == 500
        pieces: list[str] = []

        def streamed() -> None:
            for event in client.chat.completions.create(model="model", messages=message(said(1)), stream=True):
                pieces.append(event.choices[0].delta.content or "")  # noqa: PERF401 - they are wanted however it ends

        with pytest.raises(openai.APIError, match="engine"):
            streamed()
        text = "".join(pieces)
        assert text
        assert said(1).startswith(text)
        assert gateway.in_flight() == 0
