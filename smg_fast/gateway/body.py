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
    """The typed request in a body.

    ``strict``: names that it does not have are refused, whatever the application does.

    Raises as ``read_body`` and ``decode`` do.
    """
    return decode(decoder, await read_body(http), strict=strict or http.app[STRICT])


async def read_body(http: web.Request) -> bytes:
    """A body of at most the application's ``client_max_size`` bytes, as JSON.

    Raises
    ------
    ApiError
        415 for a content type other than JSON's. One that is not given is taken for it.
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
    if http.content_length is not None and http.content_length > http.client_max_size:
        raise web.HTTPRequestEntityTooLarge(http.client_max_size, http.content_length)
    return await http.read()
