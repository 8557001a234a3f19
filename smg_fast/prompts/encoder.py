"""Token ids of a prompt, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from .._codec import TokenIds, Tokenizer
from .chat_template import ChatTemplate
from .errors import PromptError
from .messages import Message

_T = TypeVar("_T")

LONG_TEXT = 4_000
"""Characters from which on a text is encoded in a thread. Encoding takes about 0.3 µs a character, handing over to a
thread and back 100 µs (Qwen3, gpt-oss and SmolLM2 on x86-64): the loop is never held for much longer than 1 ms, and a
hand-over costs at most a tenth of what it saves the loop."""

LONG_CHAT = 100
"""Messages from which on a template is rendered in a thread. A message takes up to 15 µs."""


class PromptEncoder:
    """Encodes the prompts of one model.

    Parameters
    ----------
    tokenizer, template
        The model's. Without a template there is no chat.
    executor
        Threads for what takes long; may be shared by models. Encoding releases the GIL.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, executor: Executor) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._executor = executor

    async def encode_text(self, text: str, add_special_tokens: bool = True) -> TokenIds:
        """Token ids of a text, with those that the tokenizer puts around it unless told not to."""

        def encode() -> TokenIds:
            return self.tokenizer.encode(text, add_special_tokens)

        return encode() if len(text) < LONG_TEXT else await self._in_thread(encode)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenIds:
        """Token ids of a conversation. What surrounds it is the template's affair: the tokenizer adds nothing.

        Raises ``PromptError`` as `ChatTemplate.render` does, and for a model that has no template.
        """
        template = self.template
        if template is None:
            raise PromptError("this model has no chat template; the server can be given one with --chat-template FILE")

        def render() -> str:
            return template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                documents=documents,
                template_kwargs=template_kwargs,
            )

        text = render() if len(messages) < LONG_CHAT else await self._in_thread(render)
        return await self.encode_text(text, add_special_tokens=False)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
