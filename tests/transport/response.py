"""A response of the gateway's side: what reaches the sink, and how a request is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from smg_fast._codec import Output, Prompt, ResponseFormat, TextOptions, TokenIds, Tokenizer
from smg_fast.engines import GenerationRequest, SamplingParams
from smg_fast.transport import EngineBusy, EngineClient, EngineError

from .engine import ScriptedEngine


class Response:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.key = 0
        self.chunks: list[bytes] = []
        self.data: list[Output] = []
        self.error: EngineError | None = None
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def write(self, chunk: bytes) -> None:
        assert not self.ended.is_set()
        self.chunks.append(chunk)
        self.begun.set()

    def end(self, data: bytes | list[Output]) -> None:
        assert not self.ended.is_set()
        if isinstance(data, list):
            self.data = data
        self.ended.set()

    def fail(self, error: EngineError, *, begun: bool) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    async def outputs(self) -> list[Output]:
        """What the generations became. Raises ``EngineError``."""
        await asyncio.wait_for(self.ended.wait(), 10)
        if self.error is not None:
            raise self.error
        return self.data

    async def first_chunk(self) -> bytes:
        await asyncio.wait_for(self.begun.wait(), 10)
        return self.chunks[0]


async def ask(
    client: EngineClient,
    tokenizer: Tokenizer,
    *rids: str,
    max_tokens: int = 16,
    stop: Sequence[str] = (),
    stream: bool = False,
    rank: int | None = None,
) -> Response:
    """Send one generation per request id; with ``stream`` its events are written as they come."""
    response = Response()
    outputs = ResponseFormat.outputs()
    events = ResponseFormat.completion(id="c", model="m", created=0, stream=True)
    response.key = await client.generate(
        response,
        format=events if stream else outputs,
        options=TextOptions(stop=stop),
        tokenizer=tokenizer,
        prompts=[Prompt(TokenIds([1, 2, 3]))],
        requests=[
            GenerationRequest(
                rid=rid,
                prompt_ids=TokenIds([1, 2, 3]),
                sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                data_parallel_rank=rank,
            )
            for rid in rids
        ],
    )
    return response


async def fill(client: EngineClient, tokenizer: Tokenizer, rank: int | None = None) -> list[Response]:
    """Send until an engine takes no more."""
    responses: list[Response] = []
    try:
        while len(responses) < 20_000:
            responses.append(await ask(client, tokenizer, f"fill-{len(responses)}", rank=rank))
    except EngineBusy:
        return responses
    raise AssertionError("nothing bounds what waits for an engine")


async def nothing_for(client: EngineClient, *engines: ScriptedEngine) -> None:
    """They have read all that they were sent: what is sent now is the next that they get."""
    for engine in engines:
        last = [b"nothing else"]
        client._outbox.send(client.engines[engine.index], last)
        assert await engine.input.recv_multipart() == last


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what no event announces."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 10)


async def ready(client: EngineClient, count: int) -> None:
    """Wait until exactly this many engines are ready."""
    await eventually(lambda: len(client.ready_engines) == count)
