"""Standard error, as something that people look at."""

from __future__ import annotations

import os
import re
import sys
from io import TextIOBase

_ERASE = "\r\x1b[K"
#: Of a terminal that does not say.
_COLUMNS = 80
#: What engines write to colour their lines, or to move the cursor.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-_])")


class Terminal(TextIOBase):
    """Standard error, with a last line that can be rewritten where it is a terminal.

    Whatever is written pushes that line on; it is there again with the next ``show``.
    """

    def __init__(self) -> None:
        self._shown = False
        self.rewrites = sys.stderr.isatty()

    def write(self, text: str) -> int:
        """Write text as it is."""
        self.erase()
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def show(self, text: str) -> None:
        """Put ``text``, as much of it as there is room for, in the place of what was shown before."""
        text = "".join(character for character in _ESCAPES.sub("", text) if character.isprintable())
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        sys.stderr.write(_ERASE + text[: columns - 1])
        sys.stderr.flush()
        self._shown = True

    def erase(self) -> None:
        """Show nothing."""
        if self._shown:
            self._shown = False
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
