"""A gateway in a process of its own, which can be killed while its engines live on.

Arguments: the engines' family, the worker's URL, the handshake's address, and how many engines there are. When all are
ready it sends each one a long request, and prints a line once it has heard of all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from smg_fast._codec import Tokenizer
from smg_fast.engines import family
from smg_fast.transport import EngineClient, WorkerAddresses, worker_addresses

from .response import ask, ready

MODEL = Path(__file__).parents[2] / "smg_fast" / "embedded" / "model"


async def main(runtime: str, url: str, handshake: str, count: int) -> None:
    client = EngineClient(family(runtime), worker_addresses(url, handshake), engine_count=count)
    await client.start()
    await ready(client, count)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    asked = [
        await ask(client, tokenizer, f"earlier-{rank}", max_tokens=5000, stream=True, rank=rank)
        for rank in range(count)
    ]
    for response in asked:
        await response.first_chunk()
    print("all engines are at work", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await client.close()


@contextlib.asynccontextmanager
async def earlier_gateway(
    runtime: str, addresses: WorkerAddresses, count: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that has been started; killed at the end, if it has not ended before."""
    url = f"ipc://{addresses.input}".removesuffix("-in.sock")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.transport.gateway", runtime, url, addresses.handshake, str(count)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


async def at_work(program: asyncio.subprocess.Process) -> None:
    """Wait until all its engines work for it."""
    assert program.stdout is not None
    assert await asyncio.wait_for(program.stdout.readline(), 20)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
