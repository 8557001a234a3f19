"""An engine in a process of its own that says what is not for this gateway, once a line comes in, and ends.

Arguments: the handshake's address, its index, and the version of vLLM that it registers as; without one it does not
register. When it has ended, all it said has left it.
"""

from __future__ import annotations

import asyncio
import sys

from .engine import Row, ScriptedEngine, VLLMWire

#: What no wire has; a death notice; and a token of somebody else's request.
SAID = (b"\xc1", b"ENGINE_CORE_DEAD", VLLMWire().tick([Row("a", [9])]))


async def main(handshake: str, index: int, version: str | None = None) -> None:
    async with ScriptedEngine(handshake, index, wire=VLLMWire(version)) as engine:
        await engine.hello()
        if version is not None:
            await engine.register()
        await asyncio.to_thread(sys.stdin.readline)
        for message in SAID:
            await engine.output.send(message)
        engine.output.close(linger=-1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
