"""Token ids of a prompt, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from .._codec import TokenIds, Tokenizer
from .chat_template import ChatTemplate
from .errors import PromptError
from .messages import Message

_T = TypeVar("_T")

LONG_TEXT = 4_000
"""Cost (``Tokenizer.encoding_cost``) from which on a text is encoded in a thread. ``tokenizers`` takes about 0.3 µs for
a unit of it, handing over to a thread and back 100 µs (x86-64): the loop is never held for much longer than 1 ms, and a
hand-over costs at most a tenth of what it saves the loop. With byte-level BPE that is 32,000 characters, in 0.3 ms."""

VERY_LONG_TEXT = 400_000
"""Cost from which on a text waits for others of its kind: each takes up to 0.1 s or more, a lot of memory, and cannot
be called off once it has begun. Shorter ones pass them by."""

MAX_TEXT_SIZE = 4 << 20
"""Bytes of a text that no context bounds: one that takes seconds to encode, and a gigabyte of memory."""

LONG_CHAT = 100
"""Messages, content parts, tool calls, and values of the JSON in a chat from which on it is rendered in a thread. Each
takes up to 10 µs."""


class PromptThreads(msgspec.Struct, frozen=True):
    """Threads for prompts that take long; they serve all models.

    Encoding releases the GIL. Rendering does not, and each thread more that renders is one more between the event loop
    and its turn: there is one.
    """

    encoding: Executor
    encoding_very_long: Executor
    rendering: Executor

    @classmethod
    def start(cls) -> PromptThreads:
        return cls(
            encoding=ThreadPoolExecutor(thread_name_prefix="encode"),
            encoding_very_long=ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode-very-long"),
            rendering=ThreadPoolExecutor(max_workers=1, thread_name_prefix="render"),
        )

    def stop(self) -> None:
        """Begin nothing more; what runs is not waited for."""
        for executor in (self.encoding, self.encoding_very_long, self.rendering):
            executor.shutdown(wait=False, cancel_futures=True)


class PromptEncoder:
    """Encodes the prompts of one model.

    Parameters
    ----------
    tokenizer, template
        The model's. Without a template there is no chat.
    threads
        For what takes long.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, threads: PromptThreads) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._threads = threads

    async def encode_text(
        self, text: str, add_special_tokens: bool = True, *, context: int | None = None, param: str = "prompt"
    ) -> TokenIds:
        """Token ids of a text, with those that the tokenizer puts around it unless told not to.

        Raises ``PromptError``, naming ``param``, for a text that is too long for ``context`` tokens whatever they are
        (one that is not may have too many yet), or without a context longer than ``MAX_TEXT_SIZE``.
        """
        self._check_size(param, text, context)
        if len(text) < LONG_TEXT:  # so is its cost, about
            return self.tokenizer.encode(text, add_special_tokens)
        cost = self.tokenizer.encoding_cost(text)
        return await self.run(lambda: self.tokenizer.encode(text, add_special_tokens), cost)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        context: int | None = None,
    ) -> TokenIds:
        """Token ids of a conversation. What surrounds it is the template's affair: the tokenizer adds nothing unless
        told to.

        Raises ``PromptError`` as ``ChatTemplate.render`` and ``encode_text`` do, and for a model that has no template.
        """
        template = self.template
        if template is None:
            raise PromptError("this model has no chat template; the server can be given one with --chat-template FILE")

        def render() -> str:
            return template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                documents=documents,
                template_kwargs=template_kwargs,
            )

        long = _is_long(messages, (tools, documents, template_kwargs))
        text = await _in_thread(self._threads.rendering, render) if long else render()
        return await self.encode_text(text, add_special_tokens, context=context, param="messages")

    async def run(self, work: Callable[[], _T], cost: int) -> _T:
        """Do what takes about as long as to encode a text of this cost: in a thread, unless that is short."""
        if cost < LONG_TEXT:
            return work()
        threads = self._threads
        return await _in_thread(threads.encoding if cost < VERY_LONG_TEXT else threads.encoding_very_long, work)

    def _check_size(self, param: str, text: str, context: int | None) -> None:
        """Encoding megabytes takes seconds, only to find that they are too much."""
        limit = MAX_TEXT_SIZE if context is None else context * self.tokenizer.max_token_bytes
        if 4 * len(text) <= limit or (size := len(text.encode())) <= limit:
            return
        if context is None:
            raise PromptError(f"The prompt has {size} bytes; the limit is {limit}", param)
        raise PromptError(
            f"The prompt has {size} bytes; the model's context of {context} tokens holds at most {limit}", param
        )


async def _in_thread(executor: Executor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)


def _is_long(messages: Sequence[Message], variables: Sequence[Any]) -> bool:
    """Whether there are ``LONG_CHAT`` of what rendering a chat takes its time for; counted no further than needed."""
    size = len(messages)
    values = [variable for variable in variables if variable] if any(variables) else []
    for message in messages:
        if isinstance(message.content, list):
            size += len(message.content)
        calls = message.tool_calls or ()
        size += len(calls)
        if size >= LONG_CHAT:
            return True
        for call in calls:
            arguments = call.function.arguments
            if isinstance(arguments, str):
                # The commas tell how many values are in JSON text, about.
                size += arguments.count(",")
            else:
                values.append(arguments)
    # Not recursive: clients may nest JSON deeply.
    while values and size < LONG_CHAT:
        value = values.pop()
        size += 1
        if isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, list):
            values += value
    return size >= LONG_CHAT
