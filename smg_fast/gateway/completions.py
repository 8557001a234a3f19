"""``POST /v1/chat/completions`` and ``POST /v1/completions``: a request becomes generations, and they one answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

import msgspec
from aiohttp import web

from .._codec import ResponseFormat, TextOptions, TokenIds
from ..engines import GenerationRequest
from .body import read_body
from .requests import ChatCompletionRequest, CompletionRequest, decode
from .serving import GATEWAY, Target
from .streaming import BodySink, EventStream
from .validation import (
    Limits,
    check,
    check_prompt,
    for_choice,
    given_prompts,
    sampling_params,
    stop_strings,
    wants_logprobs,
)

AnyRequest = ChatCompletionRequest | CompletionRequest

_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)

_ID_PREFIX = {ChatCompletionRequest: "chatcmpl", CompletionRequest: "cmpl"}
_FORMAT = {ChatCompletionRequest: ResponseFormat.chat, CompletionRequest: ResponseFormat.completion}


async def chat_completions(http: web.Request) -> web.StreamResponse:
    """``POST /v1/chat/completions``"""
    with http.app[GATEWAY].in_flight:
        request = decode(_CHAT, await read_body(http))
        target = http.app[GATEWAY].target(request.model)
        check(request, target.capabilities, target.limits)
        prompt = await target.model.encoder.encode_chat(
            request.messages,
            add_generation_prompt=request.add_generation_prompt is not False,
            template_kwargs=request.chat_template_kwargs,
            context=target.limits.max_model_len,
        )
        check_prompt("messages", prompt, target.limits)
        return await _answer(http, target, request, [prompt])


async def completions(http: web.Request) -> web.StreamResponse:
    """``POST /v1/completions``"""
    with http.app[GATEWAY].in_flight:
        request = decode(_COMPLETION, await read_body(http))
        target = http.app[GATEWAY].target(request.model)
        check(request, target.capabilities, target.limits)
        prompts: list[TokenIds] = []
        for given in given_prompts(request, target.limits):
            if isinstance(given, str):
                prompt = await target.model.encoder.encode_text(
                    given, request.add_special_tokens is not False, context=target.limits.max_model_len
                )
            else:
                prompt = given
            check_prompt("prompt", prompt, target.limits)
            prompts.append(prompt)
            await asyncio.sleep(0)  # others have their turn between two prompts
        return await _answer(http, target, request, prompts)


async def _answer(
    http: web.Request, target: Target, request: AnyRequest, prompts: Sequence[TokenIds]
) -> web.StreamResponse:
    id = f"{_ID_PREFIX[type(request)]}-{secrets.token_hex(12)}"
    requests = _generations(id, request, prompts, target.limits)
    options = request.stream_options
    response_format = _FORMAT[type(request)](
        id=id,
        model=target.name,
        created=int(time.time()),
        stream=bool(request.stream),
        include_usage=bool(options is not None and options.include_usage),
    )
    client = target.client
    sink = EventStream(http, client) if request.stream else BodySink()
    key = await client.generate(
        sink,
        format=response_format,
        options=_text_options(request, target),
        tokenizer=target.model.tokenizer,
        prompt_tokens=sum(map(len, prompts)),
        requests=requests,
        n=request.n or 1,
    )
    try:
        return await sink.deliver(key)
    finally:
        # After a whole answer there is nothing to cancel; before its end, the client is gone.
        client.cancel(key)


def _generations(id: str, request: AnyRequest, prompts: Sequence[TokenIds], limits: Limits) -> list[GenerationRequest]:
    """One generation per choice: ``n`` of the first prompt, then ``n`` of the second, and so on."""
    n = request.n or 1
    generations: list[GenerationRequest] = []
    for prompt, sampling in zip(prompts, sampling_params(request, [len(p) for p in prompts], limits), strict=True):
        generations += [
            GenerationRequest(rid=f"{id}-{index}", prompt_ids=prompt, sampling=for_choice(sampling, index))
            for index in range(len(generations), len(generations) + n)
        ]
    return generations


def _text_options(request: AnyRequest, target: Target) -> TextOptions:
    return TextOptions(
        stop=stop_strings(request),
        stop_token_ids=request.stop_token_ids or (),
        # An engine told to go on after the end of the sequence does not stop at it.
        eos_token_ids=() if request.ignore_eos else target.model.eos_token_ids,
        include_stop_str=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        logprobs=wants_logprobs(request),
    )
