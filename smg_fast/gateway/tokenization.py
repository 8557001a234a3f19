"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them: a prompt's tokens, and back. No engine is needed."""

from __future__ import annotations

import msgspec
from aiohttp import web

from .._codec import TokenIds, Tokenizer
from .body import read_request
from .errors import invalid
from .models import ServedModel
from .refusals import refuse_what_is_not_honoured
from .requests import DetokenizeRequest, TokenizeRequest
from .serving import GATEWAY
from .validation import check_continuation, token_ids

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


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
    request = await read_request(http, _TOKENIZE)
    _, model = http.app[GATEWAY].model(request.model)
    refuse_what_is_not_honoured(request)
    ids = (await _encode(request, model)).tolist()
    return _json(
        TokenizeResponse(
            count=len(ids),
            max_model_len=http.app[GATEWAY].limits(model).max_model_len,
            tokens=ids,
            token_strs=_spelled(ids, model.tokenizer) if request.return_token_strs else None,
        )
    )


async def detokenize(http: web.Request) -> web.Response:
    """``POST /detokenize``. Special tokens are shown."""
    request = await read_request(http, _DETOKENIZE)
    _, model = http.app[GATEWAY].model(request.model)
    ids = token_ids("tokens", request.tokens, http.app[GATEWAY].limits(model))
    return _json(DetokenizeResponse(model.tokenizer.decode(ids, False)))


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


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
