"""Errors as a client of the OpenAI API expects them: a status, and one JSON shape for the body."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from ..prompts.errors import PromptError
from ..transport import EngineBusy, EngineError, EngineUnavailable

logger = logging.getLogger(__name__)

#: Seconds a client is told to wait for an engine.
RETRY_AFTER = 1

_MAX_MESSAGE = 1_000
#: As nginx has it. aiohttp finds nobody to send it to, and is content, where it would log an exception as our fault.
_CLIENT_GONE = 499

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ErrorDetail(msgspec.Struct, frozen=True):
    """``param`` is the path of the parameter at fault (``messages[0].content``); ``code`` a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class ApiError(Exception):
    """An answer other than success.

    ``type`` says whose fault it is; if left out it follows from the status: ``invalid_request_error`` below 500,
    else ``server_error``. ``headers`` are added to the answer's.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        if len(message) > _MAX_MESSAGE:
            message = f"{message[:_MAX_MESSAGE]}…"  # it quotes a client's value, of whatever size
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.detail = ErrorDetail(message, type or _type(status), param, code)

    @property
    def body(self) -> bytes:
        """``{"error": {...}}``"""
        return msgspec.json.encode(ErrorBody(self.detail))

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body, content_type="application/json", headers=self.headers)


def invalid(param: str | None, message: str) -> ApiError:
    """A 400 about one parameter."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code="invalid_value" if param else None)


def unavailable(message: str) -> ApiError:
    """A 503: no engine can take the request now, a later try may succeed."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        code="engine_unavailable",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def malformed(what: str, error: BaseException) -> ApiError:
    """A 400 about bytes that are no HTTP, with what aiohttp says of them."""
    why = error.message if isinstance(error, HttpProcessingError) else str(error)
    # In one line, without the mark under what is quoted.
    why = " ".join(word for word in why.split() if word != "^")
    return ApiError(HTTPStatus.BAD_REQUEST, f"{what}: {why}", code="malformed_request")


def engine_failure(error: EngineError) -> ApiError:
    """What a client is told of an engine's failure."""
    if isinstance(error, EngineBusy):
        return ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            str(error),
            code="engine_busy",
            headers={"Retry-After": str(RETRY_AFTER)},
        )
    if isinstance(error, EngineUnavailable):
        return unavailable(str(error))
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), code="engine_failed")


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever goes wrong before the first byte of an answer into an ``ErrorBody``."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _http_error(request, error).response()
    except web.RequestPayloadError as error:
        return malformed("The body cannot be read", error.__cause__ or error).response()
    except ConnectionError:
        return web.Response(status=_CLIENT_GONE)  # to nobody
    except Exception as error:  # the outermost border: what nobody foresaw is logged by ``told``
        if request.writer.output_size > 0:
            raise  # an answer has begun: nothing but closing the connection is left, as ``EventStream`` does itself
        return told(error, request.method, request.path).response()


def told(error: Exception, method: str, path: str) -> ApiError:
    """What a client is told of a request that has failed; what nobody foresaw is logged, and becomes a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return engine_failure(error)
    if isinstance(error, PromptError):
        return invalid(error.param or "messages", str(error))
    logger.error("%s %s failed", method, path, exc_info=error)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "An internal error occurred", code="internal_error")


def quiet_malformed_requests() -> None:
    """Keep what is no HTTP out of the log, where aiohttp would put a traceback. Its sender is told all the same."""
    logging.getLogger("aiohttp.server").addFilter(_is_no_malformed_request)


def _is_no_malformed_request(record: logging.LogRecord) -> bool:
    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))


def _type(status: int) -> str:
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def _http_error(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals."""
    if isinstance(error, web.HTTPNotFound):
        return ApiError(error.status, f"Unknown path: {request.method} {request.path}", code="unknown_path")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.path} does not allow {request.method}, only {allowed}"
        return ApiError(error.status, message, code="method_not_allowed", headers={"Allow": allowed})
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"The body is larger than the limit of {request.client_max_size} bytes"
        return ApiError(error.status, message, code="body_too_large")
    return ApiError(error.status, error.reason)
