"""Tokens that llama.cpp keeps to itself.

Its server sends text, and none that ends inside a character: of the tokens that spell an emoji it tells the last only,
with the text of all of them. How many it held back it does tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_CHARACTER = b"\xf0\x9f\x98"  # the beginning of an emoji


class Fragments:
    """The tokens that are no whole characters, by their bytes: the only ones that can have been held back.

    ``pieces`` are the bytes of every token.
    """

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._ids = {piece: id for id, piece in pieces.items() if piece.decode(errors="ignore").encode() != piece}
        self._longest = max(map(len, self._ids), default=0)
        self._by_text = {piece.decode(errors="replace"): id for piece, id in self._ids.items()}

    def before(self, id: int, text: str, count: int) -> list[int] | None:
        """So many tokens that make this text together with the one that came last; ``None`` if there are none.

        Of several ways the one with the longest first tokens is taken: it is the same text. Where the bytes were no
        text at all, and have come as replacement characters, the tokens are such as have the same ones.
        """
        data = text.encode().removesuffix(self._pieces.get(id, b""))
        if (ids := self._split(data, count)) is not None:
            return ids
        if count == 1 and (id_of_text := self._by_text.get(data.decode(errors="replace"))) is not None:
            return [id_of_text]
        parts = [self._ids.get(_NO_CHARACTER[at % 3 : at % 3 + 1]) for at in range(count)]
        return [part for part in parts if part is not None] if None not in parts else None

    def _split(self, data: bytes, count: int) -> list[int] | None:
        if not count:
            return None if data else []
        for size in range(min(len(data) - count + 1, self._longest), 0, -1):
            id = self._ids.get(data[:size])
            if id is not None and (rest := self._split(data[size:], count - 1)) is not None:
                return [id, *rest]
        return None
