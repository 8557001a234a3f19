"""What clients may send: the parameters of OpenAI's that we know of, and those that vLLM and SGLang add.

``None`` is "not given" throughout: defaults are resolved in ``sampling``. A field typed ``Any`` is one that nothing
here honours: it is read so that it can be refused, see ``refusals``. ``parameters`` says what each field means.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..prompts.messages import Message


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """``name``, ``description`` and ``strict`` change nothing: the schema is always kept to."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TagStructure(msgspec.Struct, frozen=True, omit_defaults=True):
    begin: str
    end: str
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """``json_schema`` belongs to the type of that name; the rest to ``structural_tag``: see ``constraints``."""

    type: str
    json_schema: JsonSchema | None = None
    format: dict[str, Any] | None = None
    structures: list[TagStructure] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's. How it is enforced is for its engine's options to say: no backend of vLLM 0.32 reads that per request."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    disable_additional_properties: Any = None
    disable_any_whitespace: Any = None
    disable_fallback: Any = None
    whitespace_pattern: Any = None


class GenerateRequest(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
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
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    data_parallel_rank: int | None = None
    cache_salt: str | None = None
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
    # Labels of the client's own, without effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    request_id: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    custom_logit_processor: Any = None
    early_stopping: Any = None
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    length_penalty: Any = None
    logits_processors: Any = None
    logprob_token_ids: Any = None
    lora_path: Any = None
    no_stop_trim: Any = None
    repetition_detection: Any = None
    return_hidden_states: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    routed_experts_prompt_start: Any = None
    service_tier: Any = None
    session_params: Any = None
    spaces_between_special_tokens: Any = None
    store: Any = None
    stream_interval: Any = None
    thinking_token_budget: Any = None
    truncate_prompt_tokens: Any = None
    truncation_side: Any = None
    use_beam_search: Any = None
    vllm_xargs: Any = None
    watermarking: Any = None


class ChatCompletionRequest(GenerateRequest, kw_only=True, frozen=True, omit_defaults=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    audio: Any = None
    chat_template: Any = None
    function_call: Any = None
    functions: Any = None
    include_reasoning: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    return_prompt_text: Any = None
    separate_reasoning: Any = None
    stream_reasoning: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(GenerateRequest, kw_only=True, frozen=True, omit_defaults=True):
    """Body of ``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    prompt_embeds: Any = None
    suffix: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Body of ``POST /tokenize``: ``prompt``, or ``messages`` with what belongs to them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    chat_template: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    tools: Any = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Body of ``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None
