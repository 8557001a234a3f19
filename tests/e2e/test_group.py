"""Engines that share a worker: data-parallel ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import GatewayProcess, eventually
from tests.e2e.engines import Capability, Engine, EngineProcess


@pytest.mark.needs(Capability.LOCKSTEP, Capability.COUNTERS)
def test_whoever_gets_a_request_after_a_wave_has_ended_the_whole_group_begins_the_next(
    engine: Engine, tmp_path: Path
) -> None:
    with (
        GatewayProcess(engine, tmp_path, "--engine-count", "2") as gateway,
        EngineProcess(engine, gateway.handshake, "--data-parallel-size", "2", "--index", "0") as first,
        EngineProcess(engine, gateway.handshake, "--data-parallel-size", "2", "--index", "1") as second,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):

        def answers(rank: int) -> bool:
            try:
                answer = client.completions.create(
                    model="model", prompt="hello there", max_tokens=4, extra_body={"data_parallel_rank": rank}
                )
            except openai.InternalServerError:  # it has not registered yet
                return False
            return bool(answer.choices[0].text)

        def waves() -> list[int]:
            return [process.counters()["waves"] for process in (first, second)]

        def more_waves(before: list[int]) -> bool:
            return all(count > earlier for count, earlier in zip(waves(), before, strict=True))

        for rank in (0, 1):
            eventually(partial(answers, rank), within=engine.patience)
        for rank in (0, 0, 1, 1):
            before = waves()
            assert answers(rank)
            eventually(partial(more_waves, before), within=5)
