"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them: a prompt's tokens, and back. No engine is needed."""

from __future__ import annotations

import msgspec
from aiohttp import web

from .._codec import Detokenizer, TokenIds, Tokenizer
from .body import read_request
from .errors import invalid
from .limits import MAX_DETOKENIZED
from .models import ServedModel
from .refusals import refuse_what_is_not_honoured
from .requests import DetokenizeRequest, TokenizeRequest
from .serving import GATEWAY
from .validation import check_continuation, check_count, token_ids

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)

#: Tokens that are decoded at a time: 1 ms, in which nothing else runs.
_PIECE = 8192


class TokenizeResponse(msgspec.Struct, frozen=True):
    """``token_strs`` is how the vocabulary spells the tokens, if asked for."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str | None] | None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str


async def tokenize(http: web.Request) -> web.Response:
    """``POST /tokenize``"""
    gateway = http.app[GATEWAY]
    with gateway.in_flight:
        request = await read_request(http, _TOKENIZE)
        _, model = gateway.model(request.model)
        refuse_what_is_not_honoured(request)
        ids = await _encode(request, model)
        max_model_len = gateway.limits(model).max_model_len

        def answer() -> bytes:
            tokens = ids.tolist()
            spelled = _spelled(tokens, model.tokenizer) if request.return_token_strs else None
            return msgspec.json.encode(TokenizeResponse(len(tokens), max_model_len, tokens, spelled))

        return _json(await model.encoder.run(answer, len(ids)))


async def detokenize(http: web.Request) -> web.Response:
    """``POST /detokenize``. Special tokens are shown."""
    gateway = http.app[GATEWAY]
    with gateway.in_flight:
        request = await read_request(http, _DETOKENIZE)
        _, model = gateway.model(request.model)
        check_count("tokens", "ids", request.tokens, MAX_DETOKENIZED)
        limits = gateway.limits(model)

        def answer() -> bytes:
            text = _decoded(token_ids("tokens", request.tokens, limits), model.tokenizer)
            return msgspec.json.encode(DetokenizeResponse(text))

        return _json(await model.encoder.run(answer, len(request.tokens)))


async def _encode(request: TokenizeRequest, model: ServedModel) -> TokenIds:
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "either prompt or messages is required, and not both")
    if request.messages is None:
        assert request.prompt is not None
        return await model.encoder.encode_text(request.prompt, request.add_special_tokens is not False)
    if request.continue_final_message:
        check_continuation(request.add_generation_prompt)
    return await model.encoder.encode_chat(
        request.messages,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
        template_kwargs=request.chat_template_kwargs,
    )


def _spelled(ids: list[int], tokenizer: Tokenizer) -> list[str | None]:
    spelling = {id: tokenizer.id_to_token(id) for id in set(ids)}
    return [spelling[id] for id in ids]


def _decoded(ids: TokenIds, tokenizer: Tokenizer) -> str:
    """Piece by piece: others, such as the event loop, have their turn between two of them."""
    tokens, detokenizer = ids.tolist(), Detokenizer(tokenizer, skip_special_tokens=False)
    pieces = [detokenizer.push(tokens[start : start + _PIECE]) for start in range(0, len(tokens), _PIECE)]
    return "".join([*pieces, detokenizer.finish()])


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
