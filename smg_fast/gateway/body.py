"""Bodies of requests."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import hdrs, web

from .decoding import Request, decode
from .errors import ApiError

#: Whether names that a request does not have are refused.
STRICT: web.AppKey[bool] = web.AppKey("strict", bool)

_JSON = "application/json"


async def read_request(http: web.Request, decoder: msgspec.json.Decoder[Request], *, strict: bool = False) -> Request:
    """The typed request in a body of at most the application's ``client_max_size`` bytes.

    ``strict``: names that it does not have are refused, whatever the application does.

    Raises
    ------
    ApiError
        415 for a content type other than JSON's. One that is not given is taken for it. 400 as ``decode`` has it.
    web.HTTPRequestEntityTooLarge
        The body is larger than allowed.
    """
    given = http.headers.get(hdrs.CONTENT_TYPE, _JSON)
    if given != _JSON and http.content_type != _JSON:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The content type must be application/json, got {http.content_type}",
            code="unsupported_content_type",
        )
    return decode(decoder, await _read(http), strict=strict or http.app[STRICT])


async def _read(http: web.Request) -> bytes:
    """The body; mostly it has come in one piece with its headers."""
    content = http.content
    if not content.is_eof():
        if http.content_length is not None and http.content_length > http.client_max_size:
            raise web.HTTPRequestEntityTooLarge(http.client_max_size, http.content_length)
        return await http.read()
    body = content.read_nowait()
    if len(body) > http.client_max_size:
        raise web.HTTPRequestEntityTooLarge(http.client_max_size, len(body))
    return body
