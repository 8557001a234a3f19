"""Bodies of requests."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from .errors import ApiError


async def read_body(request: web.Request) -> bytes:
    """The whole body, of at most the application's ``client_max_size`` bytes.

    Raises
    ------
    ApiError
        415 for a content type other than JSON's. One that is not given is taken for it.
    web.HTTPRequestEntityTooLarge
        The body is larger than allowed.
    """
    if "Content-Type" in request.headers and request.content_type != "application/json":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The content type must be application/json, got {request.content_type}",
            code="unsupported_content_type",
        )
    if request.content_length is not None and request.content_length > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length)
    return await request.read()
