"""Answers of vLLM's own server, and those of ours to the same requests, brought into one form."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

DATA = Path(__file__).parents[1] / "data"


class Answer(msgspec.Struct, frozen=True):
    status: int
    content_type: str | None
    body: str


class Recording(msgspec.Struct, frozen=True):
    """A request and what vLLM answered. ``raw_body`` is Latin-1, for what is no JSON."""

    method: str
    path: str
    content_type: str | None
    answer: Answer
    request: Any = None
    raw_body: str | None = None

    @property
    def body(self) -> bytes | None:
        if self.raw_body is not None:
            return self.raw_body.encode("latin-1")
        return None if self.request is None else json.dumps(self.request).encode()


class Recordings(msgspec.Struct, frozen=True):
    about: str
    cases: dict[str, Recording]


def recordings(name: str) -> dict[str, Recording]:
    return msgspec.json.decode((DATA / name).read_bytes(), type=Recordings).cases


def send(url: str, recording: Recording) -> Answer:
    """What another server answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {} if recording.content_type is None else {"Content-Type": recording.content_type}
    try:
        connection.request(recording.method, recording.path, recording.body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.getheader("Content-Type"), response.read().decode())
    finally:
        connection.close()


def meaning(answer: Answer) -> dict[str, Any]:
    """All that counts of an answer: no ids, no times, no wording, nor where a stream's events begin and end."""
    if answer.status >= 400:
        return {"status": answer.status}
    told: dict[str, Any] = {"status": answer.status}
    if (answer.content_type or "").startswith("text/event-stream"):
        return told | _of_stream(list(_events(answer.body)))
    body = json.loads(answer.body)
    if "choices" not in body:
        return told | {"body": body}
    return told | {
        "choices": {choice["index"]: _of_choice(choice) for choice in body["choices"]},
        "usage": _usage(body["usage"]),
        "prompt_logprobs": body.get("prompt_logprobs"),
    }


def _events(body: str) -> Iterator[Any]:
    blocks = body.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    for block in blocks[:-2]:
        yield json.loads(block.removeprefix("data: "))


def _of_choice(choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": choice["message"]["role"] if "message" in choice else None,
        "text": choice["message"]["content"] if "message" in choice else choice["text"],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
        "logprobs": _joined(None, choice["logprobs"]),
        "prompt_logprobs": choice.get("prompt_logprobs"),
    }


def _of_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        assert "error" not in event
        if not event["choices"]:
            usage = _usage(event["usage"])
        for part in event["choices"]:
            empty = {
                "role": None,
                "text": "",
                "finish_reason": None,
                "stop_reason": None,
                "logprobs": None,
                "usage": None,
            }
            choice = choices.setdefault(part["index"], empty)
            assert choice["finish_reason"] is None, "an event after the end of its choice"
            choice["role"] = choice["role"] or part.get("delta", {}).get("role")
            choice["text"] += (part["delta"].get("content") or "") if "delta" in part else part["text"]
            choice["finish_reason"] = part["finish_reason"]
            choice["stop_reason"] = part.get("stop_reason")
            choice["logprobs"] = _joined(choice["logprobs"], part.get("logprobs"))
            choice["usage"] = _usage(event["usage"]) if event.get("usage") else None
    return {"choices": choices, "usage": usage}


def _joined(columns: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    if more is None:
        return columns
    return {name: (columns or {}).get(name, []) + column for name, column in more.items() if column is not None}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
