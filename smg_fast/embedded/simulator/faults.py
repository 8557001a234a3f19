"""What may go wrong with an engine, on request. Every fault counts ticks, so that a test can foretell it."""

from __future__ import annotations

from typing import Literal

import msgpack
import msgspec

Fault = Literal["die", "dead-frame", "silent", "malformed", "ragged"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """``after`` is a number of good ticks: the next one fails. None: never."""

    die_after: int | None = None
    """SIGKILL itself: nothing is said."""
    dead_frame_after: int | None = None
    """Say that the engine is dead, and exit."""
    silent_after: int | None = None
    """Go on reading, and never say anything again."""
    malformed_after: int | None = None
    """Send the first half of a tick."""
    malformed_count: int = 1
    """So many ticks in a row."""
    ragged_after: int | None = None
    """Send one tick with a column that lacks its last row."""
    slow_start: float = 0.0
    """Seconds before the handshake."""
    slow_load: float = 0.0
    """Seconds between INIT and READY."""

    def at(self, ticks: int) -> Fault | None:
        """What is wrong with the tick that comes after ``ticks`` others."""
        if self.die_after is not None and ticks >= self.die_after:
            return "die"
        if self.dead_frame_after is not None and ticks >= self.dead_frame_after:
            return "dead-frame"
        if self.silent_after is not None and ticks >= self.silent_after:
            return "silent"
        if self.malformed_after is not None and 0 <= ticks - self.malformed_after < self.malformed_count:
            return "malformed"
        if ticks == self.ragged_after:
            return "ragged"
        return None


def malformed(frames: list[bytes]) -> list[bytes]:
    """The message, cut in the middle."""
    return [frames[0][: len(frames[0]) // 2], *frames[1:]]


def ragged(frames: list[bytes]) -> list[bytes]:
    """The message, its second column without the last row."""
    message = msgpack.unpackb(frames[0])
    columns = [element for element in message if isinstance(element, list)]
    columns[1].pop()
    return [msgpack.packb(message), *frames[1:]]
