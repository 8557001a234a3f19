"""What clients may send to ``/v1/chat/completions`` and ``/v1/completions``.

The parameters of OpenAI's that we know of are here, and those that vLLM and SGLang add. ``None`` is "not given"
throughout: defaults are resolved in ``validation``. A field typed ``Any`` is one that nothing here honours yet: it is
read so that it can be refused. Names that are not here are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from ..prompts.messages import Message
from .errors import ApiError, invalid


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    schema: dict[str, Any]


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's: one of them."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None


class GenerateRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What chats and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    # At most one of these: what the answer must be. See ``constraints``.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    # A label of the client's own, with no effect here.
    user: str | None = None

    allowed_token_ids: Any = None
    bad_words: Any = None
    cache_salt: Any = None
    custom_logit_processor: Any = None
    data_parallel_rank: Any = None
    early_stopping: Any = None
    echo: Any = None
    kv_transfer_params: Any = None
    length_penalty: Any = None
    logit_bias: Any = None
    logits_processors: Any = None
    lora_path: Any = None
    no_stop_trim: Any = None
    priority: Any = None
    prompt_logprobs: Any = None
    return_hidden_states: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    service_tier: Any = None
    session_params: Any = None
    spaces_between_special_tokens: Any = None
    store: Any = None
    thinking_token_budget: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    vllm_xargs: Any = None


class ChatCompletionRequest(GenerateRequest, kw_only=True, frozen=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    add_special_tokens: Any = None
    audio: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    documents: Any = None
    function_call: Any = None
    functions: Any = None
    include_reasoning: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    separate_reasoning: Any = None
    stream_reasoning: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(GenerateRequest, kw_only=True, frozen=True):
    """Body of ``POST /v1/completions``. ``prompt`` is one text, one list of token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    prompt_embeds: Any = None
    suffix: Any = None


#: By parameter that nothing here honours: the values besides null that ask for nothing, and are accepted.
_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (False,),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "data_parallel_rank": (0,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "length_penalty": (1.0,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "parallel_tool_calls": (True, False),
    "priority": (0,),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True, False),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream_reasoning": (True, False),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
}

_NOT_HONOURED = {
    model: tuple(field.name for field in msgspec.structs.fields(model) if field.type is Any)
    for model in (ChatCompletionRequest, CompletionRequest)
}

Request = TypeVar("Request", bound=GenerateRequest)

_AT = re.compile(r"^(?P<message>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`")


def asked_in_vain(request: ChatCompletionRequest | CompletionRequest) -> Iterator[str]:
    """Names of the parameters in a request that ask for something nothing here can do."""
    for name in _NOT_HONOURED[type(request)]:
        value = getattr(request, name)
        if value is not None and value not in _ASKS_NOTHING.get(name, ()):
            yield name


def decode(decoder: msgspec.json.Decoder[Request], body: bytes) -> Request:
    """The request in a body.

    Raises
    ------
    ApiError
        400, for what is not JSON, and for values of a wrong type, which it names.
    """
    if not body:
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is empty; a JSON object is expected", code="invalid_json")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is nested too deeply", code="invalid_json") from None


def _wrong_type(text: str) -> ApiError:
    message, path = text, None
    if at := _AT.match(text):
        message, path = at["message"], at["path"]
    if missing := _MISSING.search(message):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        message = "missing, and required"
    return invalid(path, f"{path or 'The body'}: {message}")
