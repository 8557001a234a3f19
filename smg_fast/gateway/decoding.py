"""Bodies become typed requests."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from .errors import ApiError, invalid

#: Bytes from which on a body is decoded without the garbage collector, which would look at what has come so far time
#: after time: a body of 16 MiB takes up to 0.1 s, one of millions of lists 0.3 s, and that five times as long.
_BIG = 256 << 10

Request = TypeVar("Request", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<message>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`")

#: Half of a pair of escapes that together are one character, at the end of a body: msgspec looks for the other half
#: further behind.
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}.{0,8}$", re.DOTALL)

_type_info = functools.cache(inspect.type_info)


def decode(decoder: msgspec.json.Decoder[Request], body: bytes, *, strict: bool = False) -> Request:
    """The request in a body.

    Raises
    ------
    ApiError
        400, for what is not JSON, for values of a wrong type, which it names, and if ``strict`` for names that the
        request does not have.
    """
    if not body:
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is empty; a JSON object is expected", code="invalid_json")
    pauses = len(body) >= _BIG and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        request = decoder.decode(body)
        if strict:
            _refuse_unknown_names(msgspec.json.decode(body), _type_info(type(request)))
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(str(error), body) from None
    except RecursionError:
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is nested too deeply", code="invalid_json") from None
    finally:
        if pauses:
            gc.enable()
    return request


def _not_json(reason: str, body: bytes) -> ApiError:
    if "surrogate" in reason or ("truncated" in reason and _HALF_A_PAIR.search(body[-20:])):
        reason = "a text has half of a surrogate pair, which is no character"
    return ApiError(HTTPStatus.BAD_REQUEST, f"The body is not valid JSON: {reason}", code="invalid_json")


def _wrong_type(text: str) -> ApiError:
    message, path = text, None
    if at := _AT.match(text):
        # Where msgspec has "[...]" for the key of an object, the object is what can be named.
        message, path = at["message"], at["path"].partition("[...]")[0] or None
    if missing := _MISSING.search(message):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        message = "missing, and required"
    return invalid(path, f"{path or 'The body'}: {message}")


def _refuse_unknown_names(value: Any, kind: inspect.Type) -> None:
    for path in _unknown_names(value, kind, ""):
        raise ApiError(
            HTTPStatus.BAD_REQUEST, f"{path}: unknown, and this server is strict", param=path, code="unknown_field"
        )


def _unknown_names(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """Paths of the names in a JSON value that its type does not have. Null is the same as nothing."""
    if isinstance(kind, inspect.Metadata):
        yield from _unknown_names(value, kind.type, path)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _unknown_names(value, option, path)
    elif isinstance(kind, inspect.ListType) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_names(item, kind.item_type, f"{path}[{index}]")
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            if name in fields:
                yield from _unknown_names(item, fields[name], where)
            elif item is not None:
                yield where
