"""A worker whose engines several gateway processes share: here, clients of one process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, EngineUnavailable, Share, WorkerAddresses
from smg_fast.transport.socket_directory import clear_left_workers
from smg_fast.transport.survivors import roster_path

from .engine import Row, ScriptedEngine, VLLMWire
from .response import ask


@contextlib.asynccontextmanager
async def processes(
    runtime: str, addresses: WorkerAddresses, *clients: tuple[int, ...]
) -> AsyncIterator[list[EngineClient]]:
    shares = [Share(process, clients) for process in (0, 1)]
    each = [EngineClient(family(runtime), addresses, engine_count=len(clients), share=share) for share in shares]
    for client in each:
        await client.start()
    try:
        yield each
    finally:
        for client in each:
            await client.close()


async def test_each_process_has_its_own_engines(addresses: WorkerAddresses, tokenizer: Tokenizer) -> None:
    async with processes("tokenspeed", addresses, (0,), (1,)) as clients:
        engines = [await ScriptedEngine.dial(addresses.handshake, index) for index in (0, 1)]
        try:
            for index, (client, engine) in enumerate(zip(clients, engines, strict=True)):
                await client.wait_ready(5)
                states = [status.state for status in client.engine_statuses]
                assert states == [["ready", "elsewhere"], ["elsewhere", "ready"]][index]
                assert client.shared_out
                response = await ask(client, tokenizer, f"{index}", max_tokens=2)
                assert (await engine.request()).rid == f"{index}"
                await engine.send(Row(f"{index}", [1, 2], "length"))
                assert (await response.outputs())[0].token_ids.tolist() == [1, 2]
                with pytest.raises(EngineUnavailable, match=f"engine {1 - index} serves another gateway process"):
                    await ask(client, tokenizer, "a", rank=1 - index)
        finally:
            for engine in engines:
                engine.close()


async def test_a_group_in_lockstep_is_refused(addresses: WorkerAddresses) -> None:
    async with processes("vllm", addresses, (0, 1), (0, 1)) as (first, _):
        engine = await ScriptedEngine.dial(addresses.handshake, wire=VLLMWire(ranks=2))
        try:
            with pytest.raises(EngineUnavailable, match="it takes --gateway-processes 1"):
                await first.wait_ready(1)
            assert first.state == "unhealthy"
        finally:
            engine.close()


def test_what_is_left_of_a_process_is_cleared_away(addresses: WorkerAddresses) -> None:
    directory = addresses.input.parent
    worker = directory / f"vllm-{1 << 22}"  # no process has this id
    for name in ("in.1.sock", "http.0.sock"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{worker}-{name}")
    for name in ("engines.1.json", "engines.new"):
        Path(f"{worker}-{name}").touch()
    assert clear_left_workers(directory) == [worker]
    assert not list(directory.iterdir())


def test_each_process_writes_down_engines_of_its_own(addresses: WorkerAddresses) -> None:
    names = [roster_path(addresses.of_process(process)).name for process in (0, 1)]
    assert names == ["e-engines.json", "e-engines.1.json"]
