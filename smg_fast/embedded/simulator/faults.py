"""What may go wrong with an engine, on request. Every fault counts ticks, so that a test can foretell it."""

from __future__ import annotations

from typing import Literal

import msgpack
import msgspec

Fault = Literal["die", "dead-frame", "silent", "malformed", "ragged"]
Failure = Literal["error", "abort", "repetition"]


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
    """Send one tick with a column that lacks its last row; on vLLM's wire one whose last row lacks its end."""
    fail_after: int | None = None
    """End every generation that is longer after so many ticks of its own, in a row without tokens."""
    fail_as: Failure = "error"
    """With this finish reason. Repetition is vLLM's alone."""
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
    """The message with a column, or a row, that is too short."""
    message = msgpack.unpackb(frames[0])
    columns = [element for element in message if isinstance(element, list)]
    if isinstance(columns[0][0], list):
        del columns[0][-1][1:]  # vLLM's rows
    else:
        columns[1].pop()
    return [msgpack.packb(message), *frames[1:]]
