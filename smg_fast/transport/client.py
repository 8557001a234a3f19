"""One worker's engines: requests go out, output comes in, and whoever dies is noticed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

from .._codec import (
    Connection,
    Dispatcher,
    Outcome,
    Output,
    Prompt,
    Protocol,
    ReadyResponse,
    ResponseFormat,
    TextOptions,
    Tokenizer,
)
from ..engines import EngineFamily, GenerationRequest, UnsupportedEngineError
from .addresses import WorkerAddresses
from .engine import Engine, EngineGroup, EngineState, EngineStatus
from .errors import EngineBusy, EngineError, EngineFailed, EngineUnavailable
from .handshake import HandshakeListener
from .monitor import ConnectionMonitor, peer_of
from .outbox import RETRY_INTERVAL, Outbox, UnreachableError
from .process import process_of
from .reader import Message, SocketReader
from .registration import Registration, RegistrationListener
from .share import Share
from .silence import SilenceWatch
from .sink import Sink
from .sockets import WorkerSockets
from .survivors import Roster, SurvivorWatch
from .waves import WaveTracker

logger = logging.getLogger(__name__)

#: The one message of an engine that is about to die.
_DEATH_NOTICE = b"ENGINE_CORE_DEAD"
#: Messages in a row that cannot be read, after which an engine is given up.
_MAX_REFUSALS = 3
#: Generations nobody here knows of that engines are told to stop when they come.
_MAX_STRAYS = 8192
#: No request has this id: to be told to stop it means nothing.
_NO_REQUEST = "none"
_LOG_LEVELS = {EngineState.READY: logging.INFO, EngineState.STARTING: logging.INFO, EngineState.REFUSED: logging.ERROR}

ClientState = Literal["closed", "connecting", "ready", "unhealthy", "draining"]


class EngineClient:
    """The frontend of one worker: sockets, handshake, liveness, and the generations in flight.

    Everything happens in one event loop. Engines may come before or after the gateway, die and come back, in any order.

    Parameters
    ----------
    family, addresses
        What the engines speak, and where.
    engine_count : int
        Engines that share the sockets; their identities are 0 to ``engine_count - 1``.
    share : Share, optional
        Which of them serve this process, if there are others; by default all do.
    silence_timeout : float
        Seconds an engine with generations in flight may say nothing before they fail; 0: for ever.
    send_timeout : float
        Seconds a request may wait for room in an engine's queue.
    on_change : callable, optional
        Called after an engine has come into another state.
    """

    def __init__(
        self,
        family: EngineFamily,
        addresses: WorkerAddresses,
        *,
        engine_count: int = 1,
        share: Share | None = None,
        silence_timeout: float = 300.0,
        send_timeout: float = 1.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.family = family
        self.addresses = addresses
        self._share = share or Share.alone(engine_count)
        self._client_index = self._share.client_index
        self._own_addresses = addresses.of_process(self._share.process)
        self._silence_timeout = silence_timeout
        self._send_timeout = send_timeout
        self._on_change = on_change
        self._dispatcher = Dispatcher()
        self._group = EngineGroup(self._share)
        self._flights: dict[str, Engine] = {}
        #: Generations that nobody here knows, seen when not every engine could be told to stop them.
        self._strays: deque[str] = deque(maxlen=_MAX_STRAYS)
        self._protocol: Protocol | None = None
        self._ready = asyncio.Event()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._sockets: WorkerSockets | None = None

    # --- life ---

    async def start(self) -> None:
        """Bind the sockets; engines may come any time after. Raises ``BindError``."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets = WorkerSockets(self._own_addresses, handshake=self._share.answers_handshake)
        count = len(self.engines)
        self._handshake = (
            None
            if sockets.handshake is None
            else HandshakeListener(sockets.handshake, self.addresses, self._share.clients, self._on_hello)
        )
        self._roster = Roster(self._own_addresses)
        self._monitor = ConnectionMonitor(sockets.monitor, self._on_connect, self._on_disconnect)
        self._input = RegistrationListener(sockets.input, count, self._monitor, self._on_registration)
        self._outbox = Outbox(sockets.input, self.family.encode_abort, self._on_unreachable, self._input.check)
        self._survivors = SurvivorWatch(
            self.engines,
            self._roster,
            self._monitor,
            self._outbox,
            self.family.encode_abort([_NO_REQUEST]),
            self._on_registration,
        )
        self._waves = WaveTracker(self.engines, self._outbox)
        self._output = SocketReader(sockets.output, self._on_output)
        self._silence = SilenceWatch(
            self.engines, self._silence_timeout, self._on_silence, self._on_stopped, self._on_continued
        )

    async def drain(self) -> None:
        """Take no more requests from now on, and return when none is in flight. The caller bounds it, and closes.

        There is no way back, whether or not this is cancelled.
        """
        self._draining = True
        self._ready.clear()
        await self._idle.wait()

    async def close(self, *, for_good: bool = True) -> None:
        """Fail what is in flight, tell the engines to stop it, and remove the sockets. Closing twice is fine.

        Unless it is ``for_good``, engines that live on are known to the next client at these addresses.
        """
        sockets = self._sockets
        if sockets is None:
            return
        self._fail(list(self._flights), EngineUnavailable, "the gateway closes this worker")
        self._sockets = None
        self._ready.clear()
        if self._handshake is not None:
            self._handshake.stop()
        for part in (
            self._monitor,
            self._input,
            self._output,
            self._outbox,
            self._silence,
            self._survivors,
        ):
            part.stop()
        sockets.close()
        if self._share.is_alone:
            self._roster.close(for_good=for_good)

    @property
    def engines(self) -> tuple[Engine, ...]:
        return self._group.engines

    @property
    def engine_count(self) -> int:
        """Engines that share the sockets, whether they are there or not."""
        return len(self.engines)

    @property
    def shared_out(self) -> bool:
        """Whether some of the engines serve another gateway process, and not this one."""
        return self._share.is_partial

    @property
    def ready_engines(self) -> tuple[Engine, ...]:
        """Engines that take requests."""
        if self._sockets is None or self._draining:
            return ()
        return tuple(engine for engine in self.engines if engine.ready)

    @property
    def ready(self) -> bool:
        """Whether at least one engine takes requests."""
        return self._ready.is_set()

    @property
    def accepting(self) -> bool:
        """Whether ``generate`` would try: an engine is ready, or a silent one is due for a trial."""
        return self._sockets is not None and not self._draining and self._group.accepts()

    @property
    def pressure(self) -> float:
        """That of its least loaded ready engine; infinite with none. See ``load.pressure``."""
        return min((engine.pressure for engine in self.ready_engines), default=math.inf)

    @property
    def engine_statuses(self) -> list[EngineStatus]:
        """Every engine, for the operator."""
        return [engine.status for engine in self.engines]

    @property
    def state(self) -> ClientState:
        """``connecting`` until the first engine registers, then ``ready`` or, with none of use, ``unhealthy``.

        ``draining`` and ``closed`` are for good.
        """
        if self._sockets is None:
            return "closed"
        if self._draining:
            return "draining"
        if self.ready:
            return "ready"
        refused = any(engine.state is EngineState.REFUSED for engine in self.engines)
        return "unhealthy" if refused or self.ready_response is not None else "connecting"

    @property
    def reason(self) -> str:
        """The state of every engine in words."""
        if self._sockets is None:
            return "the worker is closed"
        if self._draining:
            return "the worker takes no more requests"
        return "; ".join(f"engine {engine.index} {engine.reason}" for engine in self.engines)

    @property
    def ready_response(self) -> ReadyResponse | None:
        """What a ready engine told of itself, or one that was. ``None``: none of those that registered last was."""
        known: Engine | None = None
        for engine in self._group.engines:
            if engine.ready:
                return engine.ready_response
            if known is None and engine.protocol is not None:
                known = engine
        return None if known is None else known.ready_response

    @property
    def in_flight(self) -> int:
        """Generations in flight."""
        return len(self._dispatcher)

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Return when at least one engine is ready. Raises ``EngineUnavailable`` after ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._ready.wait(), timeout)
        except asyncio.TimeoutError:
            raise EngineUnavailable(self.reason) from None

    # --- requests ---

    async def generate(
        self,
        sink: Sink,
        *,
        format: ResponseFormat,
        options: TextOptions,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        requests: Sequence[GenerationRequest],
        connection: Connection | None = None,
    ) -> int:
        """Send the generations of one response, each to its ``data_parallel_rank``, or the engine with the least to do.

        Returns the response's key. From then on the response is the sink's, whatever becomes of it. If this raises, or
        is cancelled, nothing is left of it here or on an engine. Each prompt has as many of the requests as the others:
        the first are the first one's. A stream's events go to ``connection``, if there is one, see ``Dispatcher.open``.

        Raises
        ------
        EngineUnavailable
            No engine is ready, or the one asked for is not, or one went away as the request was sent.
        EngineBusy
            An engine took no message for ``send_timeout`` seconds.
        ValueError
            The family cannot honour a request, there is no engine of its rank, a request id is in flight already, or
            the requests do not divide by the prompts.
        """
        protocol = self._check_accepting(requests)
        wave = self._waves.current
        encode, client = self.family.encode_request, self._client_index
        messages = [(request.rid, encode(request, protocol, wave=wave, client=client)) for request in requests]
        rids = [request.rid for request in requests]
        key = self._dispatcher.open(sink, format, tokenizer, options, rids, prompts, connection)
        if len(rids) > 1:  # until all are sent it may come to nothing, and then not a byte may have gone out
            self.pause(key)
        for request in requests:
            self._reserve(request)
        sent = 0
        lost: Engine | None = None
        try:
            for rid, frames in messages:
                if not await self._send(rid, frames):
                    break
                sent += 1
        except UnreachableError as error:
            lost = error.engine
            raise EngineUnavailable(str(error)) from None
        finally:
            if sent < len(rids):
                for rid in rids[sent:]:
                    self._release(rid)
                self.cancel(key)
            if lost is not None:
                self._on_unreachable(lost)
        if len(rids) > 1:
            gathered = self.resume(key)
            if gathered is not None:
                sink.write(gathered)
        return key

    def cancel(self, key: int) -> None:
        """Forget a response whose client is gone, and stop its generations. An unknown key is passed over."""
        unfinished = self._dispatcher.cancel(key)
        if not unfinished:
            return
        rids = [rid for rid in unfinished if rid in self._flights]
        self._abort(rids)
        for rid in rids:
            self._release(rid)

    def pause(self, key: int) -> None:
        """Write nothing to a slow reader's sink until ``resume``; its output accumulates."""
        self._dispatcher.pause(key)

    def resume(self, key: int) -> bytes | None:
        """End the pause; returns what there is to write, if anything is."""
        return self._dispatcher.resume(key)

    def _check_accepting(self, requests: Sequence[GenerationRequest]) -> Protocol:
        """The wire that the engines speak, if those that the requests need take any."""
        if not self.accepting or self._protocol is None:
            raise EngineUnavailable(self.reason)
        for rank in {request.data_parallel_rank for request in requests if request.data_parallel_rank is not None}:
            if not 0 <= rank < self.engine_count:
                raise ValueError(f"there is no engine {rank}, only 0 to {self.engine_count - 1}")
            if not self._group.accepts(rank):
                raise EngineUnavailable(f"engine {rank} {self.engines[rank].reason}")
        return self._protocol

    def _reserve(self, request: GenerationRequest) -> None:
        engine = self._group.least_loaded(request.data_parallel_rank)
        engine.in_flight += 1
        self._flights[request.rid] = engine
        self._idle.clear()
        if engine.in_flight == 1:
            self._silence.begin(engine)

    def _release(self, rid: str) -> None:
        engine = self._flights.pop(rid, None)
        if engine is not None:
            engine.in_flight -= 1
            if not self._flights:
                self._idle.set()

    async def _send(self, rid: str, frames: list[bytes]) -> bool:
        """Send to the engine reserved for it, within the bound.

        ``False``: the response has ended meanwhile; while this or a sibling waited, an engine died.
        """
        deadline = 0.0
        while True:
            engine = self._flights.get(rid)
            if engine is None:
                return False
            if self._outbox.send(engine, frames):
                self._waves.on_request()
                return True
            now = self._loop.time()
            deadline = deadline or now + self._send_timeout
            if now >= deadline:
                raise EngineBusy(f"engine {engine.index} has taken no request for {self._send_timeout:g} s")
            await asyncio.sleep(RETRY_INTERVAL)

    # --- output ---

    def _on_output(self, messages: list[Message]) -> None:
        messages = self._legible(messages)
        while messages and self._protocol is not None:
            outcome = self._dispatcher.feed(self._protocol, [[frame.bytes for frame in frames] for frames in messages])
            self._on_outcome(outcome, messages[: outcome.consumed])
            messages = messages[outcome.consumed :]

    def _on_outcome(self, outcome: Outcome, messages: list[Message]) -> None:
        if not outcome.quiet:
            self._on_news(outcome)
        # After it: what has ended is not in flight any more, and an engine does not count it.
        for load in outcome.loads:
            self._group.on_load(load)
        refused = messages.pop() if outcome.refused is not None else None
        now = self._loop.time()
        for engine in self._senders(messages):
            engine.heard = now
            engine.refusals = 0
            if engine.state is EngineState.SILENT and engine.reachable:
                self._set_state(engine, EngineState.READY)
        if outcome.engine_dead:
            notices = [frames for frames in messages if [frame.bytes for frame in frames] == [_DEATH_NOTICE]]
            for engine in self._senders(notices):
                self._lose(engine, "has died")
        if refused is not None:
            self._on_refused(self._senders([refused]), outcome.refused)

    def _on_news(self, outcome: Outcome) -> None:
        self._deliver(outcome, EngineFailed)
        if outcome.aborts:
            self._abort(outcome.aborts)
        for rid in outcome.finished:
            self._release(rid)
        for wave in outcome.waves:
            self._waves.on_wave(wave)
        for utility in outcome.utilities:
            result = "succeeded" if utility.failure is None else f"failed: {utility.failure}"
            logger.warning("a utility call that nobody here made, %d, has %s", utility.call_id, result)

    def _legible(self, messages: list[Message]) -> list[Message]:
        """Without those of whoever cannot be serving, or is refused: they may be of another wire."""
        if len(self._group.engines) == 1:  # whose they are is no question then
            return messages if self._group.engines[0].protocol is self._protocol else []
        return [frames for frames in messages if self._senders([frames])]

    def _senders(self, messages: Sequence[Message]) -> list[Engine]:
        """Engines that some messages came from; all that come into question where it cannot be told."""
        among: Sequence[Engine] = self._group.engines if messages else ()
        if len(among) > 1:
            peers = {peer_of(frame) for frame, *_ in messages}
            if self.family.one_process or peers <= {engine.peer for engine in self.engines}:
                among = self._group.of_peers(peers)
        return [engine for engine in among if engine.protocol is self._protocol]

    def _deliver(self, outcome: Outcome, error: type[EngineError]) -> None:
        """Write what there is to write. ``error`` is what responses that end with one fail with."""
        for sink, chunk in cast("list[tuple[Sink, bytes]]", outcome.chunks):
            sink.write(chunk)
        for sink, data, message in cast("list[tuple[Sink, bytes | list[Output], str | None]]", outcome.ended):
            if message is None:
                sink.end(data)
            else:
                sink.fail(error(message), begun=data is not None)

    def _on_refused(self, senders: Sequence[Engine], why: str | None) -> None:
        """What such a message held is lost, and with it whatever it was about: any generation of its engine."""
        names = " or ".join(f"engine {engine.index}" for engine in senders)
        logger.error("%s sent a message that cannot be read: %s", names, why)
        rids = [rid for rid, engine in self._flights.items() if engine in senders]
        self._fail(rids, EngineFailed, "the engine sent a message that cannot be read")
        for engine in senders:
            engine.refusals += 1
            if engine.refusals >= _MAX_REFUSALS:
                self._lose(engine, f"has sent {_MAX_REFUSALS} messages in a row that cannot be read")

    def _fail(self, rids: Sequence[str], error: type[EngineError], message: str) -> None:
        """End the responses these generations belong to, here and on the engines that can still be told."""
        if not rids:
            return
        outcome = self._dispatcher.fail(rids, message)
        self._deliver(outcome, error)
        self._abort(outcome.finished)
        for rid in outcome.finished:
            self._release(rid)

    def _abort(self, rids: Iterable[str]) -> None:
        """Tell engines to stop generations. One that nobody here knows may run on any of them."""
        orders: dict[Engine, list[str]] = {}
        complete = self._group.is_complete
        for rid in rids:
            engine = self._flights.get(rid)
            if engine is None and not complete:
                self._strays.append(rid)
            for target in self.engines if engine is None else (engine,):
                if target.reachable:
                    orders.setdefault(target, []).append(rid)
        for engine, stopped in orders.items():
            self._outbox.abort(engine, stopped)
            self._waves.on_abort(engine)

    # --- liveness ---

    def _on_hello(self, index: int) -> None:
        engine = self.engines[index]
        self._monitor.drain()
        # Any user of the host can say it. Of an engine that is connected, only a registration tells that it has
        # restarted: that takes a directory which is this user's alone.
        if not engine.connected and self._share.has(index):
            self._set_state(engine, EngineState.STARTING)

    def _on_registration(self, registration: Registration) -> None:
        engine = self.engines[registration.index]
        self._disconnect(engine, "has restarted")
        engine.connection = registration.connection
        engine.peer = registration.peer
        engine.process = process_of(registration.peer)
        engine.load = None
        self._roster.add(registration)
        self._judge(engine, registration.response)

    def _judge(self, engine: Engine, response: ReadyResponse) -> None:
        """Take an engine that has registered into service, or refuse it."""
        engine.ready_response = response
        engine.protocol = None
        try:
            self._check_group(response)
            engine.protocol = self._protocol = self._protocol_of(response)
        except UnsupportedEngineError as error:
            self._set_state(engine, EngineState.REFUSED, str(error))
            return
        engine.refusals = 0
        self._set_state(engine, EngineState.READY)
        self._waves.on_registration(engine, self.family.start_wave(response))
        if self._strays:
            self._outbox.abort(engine, list(self._strays))
            if self._group.is_complete:
                self._strays.clear()

    def _check_group(self, response: ReadyResponse) -> None:
        """Raises ``UnsupportedEngineError`` for an engine that tells one of several processes of its waves."""
        if self.engine_count > 1 and not self._share.is_alone and self.family.start_wave(response) is not None:
            raise UnsupportedEngineError(
                "may step only together with the others of its group, and tells a single gateway process when they "
                "pause: it takes --gateway-processes 1"
            )

    def _protocol_of(self, response: ReadyResponse) -> Protocol:
        """The wire of an engine that comes; it has to be that of the engines beside it."""
        protocol = self.family.protocol(response)
        if protocol.warning is not None:
            logger.warning("%s (%s)", protocol.warning, self.addresses.input_endpoint)
        if self._protocol is not None and protocol == self._protocol:
            return self._protocol
        if any(engine.reachable for engine in self.engines):
            raise UnsupportedEngineError("speaks another version of the wire than the engines beside it")
        return protocol

    def _judge_again(self) -> None:
        """Engines were refused for those beside them, and there may be none left."""
        if self._sockets is None:
            return
        self._monitor.drain()
        for engine in self.engines:
            if engine.connected and engine.protocol is None and engine.ready_response is not None:
                self._judge(engine, engine.ready_response)

    def _on_connect(self, connection: int) -> None:
        self._survivors.on_connect(connection)

    def _on_disconnect(self, connection: int) -> None:
        engine = self._group.at_connection(connection)
        if engine is not None:
            self._disconnect(engine, "has disconnected")

    def _on_unreachable(self, engine: Engine) -> None:
        self._disconnect(engine, "cannot be reached")

    def _on_silence(self, engine: Engine) -> None:
        self._lose(engine, f"has said nothing for {self._silence_timeout:g} s", EngineState.SILENT)

    def _on_stopped(self, engine: Engine) -> None:
        self._lose(engine, "is stopped: its process does nothing until it is continued", EngineState.STOPPED)

    def _on_continued(self, engine: Engine) -> None:
        self._set_state(engine, EngineState.READY)

    def _disconnect(self, engine: Engine, reason: str) -> None:
        """Nothing reaches the engine any more. What it has sent before counts, be it a death notice."""
        if not engine.connected:
            return
        engine.connection = None
        self._outbox.forget(engine)
        self._output.drain()
        if engine.serving:
            self._lose(engine, reason)
        if engine.protocol is not None and not any(other.reachable for other in self.engines):
            # Not now: this may be amid messages of the wire that is spoken up to now.
            self._loop.call_soon(self._judge_again)

    def _lose(self, engine: Engine, reason: str, state: EngineState = EngineState.LOST) -> None:
        """Fail everything the engine has in flight, and nothing else; it is told if it is still connected."""
        self._set_state(engine, state, reason)
        rids = [rid for rid, flown in self._flights.items() if flown is engine]
        self._fail(rids, EngineUnavailable, f"engine {engine.index} {reason}")

    def _set_state(self, engine: Engine, state: EngineState, reason: str | None = None) -> None:
        engine.state, engine.reason, engine.since = state, reason or state.value, time.time()
        logger.log(
            _LOG_LEVELS.get(state, logging.WARNING),
            "engine %d %s (%s)",
            engine.index,
            engine.reason,
            self.addresses.input_endpoint,
        )
        if self.ready_engines:
            self._ready.set()
        else:
            self._ready.clear()
        self._on_change()
