"""What is left of workers that have come and gone: nothing."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import msgspec

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.gateway.server import GatewayServer
from smg_fast.settings import GatewaySettings
from tests.transport.engine import ScriptedEngine

from .support import PATIENCE, free_port

#: Registrations and removals after which nothing more may grow, and all of them.
WARM, ALL = 100, 1000
#: Of these, one in so many has an engine, is called off at once, or is the only one of its model, which is loaded then.
ONE_IN = 10
#: Bytes in use that may come and go: a model is some 4 MB.
NOISE = 4 << 20


class _Mallinfo2(ctypes.Structure):
    """malloc.h of glibc, since 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Mallinfo2


class Held(msgspec.Struct, frozen=True):
    """What the process has; of memory what is in use: what allocators keep beside that is their affair."""

    tasks: int
    descriptors: int
    threads: int
    objects: int
    memory: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        allocated = _mallinfo2()
        return cls(
            tasks=len(asyncio.all_tasks()),
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
            objects=len(gc.get_objects()),
            memory=allocated.uordblks + allocated.hblkhd,
        )


async def start_default_executor(threads: int = 2) -> None:
    """A default executor that has all of its threads: they start only when as many calls are made at once."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
    together = threading.Barrier(threads)
    await asyncio.gather(*(asyncio.to_thread(together.wait, PATIENCE) for _ in range(threads)))


async def test_a_thousand_registrations_and_removals_leave_nothing() -> None:
    await start_default_executor()
    server = GatewayServer(GatewaySettings(port=0), [])
    await server.start()
    registry = server.gateway.registry
    with tempfile.TemporaryDirectory(prefix="smg-") as directory:
        async with aiohttp.ClientSession() as session:

            async def add(name: str) -> str:
                body = {
                    "url": f"ipc://{directory}/{name}",
                    "runtime_type": "tokenspeed",
                    "model": str(MODEL_DIRECTORY),
                    "served_model_name": f"model-{name}",
                    "zmq_handshake_address": f"tcp://127.0.0.1:{free_port()}",
                    "labels": {"number": name},
                }
                async with session.post(f"{server.url}/workers", json=body) as response:
                    assert response.status == 202, await response.text()
                    id: str = (await response.json())["id"]
                    return id

            async def reach(id: str, state: str) -> None:
                await asyncio.wait_for(registry.get(id).wait_for(lambda now: now == state), PATIENCE)

            async def remove(id: str) -> None:
                worker = registry.get(id)
                async with session.delete(f"{server.url}/workers/{id}") as response:
                    assert response.status == 202
                await asyncio.wait_for(worker.wait_for(lambda state: state == "removed"), PATIENCE)

            async def come_and_go(number: int) -> None:
                id = await add(str(number))
                if number % ONE_IN == 1:
                    await remove(id)
                    return
                await reach(id, "connecting")
                if number % ONE_IN == 2:
                    async with await ScriptedEngine.dial(registry.get(id).client.addresses.handshake):
                        await reach(id, "ready")
                        await remove(id)
                    return
                await remove(id)

            holder: str | None = None
            for number in range(ALL):
                if number == WARM:
                    warm = Held.now()
                if number % ONE_IN == 3 and holder is not None:
                    await remove(holder)
                    holder = None
                await come_and_go(number)
                if holder is None:
                    holder = await add("holder")
                    await reach(holder, "connecting")
            held = Held.now()
            assert len(registry.workers) == 1
    assert (held.tasks, held.descriptors, held.threads) == (warm.tasks, warm.descriptors, warm.threads)
    # Less than one object for every registration.
    assert held.objects - warm.objects < ALL - WARM
    assert held.memory - warm.memory < NOISE
    await server.stop()
    assert len(registry.workers) == 0
