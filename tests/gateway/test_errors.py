"""Whatever is wrong with a request, the answer has OpenAI's shape and a right status."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from .support import PATIENCE, eventually, gateway, served

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def answer(
    url: str, method: str, path: str, body: bytes | None = None, content_type: str | None = "application/json"
) -> tuple[int, Any]:
    headers = {} if content_type is None else {"Content-Type": content_type}
    skip = ["Content-Type"] if content_type is None else []
    async with (
        aiohttp.ClientSession(skip_auto_headers=skip) as session,
        session.request(method, url + path, data=body, headers=headers) as response,
    ):
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def error(url: str, *request: Any, **options: Any) -> tuple[int, str | None, str | None]:
    """Status, parameter and code of an error, whose shape is looked at here."""
    status, body = await answer(url, *request, **options)
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return status, body["error"]["param"], body["error"]["code"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, None, "invalid_json")),
        (b"{not json", (400, None, "invalid_json")),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', (400, None, "invalid_json")),
        (b'{"tools": ' + b"[" * 100_000, (400, None, "invalid_json")),
        (b'{"x": ' + b"[" * 100_000, (400, None, "invalid_json")),
        (b"[]", (400, None, None)),
        (b"{}", (400, "messages", "invalid_value")),
        (b'{"messages": "hello"}', (400, "messages", "invalid_value")),
        (b'{"messages": []}', (400, "messages", "invalid_value")),
        (b'{"messages": [{"content": "x"}]}', (400, "messages[0].role", "invalid_value")),
        (b'{"messages": [{"role": "user", "content": 5}]}', (400, "messages[0].content", "invalid_value")),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}',
            (400, "messages[0].content[0]", "invalid_value"),
        ),
    ],
)
async def test_bad_bodies(url: str, body: bytes, expected: tuple[int, str | None, str | None]) -> None:
    assert await error(url, "POST", CHAT, body) == expected


@pytest.mark.parametrize(
    ("path", "parameters", "param"),
    [
        (CHAT, {"max_tokens": "abc"}, "max_tokens"),
        (CHAT, {"max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"stop": ["a", 5]}, "stop[1]"),
        (CHAT, {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        (CHAT, {"temperature": 3}, "temperature"),
        (CHAT, {"max_tokens": 10**6}, "max_tokens"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (CHAT, {"chat_template_kwargs": {"x": 1, "tools": [{}]}}, "chat_template_kwargs.tools"),
        ("/tokenize", {"chat_template_kwargs": {"tools": [{}]}, "messages": MESSAGES}, "chat_template_kwargs.tools"),
        (CHAT, {"messages": [*MESSAGES, {"role": "user"}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages[0].audio"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}, "messages"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1], [1] * 8192]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["a", "word " * 20_000]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["a", "word" * 220_000]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [99999999]}, "prompt"),
        (COMPLETIONS, {"prompt": [1.5]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": [1] * 8192}, "prompt"),
        (COMPLETIONS, {"max_tokens": 8193}, "max_tokens"),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (CHAT, {"documents": [{"text": "x"}]}, "documents"),
        (CHAT, {"regex": "("}, "regex"),
        (CHAT, {"logit_bias": {"5": "x"}}, "logit_bias"),
        (COMPLETIONS, {"stop_token_ids": [-1]}, "stop_token_ids"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"data_parallel_rank": 1}, "data_parallel_rank"),
    ],
)
async def test_bad_values_name_their_parameter(url: str, path: str, parameters: dict[str, Any], param: str) -> None:
    base: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": MESSAGES}
    body = json.dumps({**base, **parameters}).encode()
    assert await error(url, "POST", path, body) == (400, param, "invalid_value")


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udfff", rb"\ud800a", rb"\ud83cxxxxxxxxx", rb"\uD800\u0041"])
async def test_half_a_character(url: str, text: bytes) -> None:
    body = b'{"prompt": "%s"}' % text
    assert await error(url, "POST", COMPLETIONS, body) == (400, None, "invalid_json")
    _, told = await answer(url, "POST", COMPLETIONS, body)
    assert "half of a surrogate pair" in told["error"]["message"]


async def test_the_rank_may_be_a_header(url: str) -> None:
    """As vLLM's clients send it; this worker has one engine."""

    async def status(rank: str, **parameters: Any) -> tuple[int, str | None]:
        async with (
            aiohttp.ClientSession(headers={"X-data-parallel-rank": rank}) as session,
            session.post(url + COMPLETIONS, json={"prompt": "hi", "max_tokens": 1, **parameters}) as response,
        ):
            return response.status, (await response.json()).get("error", {}).get("param")

    assert await status("0") == (200, None)
    assert await status("1") == (400, "data_parallel_rank")
    assert await status("1", data_parallel_rank=0) == (200, None)
    for nonsense in ("", "-1", "one", "9" * 5000):
        assert await status(nonsense) == (400, "X-data-parallel-rank")


async def test_a_prompt_is_required(url: str) -> None:
    assert await error(url, "POST", COMPLETIONS, b"{}") == (400, "prompt", "invalid_value")


async def test_an_unknown_model_is_not_found(url: str) -> None:
    body = json.dumps({"model": "nope", "messages": MESSAGES}).encode()
    assert await error(url, "POST", CHAT, body) == (404, "model", "model_not_found")
    assert await error(url, "GET", "/v1/models/nope") == (404, "model", "model_not_found")


async def test_unknown_paths_and_methods(url: str) -> None:
    assert await error(url, "GET", "/nope") == (404, None, "unknown_path")
    assert await error(url, "POST", "/v1/nope", b"{}") == (404, None, "unknown_path")
    assert await error(url, "GET", CHAT) == (405, None, "method_not_allowed")
    assert await error(url, "POST", "/health", b"") == (405, None, "method_not_allowed")
    async with aiohttp.ClientSession() as session, session.get(url + CHAT) as response:
        assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/v1/messages", "the Messages API is not supported"),
        ("/v1/messages/count_tokens", "the Messages API is not supported"),
        ("/v1/responses", "the Responses API is not supported"),
        ("/v1/responses/resp_1", "the Responses API is not supported"),
        ("/v1/embeddings", "the Embeddings API is not supported"),
    ],
)
async def test_apis_that_are_not_here(url: str, path: str, what: str) -> None:
    assert await error(url, "POST", path, b"{}") == (404, None, "unsupported_endpoint")
    _, body = await answer(url, "POST", path, b"{}")
    assert what in body["error"]["message"]


async def exchange(url: str, *parts: bytes) -> bytes:
    """What comes back for bytes on a connection of their own, until it ends."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
    received = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return received


async def test_expectations(url: str) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: %s\r\nContent-Length: %d\r\n\r\n"
    met = await exchange(url, head % (CHAT.encode(), b"100-continue", len(body)), body)
    assert met.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    other = await exchange(url, head % (CHAT.encode(), b"tea", len(body)), body)
    assert other.startswith(b"HTTP/1.1 417 ")
    assert json.loads(other.partition(b"\r\n\r\n")[2])["error"]["code"] == "unknown_expectation"


def post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n%s" % (headers, body)


def refusal(received: bytes) -> tuple[bytes, Any]:
    """The status line of what came back, and the error, whose shape is looked at here."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    error = json.loads(body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "malformed_request")
    return head.partition(b"\r\n")[0], error["message"]


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ""),
        (b"nonsense\r\n", "nonsense"),
        (b"G@T / HTTP/1.1\r\n", "G@T"),
        (b"GET / HTTP/9.1\r\n", "9.1"),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n", "8190 bytes"),
        (b"GET / HTTP/1.1\r\nBad Header\r\n", "Bad Header"),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 10_000 + b"\r\n", "8190 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000, "headers"),
        (post(b"Content-Length: many\r\n"), "Content-Length"),
        (post(b"Content-Length: -1\r\n"), "Content-Length"),
        (post(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), "Transfer-Encoding"),
        (post(b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n"), "zz"),
        (post(b"Transfer-Encoding: chunked\r\n", b"3\r\nabcdef\r\n"), "abcdef"),
    ],
)
async def test_what_is_no_http_is_refused_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture, garbage: bytes, says: str
) -> None:
    async with gateway() as server:
        status, message = refusal(await exchange(server.url, garbage, b"\r\n\r\n"))
        assert status.startswith(b"HTTP/1.0 400 ")
        assert says in message
        assert "\n" not in message
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_body_that_turns_out_to_be_none(caplog: pytest.LogCaptureFixture) -> None:
    """It is being waited for already, as its beginning was fine."""
    async with gateway() as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n"))

        async def in_flight() -> int:
            return len(server.gateway.in_flight)

        await eventually(in_flight, lambda count: count == 1)
        writer.write(b"zz\r\n")
        status, message = refusal(await asyncio.wait_for(reader.read(), PATIENCE))
        assert status.startswith(b"HTTP/1.1 400 ")
        assert "zz" in message
        writer.close()
        assert await in_flight() == 0
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize("more", [b"", b"Trailer: X-Nothing\r\n"])
async def test_a_body_that_turns_out_to_be_none_behind_another_request(
    caplog: pytest.LogCaptureFixture, more: bytes
) -> None:
    """Its request waits for its turn on the connection, and has come no further than its head.

    ``more``: what has aiohttp read the request before it, too.
    """
    async with served("--tick-ms", "5") as (server, engine):
        body = json.dumps({"prompt": "hello", "max_tokens": 20, "ignore_eos": True}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(b"%bContent-Length: %d\r\n" % (more, len(body)), body))
        writer.write(post(b"Transfer-Encoding: chunked\r\n"))
        await eventually(engine.counters, lambda counters: counters.adds == 1)
        writer.write(b"zz\r\n")
        received = await asyncio.wait_for(reader.read(), PATIENCE)
        first, second = received.split(b"HTTP/1.")[1:3]
        assert first.startswith(b"1 200 ")
        assert second[1:].startswith(b" 400 ")
        assert b"zz" in second
        writer.close()
        assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_body_that_is_not_compressed_as_it_says_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as server:
        garbage = post(b"Content-Encoding: gzip\r\nContent-Length: 2\r\n", b"{}")
        status, message = refusal(await exchange(server.url, garbage))
        assert status.startswith(b"HTTP/1.1 400 ")
        assert message == "The body cannot be read: Can not decode content-encoding: gzip"
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": MESSAGES, "frobnicate": 1}, "frobnicate"),
    (CHAT, {"messages": [{"role": "user", "content": "hi", "weight": 1}]}, "messages[0].weight"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}]},
        "messages[0].content[0].cache_control",
    ),
    (CHAT, {"messages": MESSAGES, "stream_options": {"x": 1}}, "stream_options.x"),
    (COMPLETIONS, {"prompt": "hi", "messages": MESSAGES}, "messages"),
    ("/tokenize", {"prompt": "hi", "x": 1}, "x"),
    ("/detokenize", {"tokens": [1], "x": 1}, "x"),
]


async def test_unknown_names_are_refused_where_the_gateway_is_strict(url: str) -> None:
    async with served(strict=True) as (strict, _):
        for path, body, param in UNKNOWN:
            sent = json.dumps(body).encode()
            assert await error(strict.url, "POST", path, sent) == (400, param, "unknown_field")
            assert (await answer(url, "POST", path, sent))[0] == 200


#: As OpenAI's API returns it.
ANSWERED = {
    "role": "assistant",
    "content": "hello",
    "refusal": None,
    "annotations": [{"type": "url_citation", "url_citation": {"url": "x"}}],
    "audio": None,
    "function_call": None,
    "tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


async def test_a_strict_gateway_says_what_is_wrong_with_an_image() -> None:
    async with served(strict=True) as (server, _):
        body = json.dumps({"messages": [{"role": "user", "content": [IMAGE]}]}).encode()
        status, told = await answer(server.url, "POST", CHAT, body)
        assert (status, told["error"]["param"]) == (400, "messages[0].content[0]")
        assert "only text" in told["error"]["message"]


async def test_a_strict_gateway_takes_what_it_knows() -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}, ANSWERED, {"role": "user", "content": "hi", "refusal": None}],
        "user": "me",
        "tools": [],
        "chat_template_kwargs": {"anything": {"goes": 1}},
        "guided_json": {"type": "object", "x-any": 1},
        "max_tokens": 2,
    }
    async with served(strict=True) as (server, _):
        status, _ = await answer(server.url, "POST", CHAT, json.dumps(body).encode())
        assert status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_other_content_types(url: str, content_type: str) -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    assert await error(url, "POST", CHAT, body, content_type=content_type) == (415, None, "unsupported_content_type")


@pytest.mark.parametrize("content_type", [None, "application/json; charset=utf-8", "Application/JSON"])
async def test_json_content_types(url: str, content_type: str | None) -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    status, _ = await answer(url, "POST", CHAT, body, content_type=content_type)
    assert status == 200


async def test_size_of_the_body(url: str) -> None:
    def body(size: int) -> bytes:
        text = json.dumps({"messages": MESSAGES, "max_tokens": 1, "user": ""})
        return text.replace('"user": ""', f'"user": "{"x" * (size - len(text))}"').encode()

    status, _ = await answer(url, "POST", CHAT, body(1 << 20))
    assert status == 200
    assert await error(url, "POST", CHAT, body((1 << 20) + 1)) == (413, None, "body_too_large")


async def test_a_compressed_body_counts_as_what_it_holds(url: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with aiohttp.ClientSession() as session:
        small = gzip.compress(json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode())
        async with session.post(url + CHAT, data=small, headers=headers) as response:
            assert response.status == 200
        bomb = gzip.compress(b" " * (64 << 20))
        async with session.post(url + CHAT, data=bomb, headers=headers) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "body_too_large"
        async with session.post(url + CHAT, data=b"not gzip", headers=headers) as response:
            assert response.status == 400


async def test_without_an_engine_clients_are_told_to_come_back() -> None:
    async with gateway() as server, aiohttp.ClientSession() as session:
        assert await error(server.url, "GET", "/ready") == (503, None, "engine_unavailable")
        for body in ({"messages": MESSAGES}, {"messages": MESSAGES, "stream": True}):
            async with session.post(server.url + CHAT, json=body) as response:
                assert response.status == 503
                assert response.content_type == "application/json"
                assert int(response.headers["Retry-After"]) > 0
                assert (await response.json())["error"]["code"] == "engine_unavailable"
        status, body = await answer(server.url, "GET", "/health")
        assert status == 200
        assert body["status"]
        # What is wrong with a request does not wait for an engine.
        assert await error(server.url, "POST", CHAT, b"{not json") == (400, None, "invalid_json")
        assert await error(server.url, "POST", CHAT, b'{"model": "x", "messages": []}') == (
            404,
            "model",
            "model_not_found",
        )
