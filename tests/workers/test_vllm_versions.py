"""Every version of vLLM's wire that is known, from a request over HTTP to the simulator and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.support import PATIENCE, eventually, gateway, simulator

LAYOUTS = json.loads((Path(__file__).parents[1] / "data" / "vllm-layouts.json").read_text())
TEXT = "The quick brown fox"


async def complete(session: aiohttp.ClientSession, url: str, **parameters: Any) -> Any:
    async with session.post(f"{url}/v1/completions", json={"prompt": TEXT, **parameters}) as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize("version", LAYOUTS)
async def test_a_round_trip(version: str) -> None:
    async with (
        gateway("vllm", worker={"vllm_version": version}) as server,
        simulator(server.handshakes[0], "--runtime", "vllm", "--vllm-version", version, "--tick-ms", "1") as engine,
        aiohttp.ClientSession() as session,
    ):
        await asyncio.wait_for(server.wait_ready(), PATIENCE)
        plain = await complete(session, server.url, max_tokens=200, temperature=0, logit_bias={"5": 1.0})
        assert plain["choices"][0]["text"] == TEXT
        assert plain["choices"][0]["finish_reason"] == "stop"
        sampled = await complete(
            session, server.url, max_tokens=4, logprobs=2, n=2, seed=3, prompt_logprobs=1, priority=1, stop=["zzz"]
        )
        for choice in sampled["choices"]:
            assert TEXT.startswith(choice["text"])
            assert choice["finish_reason"] == "length"
            assert len(choice["logprobs"]["top_logprobs"]) == 4
            assert len(choice["prompt_logprobs"]) == sampled["usage"]["prompt_tokens"]
        assert (await engine.idle()).violations == 0


async def test_engines_in_lockstep_serve_as_a_group() -> None:
    options = ("--runtime", "vllm", "--data-parallel-size", "2", "--tick-ms", "1")
    async with (
        gateway("vllm", worker={"engine_count": 2}) as server,
        simulator(server.handshakes[0], *options, "--index", "0") as first,
        simulator(server.handshakes[0], *options, "--index", "1") as second,
        aiohttp.ClientSession() as session,
    ):
        client = server.gateway.registry.workers[0].client

        async def ready_engines() -> int:
            return len(client.ready_engines)

        await eventually(ready_engines, lambda count: count == 2)
        answers = await asyncio.gather(*(complete(session, server.url, max_tokens=100) for _ in range(40)))
        assert {answer["choices"][0]["text"] for answer in answers} == {TEXT}
        ranked = await complete(session, server.url, max_tokens=100, data_parallel_rank=1)
        assert ranked["choices"][0]["text"] == TEXT
        counters = [await engine.idle() for engine in (first, second)]
        assert sum(counter.adds for counter in counters) == 41
        assert counters[1].adds > 0
        assert sum(counter.violations for counter in counters) == 0
