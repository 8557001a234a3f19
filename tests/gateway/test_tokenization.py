"""``/tokenize`` and ``/detokenize``: prompts as the model gets them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.limits import MAX_DETOKENIZED
from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.encoder import MAX_TEXT_SIZE
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory

from .requests import TOKENIZER, VOCABULARY
from .support import gateway

TEXT = "Grüße, 世界! 🎉"
MESSAGES = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "Hi "}]


async def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as response:
        return response.status, await response.json()


async def tokens(url: str, **body: Any) -> list[int]:
    status, answer = await post(url, "/tokenize", body)
    assert status == 200, answer
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 8192
    found: list[int] = answer["tokens"]
    return found


def chat(**how: Any) -> list[int]:
    """As the model's template has it."""
    template = ChatTemplate.from_model(ModelDirectory.load(MODEL_DIRECTORY))
    assert template is not None
    text = template.render(msgspec.convert(MESSAGES, list[Message]), **how)
    return TOKENIZER.encode(text).tolist()


async def test_a_text(url: str) -> None:
    assert await tokens(url, prompt=TEXT) == TOKENIZER.encode(TEXT, True).tolist()
    assert await tokens(url, prompt=TEXT, add_special_tokens=False) == TOKENIZER.encode(TEXT).tolist()
    assert await tokens(url, prompt="") == []
    assert await tokens(url, prompt=TEXT, model="simulator") == await tokens(url, prompt=TEXT)


async def test_a_chat(url: str) -> None:
    assert await tokens(url, messages=MESSAGES) == chat()
    assert await tokens(url, messages=MESSAGES, add_generation_prompt=False) == chat(add_generation_prompt=False)
    open_ended = {"add_generation_prompt": False, "continue_final_message": True}
    assert await tokens(url, messages=MESSAGES, **open_ended) == chat(**open_ended)
    assert TOKENIZER.decode(chat(**open_ended)).endswith("Hi ")
    assert await tokens(url, messages=MESSAGES, chat_template_kwargs={"anything": 1}) == chat()


async def test_a_text_beyond_the_context(url: str) -> None:
    assert len(await tokens(url, prompt="word " * 20_000)) > 8192


async def test_strings_of_tokens(url: str) -> None:
    status, answer = await post(url, "/tokenize", {"prompt": TEXT, "return_token_strs": True})
    assert status == 200
    assert answer["token_strs"] == [TOKENIZER.id_to_token(id) for id in answer["tokens"]]
    assert (await post(url, "/tokenize", {"prompt": TEXT}))[1]["token_strs"] is None


async def test_and_back(url: str) -> None:
    for ids in ([], TOKENIZER.encode(TEXT).tolist(), chat()):
        assert await post(url, "/detokenize", {"tokens": ids}) == (200, {"prompt": TOKENIZER.decode(ids, False)})
    assert "<|im_start|>" in (await post(url, "/detokenize", {"tokens": chat()}))[1]["prompt"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCABULARY]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["1"]}, "tokens[0]"),
    ],
)
async def test_what_is_refused(url: str, path: str, body: dict[str, Any], param: str) -> None:
    status, answer = await post(url, path, body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_long_ones_hold_nobody_up() -> None:
    """What can be asked for takes half a second in all; meanwhile others are answered, and see it in flight."""
    async with gateway() as server, aiohttp.ClientSession() as session:

        async def meanwhile(path: str, body: dict[str, Any]) -> tuple[int, int, Any]:
            """Requests seen in flight at most, polls answered, and the answer."""
            asked = asyncio.create_task(post(server.url, path, body))
            seen: list[int] = []
            while not asked.done():
                async with session.get(f"{server.url}/health") as response:
                    seen.append((await response.json())["requests"])
            status, answer = await asked
            assert status == 200, answer
            return max(seen), len(seen), answer

        text = "Grüße, 世界! 🎉 " * 20_000
        in_flight, polls, answer = await meanwhile("/tokenize", {"prompt": text, "return_token_strs": True})
        assert (in_flight, len(answer["token_strs"])) == (1, answer["count"])
        assert polls > 5
        in_flight, polls, answer = await meanwhile("/detokenize", {"tokens": answer["tokens"]})
        assert (in_flight, answer["prompt"]) == (1, text)
        assert polls > 5


async def test_longer_ones_are_refused() -> None:
    async with gateway() as server:
        status, answer = await post(server.url, "/tokenize", {"prompt": "é" * (MAX_TEXT_SIZE // 2 + 1)})
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert f"{MAX_TEXT_SIZE + 2} bytes; the limit is {MAX_TEXT_SIZE}" in answer["error"]["message"]
        status, answer = await post(server.url, "/detokenize", {"tokens": [1] * (MAX_DETOKENIZED + 1)})
        assert (status, answer["error"]["param"]) == (400, "tokens")
        assert answer["error"]["message"] == f"tokens can have at most {MAX_DETOKENIZED} ids, got {MAX_DETOKENIZED + 1}"


async def test_no_engine_is_needed() -> None:
    async with gateway() as server:
        assert await tokens(server.url, prompt=TEXT) == TOKENIZER.encode(TEXT, True).tolist()
        assert (await post(server.url, "/detokenize", {"tokens": [1]}))[0] == 200
        status, answer = await post(server.url, "/tokenize", {"prompt": "x", "model": "nope"})
        assert (status, answer["error"]["param"]) == (404, "model")


async def test_the_version_is_the_gateways(url: str) -> None:
    from smg_fast._codec import __version__

    async with aiohttp.ClientSession() as session, session.get(f"{url}/version") as response:
        assert json.loads(await response.read()) == {"version": __version__}
