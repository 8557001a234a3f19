"""The conversation as a client sends it, and as a chat template reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .environment import check_time
from .errors import PromptError
from .template_traits import TemplateTraits

_SYSTEM, _DEVELOPER = "system", "developer"
#: Roles that templates are made for. Whether one gives any other is asked of it.
_USUAL_ROLES = frozenset((_SYSTEM, "user", "assistant", "tool"))
#: Key of the text, by the type of a part.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content. Only those of text can be prompted with; of others the type is refused."""

    type: str
    text: str | None = None
    refusal: str | None = None
    audio_url: Any = None
    file: Any = None
    image_url: Any = None
    input_audio: Any = None
    video_url: Any = None


class FunctionCall(msgspec.Struct, frozen=True):
    """``arguments`` is JSON text, as OpenAI has it; an object is taken as well."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a chat.

    ``reasoning_content``, ``thinking`` and ``reasoning`` are three names of the same thing; the first one given
    counts. ``refusal`` is what the assistant said in the place of content. ``annotations``, OpenAI's of an answer, are
    no part of a prompt, nor are keys not listed here. ``audio`` and ``function_call`` are refused.
    """

    role: str
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None

    @property
    def text(self) -> str:
        """All of the content's text, parts on a line each; of parts that are no text nothing."""
        if isinstance(self.content, list):
            parts = (part if isinstance(part, str) else part.text or part.refusal or "" for part in self.content)
            return "\n".join(parts)
        return self.content or self.refusal or ""


def template_messages(
    messages: Sequence[Message], traits: TemplateTraits, gives_role: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """The messages as the dictionaries that a template with these traits reads.

    Raises
    ------
    PromptError
        For a role whose messages the template would leave out without a word, for content that is missing or not text,
        for tool call arguments that are not JSON, and for audio and calls of functions that are no tools.
    TemplateError
        Inside ``TimeLimit``, when the time is up.
    """
    rendered: list[dict[str, Any]] = []
    developer = False
    for index, message in enumerate(messages):
        check_time()
        role, content = message.role, message.content
        # The short way for what nearly all messages are: one text of somebody usual, and nothing else.
        if (
            content
            and type(content) is str
            and traits.content_strings
            and role in _USUAL_ROLES
            and message == Message(role, content)
        ):
            rendered.append({"role": role, "content": content})
        else:
            rendered.append(_template_message(message, f"messages[{index}]", traits, gives_role))
            developer = developer or role == _DEVELOPER
    return _with_one_system_message(rendered, traits) if developer and not traits.developer else rendered


def _with_one_system_message(messages: list[dict[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """All of them as one, at the beginning: templates may want no other. As in vLLM, where developers' become some."""
    system = [message["content"] for message in messages if message["role"] == _SYSTEM]
    texts = (
        "\n".join(part["text"] for part in content) if isinstance(content, list) else content for content in system
    )
    text = "\n\n".join(filter(None, texts))
    merged = {"role": _SYSTEM, "content": text if traits.content_strings else [{"type": "text", "text": text}]}
    return [merged, *(message for message in messages if message["role"] != _SYSTEM)]


def _template_message(
    message: Message, path: str, traits: TemplateTraits, gives_role: Callable[[str], bool]
) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": _role(message.role, f"{path}.role", traits, gives_role)}
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise PromptError(f"{path}.{name} is not supported", f"{path}.{name}")
    content = message.content or message.refusal or message.content
    if content is not None:
        rendered["content"] = _content(content, f"{path}.content", traits)
    elif message.role == "assistant":
        # A turn of nothing but tool calls. Most templates would fail on None, or write it out.
        rendered["content"] = None if traits.content_null else ""
    else:
        raise PromptError(f"{path}.content: a {message.role} message needs content", f"{path}.content")
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [
            _tool_call(call, f"{path}.tool_calls[{index}]", traits) for index, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    for reasoning in (message.reasoning_content, message.thinking, message.reasoning):
        if reasoning is not None:
            # Each template knows it by one of these names.
            rendered |= dict.fromkeys(("reasoning_content", "thinking", "reasoning"), reasoning)
            break
    return rendered


def _role(role: str, path: str, traits: TemplateTraits, gives_role: Callable[[str], bool]) -> str:
    if role == _DEVELOPER:
        return role if traits.developer else _SYSTEM  # what it was called before
    if role in _USUAL_ROLES or gives_role(role):
        return role
    raise PromptError(f"{path}: the model's chat template leaves out messages of the role {role!r}", path)


def _content(content: str | list[str | ContentPart], path: str, traits: TemplateTraits) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content if traits.content_strings else [{"type": "text", "text": content}]
    texts = [_text(part, f"{path}[{index}]") for index, part in enumerate(content)]
    if traits.content_parts:
        return [{"type": "text", "text": text} for text in texts]
    # As vLLM's server does.
    return "\n".join(texts)


def _text(part: str | ContentPart, path: str) -> str:
    if isinstance(part, str):
        return part
    key = _TEXT_PARTS.get(part.type)
    if key is None:
        raise PromptError(f"{path}: content of type {part.type!r} is not supported, only text", path)
    text: str | None = getattr(part, key)
    if text is None:
        raise PromptError(f"{path}: a {part.type} part needs the key {key!r}", path)
    return text


def _tool_call(call: ToolCall, path: str, traits: TemplateTraits) -> dict[str, Any]:
    check_time()
    rendered: dict[str, Any] = {
        "type": call.type,
        "function": {
            "name": call.function.name,
            "arguments": _arguments(call.function.arguments, f"{path}.function.arguments", traits),
        },
    }
    if call.id is not None:
        rendered["id"] = call.id
    return rendered


def _arguments(arguments: str | dict[str, Any], path: str, traits: TemplateTraits) -> str | dict[str, Any]:
    """The object, since templates write it with tojson: text would be quoted a second time."""
    if isinstance(arguments, str) == traits.argument_text:
        return arguments
    if arguments == "":
        return {}
    try:
        if not isinstance(arguments, str):
            return json.dumps(arguments, ensure_ascii=False)
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise PromptError(f"{path}: not a JSON object: {error}", path) from None
