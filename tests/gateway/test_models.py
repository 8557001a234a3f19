"""What a model's files say about how to sample."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.limits import SamplingDefaults
from smg_fast.gateway.models import ServedModel
from smg_fast.prompts.encoder import PromptThreads
from smg_fast.prompts.errors import ModelDirectoryError

from .requests import TOKENSPEED, VLLM
from .support import served

Load = Callable[..., ServedModel]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads the simulator's model, with a ``generation_config.json`` that says more."""
    threads = PromptThreads.start()

    def load(config: dict[str, Any], **options: Any) -> ServedModel:
        return ServedModel.load(with_config(tmp_path / "model", config), "m", threads, **options)

    yield load
    threads.stop()


def with_config(path: Path, config: dict[str, Any]) -> Path:
    shutil.copytree(MODEL_DIRECTORY, path, dirs_exist_ok=True)
    file = path / "generation_config.json"
    file.write_text(json.dumps({**json.loads((MODEL_DIRECTORY / file.name).read_text()), **config}))
    return path


CONFIG = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 5}


def test_defaults_come_from_the_model(load: Load) -> None:
    expected = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, max_tokens=5)
    assert load(CONFIG).defaults == load(CONFIG, generation_config="auto").defaults == expected
    assert load({"temperature": None, "do_sample": True}).defaults == SamplingDefaults()


def test_unless_they_shall_not(load: Load) -> None:
    model = load({**CONFIG, "temperature": 7}, generation_config="none")
    assert model.defaults == SamplingDefaults()
    assert model.eos_token_ids == load(CONFIG).eos_token_ids == (4095,)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 2], [-0.1, 2.1, float("nan"), float("inf")]),
        ("top_p", [0.01, 1], [0, 1.1]),
        ("top_k", [-1, 0, 10**6], [-2]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 10], [0, -1]),
        ("max_new_tokens", [1, 10**9], [0, -1]),
    ],
)
def test_each_side_of_a_range(load: Load, name: str, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        load({name: value})
    for value in outside:
        with pytest.raises(ModelDirectoryError, match=rf"generation_config.json: {name} must be .*got {value}"):
            load({name: value})
        load({name: value}, generation_config="none")


def test_what_the_engine_cannot_honour_is_left_out_with_a_warning(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    model = load({"top_k": 200, "top_p": 0.5})
    assert model.defaults_with(VLLM).top_k == 200
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        assert model.defaults_with(TOKENSPEED) == SamplingDefaults(top_p=0.5)
    (record,) = caplog.records
    assert record.getMessage() == (
        "m: the engine's top_k is at most 127, the default of 200 in generation_config.json is left out"
    )
    assert load({"top_k": 127}).defaults_with(TOKENSPEED).top_k == 127


@pytest.mark.parametrize("option", ["auto", "none"])
async def test_a_request_gets_them(tmp_path: Path, option: str) -> None:
    model = with_config(tmp_path / "model", {"max_new_tokens": 5})
    body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    async with (
        served("--max-model-len", "64", model=model, worker={"generation_config": option}) as (server, _),
        aiohttp.ClientSession() as session,
    ):

        async def usage(**parameters: int) -> dict[str, int]:
            async with session.post(f"{server.url}/v1/chat/completions", json={**body, **parameters}) as response:
                told: dict[str, int] = (await response.json())["usage"]
                return told

        by_default = await usage()
        room = 64 - by_default["prompt_tokens"]
        assert by_default["completion_tokens"] == (5 if option == "auto" else room)
        assert (await usage(max_tokens=12))["completion_tokens"] == 12
