"""Token ids of prompts: the right ones, and the event loop left free meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers

from smg_fast._codec import Tokenizer
from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.encoder import LONG_CHAT, LONG_TEXT, VERY_LONG_TEXT, PromptEncoder, PromptThreads
from smg_fast.prompts.errors import PromptError, TemplateError
from smg_fast.prompts.messages import ContentPart, FunctionCall, Message, ToolCall
from smg_fast.prompts.model_directory import ModelDirectory

from .conversations import CONVERSATIONS, conversations
from .templates import MODELS, NOW, PACKAGE_MODEL, ROOT, hugging_face, read_vectors, template_source

GOLDEN = ROOT.parent / "shared/golden/vllm-0.32.0-smollm2.json"


class CountingThreads(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(max_workers=2)
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


class Threads(PromptThreads, frozen=True):
    encoding: CountingThreads
    encoding_very_long: CountingThreads
    rendering: CountingThreads

    @property
    def submitted(self) -> tuple[int, int]:
        """To encode, and to render."""
        return self.encoding.submitted, self.rendering.submitted


@pytest.fixture
def threads() -> Iterator[Threads]:
    with CountingThreads() as encoding, CountingThreads() as very_long, CountingThreads() as rendering:
        yield Threads(encoding, very_long, rendering)


@cache
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(ModelDirectory.load(directory).tokenizer_file))


def encoder(directory: Path, threads: Threads) -> PromptEncoder:
    return PromptEncoder(tokenizer(directory), ChatTemplate.from_model(ModelDirectory.load(directory)), threads)


def chat(*contents: str) -> list[Message]:
    return [Message("user" if i % 2 == 0 else "assistant", content) for i, content in enumerate(contents)]


def text_of_cost(cost: int, encoder: PromptEncoder, line: str = "a word\n") -> str:
    """No shorter than it must be."""
    of_one = encoder.tokenizer.encoding_cost(line * 1_000) / 1_000
    text = line * math.ceil(cost / of_one + 1)
    assert cost <= encoder.tokenizer.encoding_cost(text) < 1.1 * cost
    return text


@pytest.mark.parametrize("template", MODELS)
async def test_chats_encode_as_in_transformers(template: str, threads: Threads) -> None:
    reference = hugging_face(template)
    special_tokens = read_vectors(template).special_tokens
    ours = PromptEncoder(
        tokenizer(MODELS[template]),
        ChatTemplate(template_source(template), special_tokens=special_tokens, now=lambda: NOW),
        threads,
    )
    for name in conversations(template):
        each = CONVERSATIONS[name]
        ids = await ours.encode_chat(
            msgspec.convert(each.messages, list[Message]),
            add_generation_prompt=each.add_generation_prompt,
            tools=each.tools,
            documents=each.documents,
            template_kwargs=each.template_kwargs,
        )
        assert ids.tolist() == reference.encode(each), name


async def test_prompts_are_as_long_as_vllm_counts_them(threads: Threads) -> None:
    """Recorded from vLLM's own server; content parts are among them."""
    if not GOLDEN.is_file():
        pytest.skip(f"{GOLDEN} is not there")
    ours = encoder(MODELS["smollm2"], threads)
    seen = set()
    for name, case in json.loads(GOLDEN.read_text())["cases"].items():
        request = case["request"]
        if case["answer"]["status"] != 200 or case["answer"]["content_type"] != "application/json":
            continue
        answer = json.loads(case["answer"]["body"])
        if case["path"] == "/v1/chat/completions" and not request.get("continue_final_message"):
            messages = msgspec.convert(request["messages"], list[Message])
            ids = await ours.encode_chat(messages, tools=request.get("tools"))
        elif case["path"] == "/v1/completions" and isinstance(request["prompt"], str):
            ids = await ours.encode_text(request["prompt"])
        else:
            continue
        assert len(ids) == answer["usage"]["prompt_tokens"], name
        seen.add(name)
    assert {"chat_multi_turn", "chat_content_parts", "chat_tools_none", "comp_basic"} <= seen


async def test_special_tokens_surround_a_text_but_no_chat_unless_told_to(tmp_path: Path, threads: Threads) -> None:
    words = {word: id for id, word in enumerate(("<s>", "</s>", "hello", "?"))}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(["<s>", "</s>"])
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    model.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("<s>{{ messages[0].content }}")
    ours = encoder(tmp_path, threads)
    assert (await ours.encode_text("hello")).tolist() == [0, 2, 1]
    assert (await ours.encode_text("hello", add_special_tokens=False)).tolist() == [2]
    assert (await ours.encode_chat(chat("hello"))).tolist() == [0, 2]
    assert (await ours.encode_chat(chat("hello"), add_special_tokens=True)).tolist() == [0, 0, 2, 1]


async def test_short_prompts_are_encoded_at_once(threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    text = "word " * (LONG_TEXT // 5 - 40)
    for ids in (await ours.encode_text(text), await ours.encode_chat(chat(text))):
        assert ours.tokenizer.decode(ids).count("word") == text.count("word")
    assert threads.submitted == (0, 0)


@pytest.mark.parametrize("contents", [["a long word " * 100_000], ["a long word"] * 15_000], ids=["text", "turns"])
async def test_the_loop_turns_while_a_long_prompt_is_encoded(contents: list[str], threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    encoding = asyncio.ensure_future(ours.encode_chat(chat(*contents)))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert ours.tokenizer.decode(await encoding).count("a long word") == "".join(contents).count("a long word")


async def test_a_long_prompt_has_the_same_ids_as_a_short_one(threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    text = text_of_cost(LONG_TEXT, ours, "a bird 🐦 sang\n")
    ids = await ours.encode_text(text)
    assert threads.submitted == (1, 0)
    assert ids == ours.tokenizer.encode(text, True)


async def test_a_long_prompt_that_was_there_before_is_encoded_at_once(threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    text = text_of_cost(2 * LONG_TEXT, ours, "a bird that was here before\n")
    first = await ours.encode_chat(chat(text, "Indeed.", "Another turn"))
    assert threads.submitted == (1, 0)
    second = await ours.encode_chat(chat(text, "Indeed.", "Another turn", "And", "one more"))
    assert threads.submitted == (1, 0)
    assert second.tolist()[: len(first)] == first.tolist()


async def test_a_long_text_passes_very_long_ones_by(threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    very_long = [asyncio.ensure_future(ours.encode_text(text_of_cost(VERY_LONG_TEXT, ours))) for _ in range(4)]
    await asyncio.sleep(0)
    await ours.encode_text(text_of_cost(LONG_TEXT, ours))
    assert not any(text.done() for text in very_long)
    assert (threads.encoding.submitted, threads.encoding_very_long.submitted) == (1, 4)
    for text in very_long:
        text.cancel()


def call(arguments: str | dict[str, Any]) -> list[Message]:
    return [Message("assistant", tool_calls=[ToolCall(FunctionCall("f", arguments))])]


@pytest.mark.parametrize(
    ("of_size", "size"),
    [
        (lambda n: (chat(*["x"] * n), None), LONG_CHAT),
        (lambda n: ([Message("user", [ContentPart("text", "x")] * n)], None), LONG_CHAT - 1),
        (lambda n: ([Message("assistant", tool_calls=[ToolCall(FunctionCall("f"))] * n)], None), LONG_CHAT - 1),
        (lambda n: (call({str(i): i for i in range(n)}), None), LONG_CHAT - 3),
        (lambda n: (call(json.dumps({str(i): i for i in range(n)})), None), LONG_CHAT - 1),
        (lambda n: (chat("x"), {"anything": [{}] * n}), LONG_CHAT - 3),
    ],
    ids=["messages", "parts", "calls", "arguments", "argument text", "variables"],
)
async def test_whatever_takes_long_to_render_is_rendered_in_a_thread(
    of_size: Callable[[int], tuple[list[Message], dict[str, Any] | None]], size: int, threads: Threads
) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    for number, submitted in ((size - 1, 0), (size, 1)):
        messages, variables = of_size(number)
        await ours.encode_chat(messages, template_kwargs=variables)
        assert threads.rendering.submitted == submitted, number


@pytest.mark.parametrize("character", ["a", "é", "🐦"])
async def test_a_text_that_cannot_fit_is_not_encoded(character: str, threads: Threads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    limit = 100 * ours.tokenizer.max_token_bytes
    count = limit // len(character.encode())
    assert len(await ours.encode_text(character * count, context=100)) > 0
    encoded = threads.encoding.submitted
    with pytest.raises(PromptError, match=rf"context of 100 tokens holds at most {limit}$") as error:
        await ours.encode_text(character * (count + 1), context=100)
    assert error.value.param == "prompt"
    with pytest.raises(PromptError) as error:
        await ours.encode_chat(chat(character * (count + 1)), context=100)
    assert error.value.param == "messages"
    assert threads.encoding.submitted == encoded


async def test_errors_come_out_of_the_threads(tmp_path: Path, threads: Threads) -> None:
    (tmp_path / "tokenizer.json").write_bytes((PACKAGE_MODEL / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('Too many words!') }}")
    ours = encoder(tmp_path, threads)
    for turns in (1, LONG_CHAT):
        with pytest.raises(TemplateError, match=r"^Too many words!$"):
            await ours.encode_chat(chat(*["x"] * turns))
    assert threads.submitted == (0, 1)


async def test_there_is_no_chat_without_a_template(threads: Threads) -> None:
    ours = PromptEncoder(tokenizer(PACKAGE_MODEL), None, threads)
    with pytest.raises(PromptError, match="no chat template"):
        await ours.encode_chat(chat("Hi"))
    assert len(await ours.encode_text("Hi")) > 0
