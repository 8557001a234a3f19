"""A client of the dispatcher's responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from smg_fast._codec import (
    Dispatcher,
    Outcome,
    Output,
    Prompt,
    Protocol,
    ResponseFormat,
    TextOptions,
    TokenIds,
    Tokenizer,
)

PROMPT = Prompt(TokenIds([1, 2, 3, 4, 5]))


class Client:
    """Puts the bytes of an outcome together as an HTTP client would."""

    def __init__(self, tokenizer: Tokenizer, protocol: Protocol | None = None) -> None:
        self.dispatcher = Dispatcher()
        self.tokenizer = tokenizer
        self.protocol = protocol or Protocol.tokenspeed()
        self.raw = b""
        self.end: bytes | list[Output] | None = None
        self.error: str | None = None
        self.aborts: list[str] = []
        self.finished: list[str] = []

    def open(
        self,
        format: ResponseFormat,
        rids: list[str],
        prompt: Prompt | Sequence[Prompt] = PROMPT,
        **options: Any,
    ) -> int:
        prompts = [prompt] if isinstance(prompt, Prompt) else prompt
        return self.dispatcher.open(self, format, self.tokenizer, TextOptions(**options), rids, prompts)

    def feed(self, *messages: list[bytes]) -> Outcome:
        return self.take(self.dispatcher.feed(self.protocol, messages))

    def take(self, outcome: Outcome) -> Outcome:
        for sink, chunk in outcome.chunks:
            assert sink is self
            self.raw += chunk
        for sink, data, error in outcome.ended:
            assert sink is self
            assert (data is None) is (error is not None)
            self.end, self.error = data, error
            if isinstance(data, bytes):
                self.raw += data
        self.aborts += outcome.aborts
        self.finished += outcome.finished
        return outcome

    @property
    def events(self) -> list[dict[str, Any]]:
        parts = self.raw.decode().split("\n\n")
        assert parts[-1] == ""
        assert all(part.startswith("data: ") for part in parts[:-1])
        return [loads(part[6:]) for part in parts[:-1] if part != "data: [DONE]"]

    def text(self, index: int = 0) -> str:
        """The text of a choice."""

        def text(choice: dict[str, Any]) -> str:
            part = choice.get("message") or choice.get("delta")
            return str(choice["text"] if part is None else part.get("content", ""))

        return "".join(map(text, self.choices(index)))

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        """What there is of a choice: a body has it whole, a stream in the order of its events."""
        parts = self.events if self.raw.startswith(b"data: ") else [self.body]
        return [choice for part in parts for choice in part["choices"] if choice["index"] == index]

    def completion_logprobs(self, index: int = 0) -> dict[str, list[Any]]:
        """A completion's logprobs, those of its events joined."""
        joined: dict[str, list[Any]] = {}
        for choice in self.choices(index):
            for name, values in (choice["logprobs"] or {}).items():
                joined.setdefault(name, []).extend(values)
        return joined

    @property
    def body(self) -> dict[str, Any]:
        assert isinstance(self.end, bytes)
        return loads(self.end)


def loads(text: str | bytes) -> dict[str, Any]:
    """A JSON object in which no object names a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), f"a key comes twice: {keys}"
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=once)
    assert isinstance(value, dict)
    return value
