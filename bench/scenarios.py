"""The loads that the benchmarks put on a gateway, by name."""

from __future__ import annotations

import msgspec

from bench.load import Load

_WORDS = "one two three four five six seven "


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A load, and the pace of the engine: ``tick_ms`` 0 lets it go as fast as the gateway reads.

    ``idle`` streams get their first token and then wait for the second: they are there for what they cost in memory.
    ``peers`` and ``floor`` say what is measured beside ours, where it is at hand.
    """

    streams: int
    tick_ms: float = 10.0
    tokens: int = 128
    stream: bool = True
    logprobs: bool = False
    idle: bool = False
    prompt_words: int = 56
    peers: bool = True
    floor: bool = False

    def load(self, model: str) -> Load:
        return Load(
            model=model,
            streams=self.streams,
            tokens=self.tokens,
            stream=self.stream,
            logprobs=self.logprobs,
            prompt=_WORDS * (self.prompt_words // len(_WORDS.split())),
        )


SCENARIOS: dict[str, Scenario] = {
    "paced-1": Scenario(streams=1, floor=True),
    "paced-64": Scenario(streams=64, floor=True),
    "paced-256": Scenario(streams=256, floor=True),
    "paced-1024": Scenario(streams=1024, floor=True),
    "paced-4096": Scenario(streams=4096, tick_ms=100, peers=False, floor=True),
    "paced-256-logprobs": Scenario(streams=256, logprobs=True),
    "unpaced-1": Scenario(streams=1, tick_ms=0),
    "unpaced-64": Scenario(streams=64, tick_ms=0),
    "unpaced-256": Scenario(streams=256, tick_ms=0),
    "unpaced-1024": Scenario(streams=1024, tick_ms=0),
    "unpaced-64-logprobs": Scenario(streams=64, tick_ms=0, logprobs=True),
    "unpaced-64-whole": Scenario(streams=64, tick_ms=0, stream=False),
    "unpaced-64-whole-logprobs": Scenario(streams=64, tick_ms=0, stream=False, logprobs=True),
    "first-token": Scenario(streams=1, tick_ms=0, tokens=4),
    "output-128": Scenario(streams=64, tick_ms=2, peers=False),
    "output-1024": Scenario(streams=64, tick_ms=2, tokens=1024, peers=False),
    "output-4096": Scenario(streams=64, tick_ms=2, tokens=4096, peers=False),
    "prompt-56": Scenario(streams=16, tokens=8),
    "prompt-497": Scenario(streams=16, tokens=8, prompt_words=497),
    "prompt-1995": Scenario(streams=16, tokens=8, prompt_words=1995),
    "idle-1024": Scenario(streams=1024, tick_ms=3000, idle=True),
    "idle-4096": Scenario(streams=4096, tick_ms=6000, idle=True, peers=False),
}
