"""A conversation becomes token ids: rendering and encoding, apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.report import table
from bench.ticks import MODEL, TEXT
from smg_fast._codec import Tokenizer
from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

# The models that smg-fast is developed with lie beside the repository, where there are any.
SHARED = MODEL.parents[2].parent / "shared" / "models"
MODELS = {"built-in": MODEL, **{path.name: path for path in sorted(SHARED.glob("*")) if path.is_dir()}}

CONVERSATIONS = {
    "short": [
        Message(role="system", content="You are a helpful assistant."),
        Message(role="user", content="Where does the ferry to the island leave, and when is the last one back?"),
    ],
    "long": [
        message
        for turn in range(50)
        for message in (
            Message(role="user", content=f"Part {turn}, please, and then a summary of it in three sentences."),
            Message(role="assistant", content=TEXT),
        )
    ]
    + [Message(role="user", content="Now tell me how it ends.")],
}


def chat_template(model: str) -> ChatTemplate:
    template = ChatTemplate.from_model(ModelDirectory.load(MODELS[model]))
    if template is None:
        pytest.skip(f"{model} has no chat template")
    return template


@pytest.mark.parametrize("size", CONVERSATIONS)
@pytest.mark.parametrize("model", MODELS)
def bench_render(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, model: str, size: str) -> None:
    template = chat_template(model)
    benchmark.group = f"render a {size} conversation"
    text = benchmark(template.render, CONVERSATIONS[size])
    assert text.count(TEXT.strip()) == (50 if size == "long" else 0)
    table(request.config, "a prompt", "us").add(label(model, size, text), "render", benchmark, 1)


@pytest.mark.parametrize("size", CONVERSATIONS)
@pytest.mark.parametrize("model", MODELS)
def bench_encode(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, model: str, size: str) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS[model] / "tokenizer.json"))
    text = chat_template(model).render(CONVERSATIONS[size])
    benchmark.group = f"encode a {size} conversation"
    ids = benchmark(tokenizer.encode, text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    table(request.config, "a prompt", "us").add(label(model, size, text), "encode", benchmark, 1)


def label(model: str, size: str, text: str) -> str:
    return f"{model}, {size} ({len(text):,} characters)"
