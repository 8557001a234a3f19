"""Which fields vLLM's positional structs have, version by version: ``layouts.json``, a struct where it changes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("layouts.json")


_NAMES = {
    "request": "EngineCoreRequest",
    "output": "EngineCoreOutput",
    "message": "EngineCoreOutputs",
    "registration": "EngineCoreReadyResponse",
}


class _Changes(msgspec.Struct, frozen=True, rename=_NAMES):
    request: tuple[str, ...] | None = None
    output: tuple[str, ...] | None = None
    message: tuple[str, ...] | None = None
    registration: tuple[str, ...] | None = None


class Layout(msgspec.Struct, frozen=True):
    """Names of the elements of each struct, in their order. Those of the registration are keys of a map."""

    version: str
    request: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    registration: tuple[str, ...] = ()


@cache
def known() -> tuple[Layout, ...]:
    """Every layout, the oldest first."""
    layouts: list[Layout] = []
    layout = Layout("")
    for version, changes in msgspec.json.decode(_FILE.read_bytes(), type=dict[str, _Changes]).items():
        changed = {name: fields for name, fields in msgspec.structs.asdict(changes).items() if fields is not None}
        layout = msgspec.structs.replace(layout, version=version, **changed)
        layouts.append(layout)
    return tuple(layouts)


def layout_of(version: str) -> Layout:
    """The layout of a version: of the newest minor release that is not newer.

    Raises
    ------
    ValueError
        For what is no version, and one before all that are known.
    """
    release = _release(version)
    layouts = [layout for layout in known() if _release(layout.version) <= release]
    if not layouts:
        raise ValueError(f"vLLM {version} is older than {known()[0].version}, the oldest whose wire is known")
    return layouts[-1]


def _release(version: str) -> tuple[int, int]:
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts is None:
        raise ValueError(f"{version!r} is not a version of vLLM, such as 0.32.0")
    return int(parts[1]), int(parts[2])
