"""What models and workers may be called: names that can stand in a URL's path, a log, and a line of a terminal."""

from __future__ import annotations

#: Characters of a name or a label.
MAX_LENGTH = 256

#: They end the path of a URL, or mean something else in it.
_NOT_IN_A_PATH = "?#%\\"


class UnfitNameError(ValueError):
    """The text says what is wrong with which name, and not what it is the name of."""


def check_model_name(name: str) -> None:
    """Raises ``UnfitNameError`` for one that ``/v1/models/NAME`` would not lead to."""
    if not name.strip() or len(name) > MAX_LENGTH:
        raise UnfitNameError(f"a name must have 1 to {MAX_LENGTH} characters, and not only spaces, got {name!r}")
    check_path(name)
    for part in name.split("/"):
        if part in (".", ".."):
            raise UnfitNameError(f"{part!r} between slashes means another path, got {name!r}")


def check_label(text: str) -> None:
    """Raises ``UnfitNameError``. ``text`` is a label's name, or what it says."""
    if len(text) > MAX_LENGTH:
        raise UnfitNameError(f"a text must have at most {MAX_LENGTH} characters, got {len(text)}: {text!r}")
    _check_printable(text)


def check_path(text: str) -> None:
    """Raises ``UnfitNameError`` for what cannot be a URL's path as it is."""
    _check_printable(text)
    for character in text:
        if character in _NOT_IN_A_PATH:
            raise UnfitNameError(f"the characters {' '.join(_NOT_IN_A_PATH)} cannot be in it, got {text!r}")


def _check_printable(text: str) -> None:
    for character in text:
        if not character.isprintable():
            raise UnfitNameError(f"all characters must be printable, and {character!r} is not, got {text!r}")
