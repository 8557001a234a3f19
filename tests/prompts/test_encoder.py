"""Token ids of prompts: the right ones, and the event loop left free meanwhile."""

from __future__ import annotations

import asyncio
import json
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
from smg_fast.prompts.encoder import LONG_CHAT, LONG_TEXT, PromptEncoder
from smg_fast.prompts.errors import PromptError, TemplateError
from smg_fast.prompts.messages import Message
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


@pytest.fixture
def threads() -> Iterator[CountingThreads]:
    with CountingThreads() as threads:
        yield threads


@cache
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(ModelDirectory.load(directory).tokenizer_file))


def encoder(directory: Path, threads: CountingThreads) -> PromptEncoder:
    return PromptEncoder(tokenizer(directory), ChatTemplate.from_model(ModelDirectory.load(directory)), threads)


def chat(*contents: str) -> list[Message]:
    return [Message("user" if i % 2 == 0 else "assistant", content) for i, content in enumerate(contents)]


@pytest.mark.parametrize("template", MODELS)
async def test_chats_encode_as_in_transformers(template: str, threads: CountingThreads) -> None:
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


async def test_prompts_are_as_long_as_vllm_counts_them(threads: CountingThreads) -> None:
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


async def test_special_tokens_surround_a_text_but_not_a_chat(tmp_path: Path, threads: CountingThreads) -> None:
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


async def test_short_prompts_are_encoded_at_once(threads: CountingThreads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    text = "word " * (LONG_TEXT // 5 - 40)
    for ids in (await ours.encode_text(text), await ours.encode_chat(chat(text))):
        assert ours.tokenizer.decode(ids).count("word") == text.count("word")
    assert threads.submitted == 0


@pytest.mark.parametrize("contents", [["a long word " * 100_000], ["a long word"] * 3_000], ids=["text", "turns"])
async def test_the_loop_turns_while_a_long_prompt_is_encoded(contents: list[str], threads: CountingThreads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    encoding = asyncio.ensure_future(ours.encode_chat(chat(*contents)))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert ours.tokenizer.decode(await encoding).count("a long word") == "".join(contents).count("a long word")


async def test_a_long_prompt_has_the_same_ids_as_a_short_one(threads: CountingThreads) -> None:
    ours = encoder(PACKAGE_MODEL, threads)
    text = "".join(f"{i}: a bird 🐦 sang\n" for i in range(LONG_TEXT))
    ids = await ours.encode_text(text)
    assert threads.submitted == 1
    assert ids == ours.tokenizer.encode(text, True)


async def test_errors_come_out_of_the_threads(tmp_path: Path, threads: CountingThreads) -> None:
    (tmp_path / "tokenizer.json").write_bytes((PACKAGE_MODEL / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('Too many words!') }}")
    ours = encoder(tmp_path, threads)
    for turns in (1, LONG_CHAT):
        with pytest.raises(TemplateError, match=r"^Too many words!$"):
            await ours.encode_chat(chat(*["x"] * turns))
    assert threads.submitted == 1


async def test_there_is_no_chat_without_a_template(threads: CountingThreads) -> None:
    ours = PromptEncoder(tokenizer(PACKAGE_MODEL), None, threads)
    with pytest.raises(PromptError, match="no chat template"):
        await ours.encode_chat(chat("Hi"))
    assert len(await ours.encode_text("Hi")) > 0
