"""The metadata of a GGUF file: what stands before the tensors.

Layout after the GGUF specification (ggml, ``docs/gguf.md``), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelDirectoryError

Value = int | float | bool | str | list[str] | list[int] | list[float]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9

#: By the number of a scalar's type: its format, to ``struct`` and to ``array``.
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Metadata:
    """Values by key. Each reader returns ``None`` for a key that is not there, and refuses a value of another type."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self._values = values

    @classmethod
    def read(cls, path: Path) -> Metadata:
        """Raises ``ModelDirectoryError`` for a file that cannot be read or is no GGUF file."""
        try:
            with _mapped(path) as data:
                return cls(path, dict(_Reader(data).pairs()))
        except OSError as error:
            raise ModelDirectoryError(f"{path}: {error.strerror}") from None
        except (_FormatError, UnicodeDecodeError) as error:
            raise ModelDirectoryError(f"{path}: not a GGUF file that can be read: {error}") from None

    def string(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._mismatch(key, "a string")

    def boolean(self, key: str) -> bool | None:
        value = self._values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._mismatch(key, "a boolean")

    def integer(self, key: str) -> int | None:
        value = self._values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._mismatch(key, "an integer")

    # Of lists mypy does not see that all their elements have been looked at.

    def strings(self, key: str) -> list[str] | None:
        value = self._values.get(key)
        if value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            return value  # type: ignore[return-value]
        raise self._mismatch(key, "strings")

    def integers(self, key: str) -> list[int] | None:
        value = self._values.get(key)
        if value is None or (isinstance(value, list) and all(isinstance(item, int) for item in value)):
            return value  # type: ignore[return-value]
        raise self._mismatch(key, "integers")

    def numbers(self, key: str) -> list[float] | None:
        value = self._values.get(key)
        if value is None or (isinstance(value, list) and not any(isinstance(item, str) for item in value)):
            return value  # type: ignore[return-value]
        raise self._mismatch(key, "numbers")

    def _mismatch(self, key: str, expected: str) -> ModelDirectoryError:
        return ModelDirectoryError(f"{self.path}: {key} is not {expected}")


class _FormatError(ValueError):
    pass


@contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            yield b""  # an empty file cannot be mapped
            return
        with data:
            yield data


class _Reader:
    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def pairs(self) -> Iterator[tuple[str, Value]]:
        if self._bytes(4) != _MAGIC:
            raise _FormatError("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise _FormatError(f"version {version}, known are {' and '.join(map(str, _VERSIONS))}")
        self._number("Q")  # tensors
        for _ in range(int(self._number("Q"))):
            key = self._string()
            yield key, self._value(int(self._number("I")))

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(self._format(kind))
        kind, count = int(self._number("I")), int(self._number("Q"))
        if kind == _STRING:
            # The shortest string takes the eight bytes of its length.
            self._check(count * 8)
            return [self._string() for _ in range(count)]
        if kind == _ARRAY:
            raise _FormatError("an array of arrays")
        code = self._format(kind)
        data = self._bytes(count * struct.calcsize(f"<{code}"))
        items: list[int] | list[float] = array("B" if kind == _BOOL else code, data).tolist()
        return items

    def _format(self, kind: int) -> str:
        try:
            return _FORMATS[kind]
        except KeyError:
            raise _FormatError(f"a value of unknown type {kind} at byte {self._at}") from None

    def _number(self, code: str) -> int | float | bool:
        layout = f"<{code}"
        self._check(struct.calcsize(layout))
        value: int | float | bool = struct.unpack_from(layout, self._data, self._at)[0]
        self._at += struct.calcsize(layout)
        return value

    def _string(self) -> str:
        return self._bytes(int(self._number("Q"))).decode()

    def _bytes(self, count: int) -> bytes:
        self._check(count)
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def _check(self, count: int) -> None:
        if count > self._size - self._at:
            raise _FormatError(f"it ends at byte {self._size}, in the middle of its metadata")
