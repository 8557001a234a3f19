"""``POST /v1/chat/completions`` and ``POST /v1/completions``: a request becomes generations, and they one answer."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from .._codec import Prompt, ResponseFormat, TokenIds
from ..engines import GenerationRequest
from ..prompts.errors import PromptError
from ..transport import EngineUnavailable
from .body import STRICT, read_body
from .decoding import decode
from .errors import ApiError, invalid
from .exchange import AiohttpExchange, Exchange, WrittenResponse
from .plans import Plan
from .requests import ChatCompletionRequest, CompletionRequest
from .sampling import for_choice, for_prompts
from .serving import GATEWAY, Gateway, Target
from .streaming import BodySink, EventStream
from .validation import AnyRequest, check_prompt, given_prompts

logger = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", ChatCompletionRequest, CompletionRequest)

_ID_PREFIX = {ChatCompletionRequest: "chatcmpl", CompletionRequest: "cmpl"}

_RANK_HEADER = "X-data-parallel-rank"
_RANK = re.compile(r"[0-9]{1,9}")

#: Whose the answers are.
_ASSISTANT = "assistant"


class _Prompt(msgspec.Struct, frozen=True):
    """``echo`` is the text that goes before each answer to it."""

    ids: TokenIds
    echo: str | None


class _Accepted(msgspec.Struct, frozen=True):
    """A request that has been checked against a worker."""

    target: Target
    plan: Plan
    prompts: Sequence[_Prompt]


class Endpoint(Generic[RequestT]):
    """One of the paths that engines answer."""

    def __init__(
        self, path: str, type: type[RequestT], encode: Callable[[RequestT, Target], Awaitable[Sequence[_Prompt]]]
    ) -> None:
        """``encode``: what makes prompts of a request."""
        self.path = path
        self._decoder: msgspec.json.Decoder[RequestT] = msgspec.json.Decoder(type)
        self._encode: Callable[[RequestT, Target], Awaitable[Sequence[_Prompt]]] = encode

    async def answer(
        self, exchange: Exchange, gateway: Gateway, body: bytes, rank: str | None, *, strict: bool
    ) -> None:
        """Answer the request in a body, all of it.

        ``rank``: what the request's head says of it; vLLM's clients name it there. What the body says goes first.
        ``strict`` as ``decode`` has it.

        Raises whatever kept the answer from beginning: ``ApiError``, ``EngineError``, ``PromptError``, and
        ``ConnectionError`` if the client is gone.
        """
        request = decode(self._decoder, body, strict=strict)
        if rank is not None and request.data_parallel_rank is None:
            if not _RANK.fullmatch(rank):
                raise invalid(_RANK_HEADER, f"{_RANK_HEADER} must be the number of an engine, got {rank!r}")
            request = msgspec.structs.replace(request, data_parallel_rank=int(rank))
        await _answer(exchange, gateway, request, await _accepted(gateway, request, self._encode))

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer a request that aiohttp has read."""
        gateway = http.app[GATEWAY]
        with gateway.in_flight:
            exchange = AiohttpExchange(http)
            rank = http.headers.get(_RANK_HEADER)
            await self.answer(exchange, gateway, await read_body(http), rank, strict=http.app[STRICT])
            return WrittenResponse(exchange)


async def _accepted(
    gateway: Gateway,
    request: RequestT,
    encode: Callable[[RequestT, Target], Awaitable[Sequence[_Prompt]]],
) -> _Accepted:
    """The request, with the best of the workers that take it.

    Raises what is wrong with it where none does: for the worker with the longest context, or the best of these.
    """
    refusals: list[tuple[float, ApiError | PromptError]] = []
    for target in gateway.targets(request.model):
        try:
            plan = await _planned(gateway, request, target)
            return _Accepted(target, plan, await encode(request, target))
        except (ApiError, PromptError) as error:  # noqa: PERF203 - mostly there is one
            if isinstance(error, ApiError) and error.status != HTTPStatus.BAD_REQUEST:
                raise
            refusals.append((target.terms.limits.max_model_len or math.inf, error))
    try:
        raise max(refusals, key=itemgetter(0))[1]
    finally:
        refusals.clear()  # they hold this frame, which holds the request


async def _chat_prompts(request: ChatCompletionRequest, target: Target) -> Sequence[_Prompt]:
    template = target.model.encoder.template
    if request.documents and template is not None and not template.takes_documents:
        raise invalid("documents", "documents: the model's chat template takes none")
    ids = await target.model.encoder.encode_chat(
        request.messages,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
        documents=request.documents,
        template_kwargs=request.chat_template_kwargs,
        context=target.terms.limits.max_model_len,
    )
    check_prompt("messages", ids, target.terms.limits)
    return [_Prompt(ids, _echo(request))]


async def _completion_prompts(request: CompletionRequest, target: Target) -> Sequence[_Prompt]:
    limits = target.terms.limits
    prompts: list[_Prompt] = []
    for given in given_prompts(request, limits):
        if isinstance(given.value, str):
            text = given.value
            ids = await target.model.encoder.encode_text(
                text, request.add_special_tokens is not False, context=limits.max_model_len, param=given.param
            )
        else:
            ids = given.value
            text = target.model.tokenizer.decode(ids, False) if request.echo else ""
        check_prompt(given.param, ids, limits)
        prompts.append(_Prompt(ids, text if request.echo else None))
        await asyncio.sleep(0)  # others have their turn between two prompts
    return prompts


def _echo(request: ChatCompletionRequest) -> str | None:
    """The last message's text, if the answer is more of the same: the assistant's, or of whoever's turn it still is."""
    last = request.messages[-1]
    return last.text if request.echo and last.role == _role(request) else None


def _role(request: ChatCompletionRequest) -> str:
    """Whose the answer is: the assistant's, unless no new message begins."""
    return request.messages[-1].role if request.add_generation_prompt is False else _ASSISTANT


async def _planned(gateway: Gateway, request: AnyRequest, target: Target) -> Plan:
    """What is asked; all of it that can be refused without the prompt has been checked."""
    plan = target.model.plans.plan(request, target.terms)
    if plan.constraint is not None:
        await gateway.compiler.check(plan.constraint, target.terms.capabilities)
    return plan


async def _answer(exchange: Exchange, gateway: Gateway, request: AnyRequest, accepted: _Accepted) -> None:
    """Answer it; from another engine, once, if this one is lost before a byte of it has been sent."""
    target, plan, prompts = accepted.target, accepted.plan, accepted.prompts
    try:
        target = gateway.settled(target)
        await _attempt(exchange, target, request, prompts, plan)
        return
    except EngineUnavailable as error:
        for other in gateway.other_targets(target):
            try:
                plan = await _planned(gateway, request, other)
                for prompt in prompts:
                    check_prompt("prompt", prompt.ids, other.terms.limits)
            except ApiError:  # it is no fault of the request that this one takes less
                continue
            break
        else:
            raise
        url = other.worker.spec.url
        logger.warning("a request for %s is tried once more, on worker %s: %s", target.name, url, error)
    await _attempt(exchange, other, request, prompts, plan)


async def _attempt(
    exchange: Exchange,
    target: Target,
    request: AnyRequest,
    prompts: Sequence[_Prompt],
    plan: Plan,
) -> None:
    id = f"{_ID_PREFIX[type(request)]}-{random.getrandbits(96):024x}"
    requests = _generations(id, request, prompts, target, plan)
    client = target.client
    created = int(time.time())
    sink = EventStream(exchange, client, created) if request.stream else BodySink(exchange)
    key = await client.generate(
        sink,
        format=_response_format(id, request, target, created),
        options=plan.options,
        tokenizer=target.model.tokenizer,
        prompts=[Prompt(prompt.ids, echo=prompt.echo) for prompt in prompts],
        requests=requests,
        connection=sink.connection,
    )
    try:
        await sink.deliver(key)
    finally:
        # After a whole answer there is nothing to cancel; before its end, the client is gone.
        client.cancel(key)


def _response_format(id: str, request: AnyRequest, target: Target, created: int) -> ResponseFormat:
    options = request.stream_options
    include_usage = bool(options is not None and options.include_usage)
    given: dict[str, Any] = {
        "id": id,
        "model": target.name,
        "created": created,
        "stream": bool(request.stream),
        "include_usage": include_usage,
        "continuous_usage": bool(include_usage and options is not None and options.continuous_usage_stats),
    }
    if isinstance(request, ChatCompletionRequest):
        return ResponseFormat.chat(**given, role=_role(request))
    return ResponseFormat.completion(**given)


def _generations(
    id: str, request: AnyRequest, prompts: Sequence[_Prompt], target: Target, plan: Plan
) -> list[GenerationRequest]:
    """One generation per choice: ``n`` of the first prompt, then ``n`` of the second, and so on."""
    lengths = [len(prompt.ids) for prompt in prompts]
    sampling = for_prompts(plan.sampling, request, lengths, target.terms)
    n = request.n or 1
    return [
        GenerationRequest(
            rid=f"{id}-{index * n + choice}",
            prompt_ids=prompt.ids,
            sampling=for_choice(params, choice),
            eos_token_ids=target.model.eos_token_ids,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
            data_parallel_rank=request.data_parallel_rank,
        )
        for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
        for choice in range(n)
    ]


ENDPOINTS: dict[str, Endpoint[Any]] = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/chat/completions", ChatCompletionRequest, _chat_prompts),
        Endpoint("/v1/completions", CompletionRequest, _completion_prompts),
    )
}
