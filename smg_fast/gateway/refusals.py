"""Parameters that are known and that nothing here honours: whoever asks for something by them is told so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import invalid
from .requests import ChatCompletionRequest, CompletionRequest, StructuredOutputs, TokenizeRequest

#: By parameter: the values besides null that ask for nothing, and are accepted.
ASKS_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (True, False),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "parallel_tool_calls": (True, False),
    "return_hidden_states": (False,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "separate_reasoning": (True, False),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream_interval": (1,),
    "stream_reasoning": (True, False),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "watermarking": (False,),
}

_TOOLS = ("function_call", "functions", "parallel_tool_calls", "tool_choice", "tools")

#: By request, the names of its fields that are only there to be refused.
NOT_HONOURED: Mapping[type[msgspec.Struct], tuple[str, ...]] = {
    request: tuple(field.name for field in msgspec.structs.fields(request) if field.type is Any)
    for request in (ChatCompletionRequest, CompletionRequest, StructuredOutputs, TokenizeRequest)
}


def refuse_what_is_not_honoured(request: msgspec.Struct, within: str = "") -> None:
    """Raises ``ApiError``, 400, naming the first parameter that asks for something nothing here can do.

    ``within`` is where the request has it, if it is a part of one: ``structured_outputs.``
    """
    for name in NOT_HONOURED[type(request)]:
        value = getattr(request, name)
        if value is not None and not _asks_nothing(name, value):
            path = f"{within}{name}"
            raise invalid(
                path, f"{path}: tool calls are not supported" if name in _TOOLS else f"{path} is not supported"
            )


def _asks_nothing(name: str, value: Any) -> bool:
    accepted = ASKS_NOTHING.get(name, ())
    # 0 equals False and 1 True in Python, not in a request.
    return any(value == nothing and isinstance(value, bool) == isinstance(nothing, bool) for nothing in accepted)
