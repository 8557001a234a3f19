"""A conversation becomes token ids: what each stage takes, and all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import pytest
import tokenizers

from bench.report import table
from bench.ticks import MODEL, TEXT
from smg_fast._codec import Tokenizer
from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.encoder import PromptEncoder, PromptThreads
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

# The models that smg-fast is developed with lie beside the repository, where there are any.
SHARED = MODEL.parents[2].parent / "shared" / "models"
MODELS = {"built-in": MODEL, **{path.name: path for path in sorted(SHARED.glob("*")) if path.is_dir()}}

CONVERSATIONS = {
    # What bench/end_to_end.py asks.
    "request": [Message(role="user", content="What is the capital of France? " * 8)],
    "turns": [
        message
        for turn in range(50)
        for message in (
            Message(role="user", content=f"Part {turn}, please, and then a summary of it in three sentences."),
            Message(role="assistant", content=TEXT),
        )
    ][:-1],
    "document": [Message(role="user", content="".join(f"{page}. {TEXT}\n\n" for page in range(50)))],
}
#: Chats that one round encodes.
CHATS = 20

each_conversation = pytest.mark.parametrize("conversation", CONVERSATIONS)
each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture
def enter(request: pytest.FixtureRequest, benchmark: BenchmarkFixture) -> Callable[[str, str, str, int], None]:
    def enter(model: str, conversation: str, stage: str, units: int) -> None:
        text = chat_template(model).render(CONVERSATIONS[conversation])
        row = f"{model}, {conversation} ({len(text):,} characters)"
        table(request.config, "a prompt", "us").add(row, stage, benchmark, units)

    return enter


@each_conversation
@each_model
def bench_render(
    benchmark: BenchmarkFixture, enter: Callable[[str, str, str, int], None], model: str, conversation: str
) -> None:
    messages = CONVERSATIONS[conversation]
    text = benchmark(chat_template(model).render, messages)
    assert text.count(str(messages[0].content).strip()) == 1
    enter(model, conversation, "render", 1)


@each_conversation
@each_model
def bench_encode_for_the_first_time(
    benchmark: BenchmarkFixture, enter: Callable[[str, str, str, int], None], model: str, conversation: str
) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS[model] / "tokenizer.json"))
    texts = new_texts(model, conversation)
    ids = benchmark.pedantic(tokenizer.encode, setup=lambda: ((next(texts),), {}), rounds=200)
    assert len(ids) > 20
    enter(model, conversation, "encode, new", 1)


@each_conversation
@each_model
def bench_encode_again(
    benchmark: BenchmarkFixture, enter: Callable[[str, str, str, int], None], model: str, conversation: str
) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS[model] / "tokenizer.json"))
    text = next(new_texts(model, conversation))
    ids = benchmark(tokenizer.encode, text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    enter(model, conversation, "again", 1)


@each_conversation
@each_model
def bench_tokenizers(
    benchmark: BenchmarkFixture, enter: Callable[[str, str, str, int], None], model: str, conversation: str
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(MODELS[model] / "tokenizer.json"))
    text = next(new_texts(model, conversation))
    encoding = benchmark(tokenizer.encode_batch_fast, [text], add_special_tokens=False)[0]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text
    enter(model, conversation, "tokenizers", 1)


@each_conversation
@each_model
def bench_messages_to_ids(
    benchmark: BenchmarkFixture, enter: Callable[[str, str, str, int], None], model: str, conversation: str
) -> None:
    """All of it, as the gateway does it, after the first time."""
    threads = PromptThreads.start()
    tokenizer = Tokenizer.from_file(str(MODELS[model] / "tokenizer.json"))
    encoder = PromptEncoder(tokenizer, chat_template(model), threads)

    async def encode() -> int:
        return sum([len(await encoder.encode_chat(CONVERSATIONS[conversation])) for _ in range(CHATS)])

    loop = asyncio.new_event_loop()
    assert benchmark(lambda: loop.run_until_complete(encode())) > 20 * CHATS
    loop.close()
    threads.stop()
    enter(model, conversation, "messages to ids, again", CHATS)


def chat_template(model: str) -> ChatTemplate:
    template = ChatTemplate.from_model(ModelDirectory.load(MODELS[model]))
    if template is None:
        pytest.skip(f"{model} has no chat template")
    return template


def new_texts(model: str, conversation: str) -> Iterator[str]:
    """Prompts of which no message has been there before."""
    template, number = chat_template(model), count()
    while True:
        messages = [
            msgspec.structs.replace(message, content=f"{next(number)} {message.content}")
            for message in CONVERSATIONS[conversation]
        ]
        yield template.render(messages)
