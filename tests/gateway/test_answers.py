"""Answers, as the official client reads them; the engine echoes the last message, or the prompt."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from smg_fast._codec import Tokenizer
from smg_fast.embedded import MODEL_DIRECTORY

from .support import events, served, texts

SAYING = "Grüße, 世界! 🎉 How many tokens is this, one wonders?"
TOKENIZER = Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **parameters: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "simulator", "messages": [{"role": "user", "content": SAYING}], **parameters}
    )


def complete(client: openai.OpenAI, **parameters: Any) -> Any:
    return client.completions.create(**{"model": "simulator", "prompt": SAYING, "max_tokens": 200, **parameters})


def test_a_chat(client: openai.OpenAI) -> None:
    answer = chat(client)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]+", answer.id)
    assert (answer.object, answer.model) == ("chat.completion", "simulator")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", SAYING)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = list(chat(client, stream=True))
    assert {event.id for event in stream} == {stream[0].id}
    assert {event.object for event in stream} == {"chat.completion.chunk"}
    assert stream[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in stream) == SAYING
    assert len(stream) > 5
    assert [event.choices[0].finish_reason for event in stream[-2:]] == [None, "stop"]
    assert all(event.usage is None for event in stream)


def test_usage_of_a_stream(client: openai.OpenAI) -> None:
    whole = chat(client)
    *stream, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(event.usage is None for event in stream)


def test_choices_and_their_usage(client: openai.OpenAI) -> None:
    one, three = chat(client), chat(client, n=3, seed=7)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert {choice.message.content for choice in three.choices} == {SAYING}
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


def test_streamed_choices(client: openai.OpenAI) -> None:
    contents = ["", "", ""]
    for event in chat(client, n=3, stream=True):
        for choice in event.choices:
            contents[choice.index] += choice.delta.content or ""
    assert contents == [SAYING] * 3


def test_length_and_stop_strings(client: openai.OpenAI) -> None:
    short = chat(client, max_completion_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)
    # The third token ends inside a character, of which nothing is shown.
    assert short.choices[0].message.content == TOKENIZER.decode(TOKENIZER.encode(SAYING).tolist()[:3]).rstrip("\ufffd")
    for parameters, content in (
        ({"stop": "tokens is"}, SAYING.partition("tokens is")[0]),
        ({"stop": ["zzz", "wonders"], "extra_body": {"include_stop_str_in_output": True}}, SAYING[:-1]),
    ):
        stopped = chat(client, **parameters).choices[0]
        assert (stopped.message.content, stopped.finish_reason) == (content, "stop")
        assert stopped.stop_reason in parameters["stop"]


def test_stop_token_ids_and_ignored_ends(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode(SAYING).tolist()
    stopped = chat(client, extra_body={"stop_token_ids": [ids[4]]}).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == TOKENIZER.decode(ids[: ids.index(ids[4])])
    on = chat(client, max_tokens=len(ids) + 10, extra_body={"ignore_eos": True})
    assert on.usage.completion_tokens == len(ids) + 10
    assert on.choices[0].message.content.startswith(SAYING)


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    logprobs = chat(client, logprobs=True).choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in logprobs).decode().startswith(SAYING)
    assert all(entry.logprob < 0 for entry in logprobs)
    streamed = [
        entry
        for event in chat(client, logprobs=True, stream=True)
        for choice in event.choices
        for entry in (choice.logprobs.content if choice.logprobs else [])
    ]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in logprobs]


def test_a_completion(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert re.fullmatch(r"cmpl-[0-9a-f]+", answer.id)
    assert answer.object == "text_completion"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (SAYING, "stop")
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode(SAYING))
    assert "".join(event.choices[0].text for event in complete(client, stream=True)) == SAYING


def test_a_completion_has_16_tokens_unless_told_otherwise(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="simulator", prompt=SAYING)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_prompts_of_every_kind(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode("token ids").tolist()
    assert complete(client, prompt=ids).choices[0].text == "token ids"
    assert complete(client, prompt=[ids]).choices[0].text == "token ids"
    answer = complete(client, prompt=["first", "the second"], n=2)
    assert [choice.text for choice in answer.choices] == ["first", "first", "the second", "the second"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode("first")) + len(TOKENIZER.encode("the second"))


@pytest.mark.parametrize("logprobs", [0, 1])
def test_logprobs_of_a_completion(client: openai.OpenAI, logprobs: int) -> None:
    found = complete(client, logprobs=logprobs, max_tokens=5).choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == 5
    assert all(logprob < 0 for logprob in found.token_logprobs)
    assert found.text_offset[0] == 0


def test_an_echo_of_a_completion(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode("<|im_start|>token ids").tolist()
    for prompt in ("token ids", ids):
        said = prompt if isinstance(prompt, str) else TOKENIZER.decode(ids, False)
        answer = complete(client, prompt=prompt, max_tokens=3).choices[0].text
        echoed = complete(client, prompt=prompt, max_tokens=3, echo=True)
        assert echoed.choices[0].text == said + answer
        assert echoed.usage == complete(client, prompt=prompt, max_tokens=3).usage
        stream = complete(client, prompt=prompt, max_tokens=3, echo=True, stream=True)
        assert "".join(event.choices[0].text for event in stream) == said + answer
        only = complete(client, prompt=prompt, max_tokens=0, echo=True)
        assert (only.choices[0].text, only.choices[0].finish_reason) == (said, "length")
    both = complete(client, prompt=["one", "two"], n=2, max_tokens=0, echo=True)
    assert [choice.text for choice in both.choices] == ["one", "one", "two", "two"]


def test_an_echo_of_a_chat(client: openai.OpenAI) -> None:
    begun = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": ["One", "two "]}]
    extra = {"echo": True, "add_generation_prompt": False, "continue_final_message": True}
    answer = chat(client, messages=begun, max_tokens=4, extra_body={**extra, "echo": False})
    echoed = chat(client, messages=begun, max_tokens=4, extra_body=extra)
    assert echoed.choices[0].message.content == "One\ntwo " + answer.choices[0].message.content
    stream = list(chat(client, messages=begun, max_tokens=4, extra_body=extra, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in stream) == echoed.choices[0].message.content
    assert chat(client, extra_body={"echo": True}).choices[0].message.content == SAYING


def test_usage_of_every_event(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *stream, last = chat(client, stream=True, stream_options=options)
    counts = [event.usage.completion_tokens for event in stream]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == last.usage.completion_tokens
    # Without include_usage there is none, as in vLLM.
    assert all(
        event.usage is None for event in chat(client, stream=True, stream_options={**options, "include_usage": False})
    )


def test_greedy_choices_are_one_too_many(client: openai.OpenAI) -> None:
    assert len(chat(client, n=2, temperature=0.1).choices) == 2
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, n=2, temperature=0)
    assert caught.value.param == "n"


@pytest.mark.parametrize(("stop", "aborts"), [(" and", 0), ("nd more", 1)])
async def test_an_engine_stops_by_itself_at_a_stop_string_that_is_one_token(
    runtime: str, stop: str, aborts: int
) -> None:
    says = "hello world and more of it"
    assert (len(TOKENIZER.encode(stop)) == 1) == (aborts == 0)
    body = {"prompt": says, "max_tokens": 100, "stop": stop, "ignore_eos": True}
    async with served(runtime=runtime) as (server, engine), aiohttp.ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", json=body) as response:
            (choice,) = (await response.json())["choices"]
        text = says.partition(stop)[0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", stop)
        assert (await engine.idle()).aborted == aborts


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("simulator", "model", "smg-fast")
    assert model.model_dump()["max_model_len"] == 8192
    assert client.models.retrieve("simulator") == model


async def test_the_model_may_be_left_out_where_there_is_one(url: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json={"prompt": "hi"}) as response,
    ):
        assert (await response.json())["model"] == "simulator"


async def test_liveness_and_readiness(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/health", "/ready"):
            async with session.get(url + path) as response:
                assert response.status == 200


async def test_a_stream_is_events_and_the_connection_is_kept(url: str) -> None:
    body = {"messages": [{"role": "user", "content": SAYING}], "stream": True}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        connections = set()
        for _ in range(3):
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
                assert response.connection is not None
                assert response.connection.transport is not None
                connections.add(response.connection.transport.get_extra_info("sockname"))
                stream = events(await response.read())
            assert stream[-1] == "[DONE]"
            assert texts(stream) == SAYING
        assert len(connections) == 1


@pytest.mark.parametrize("keep_alive", [False, True])
async def test_a_client_of_http_1_0_gets_plain_events(url: str, keep_alive: bool) -> None:
    """Proxies speak it by default: no chunked framing, and the end of the connection is the end."""
    body = json.dumps({"messages": [{"role": "user", "content": SAYING}], "stream": True}).encode()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write((headers + ("Connection: keep-alive\r\n" if keep_alive else "") + "\r\n").encode() + body)
    head, _, events_read = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    assert b"200" in head.splitlines()[0]
    assert b"chunked" not in head.lower()
    assert texts(events(events_read)) == SAYING
    assert events(events_read)[-1] == "[DONE]"
