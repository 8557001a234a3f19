"""A small workflow: steps that wait for one another, with conditions, retries, time-outs and a history.

Every step is a task that awaits the tasks of the steps it needs. There is no queue of completions, and no loop that
looks whether something is left: a step that ends at once, or is skipped, cannot be missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Generic, Literal, TypeVar

import msgspec

Context = TypeVar("Context")

StepState = Literal["running", "retrying", "done", "skipped", "failed", "cancelled"]

#: Seconds between two attempts, at most.
_LONGEST_PAUSE = 8.0


class StepFailed(Exception):  # noqa: N818 - an outcome, as in EngineFailed
    """A step failed for good; its own exception is the cause."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step
        self.why = why


class StepTimeoutError(Exception):
    """An attempt took longer than it may."""


class Step(msgspec.Struct, Generic[Context], frozen=True, kw_only=True):
    """One thing to do.

    Attributes
    ----------
    run
        Does it; what later steps need it leaves in the context. A text that it returns goes into the history.
    needs : tuple of str
        Steps that come before: done, or skipped.
    when
        Whether there is anything to do; else the step is skipped. Asked when the steps before have ended.
    timeout : float, optional
        Seconds an attempt may take.
    attempts : int
        How often it is tried, in all.
    pause : float
        Seconds after the first failure; each further one doubles it.
    retry_on : tuple of exception types
        Failures after which it is tried again; a time-out is one always.
    """

    name: str
    run: Callable[[Context], Awaitable[str | None]]
    needs: tuple[str, ...] = ()
    when: Callable[[Context], bool] | None = None
    timeout: float | None = None
    attempts: int = 1
    pause: float = 0.2
    retry_on: tuple[type[Exception], ...] = ()


class Event(msgspec.Struct, frozen=True):
    """A step's change of state, ``at`` so many seconds since the epoch."""

    step: str
    state: StepState
    at: float
    detail: str | None = None


class Workflow(Generic[Context]):
    """Steps in a dependency graph. It holds no state of its runs, of which there may be any number."""

    def __init__(self, steps: Sequence[Step[Context]]) -> None:
        """Raises ``ValueError`` for a step that comes twice, needs one that is not there, or itself in the end."""
        self._steps = {step.name: step for step in steps}
        if len(self._steps) < len(steps):
            raise ValueError("two steps have one name")
        unknown = sorted({need for step in steps for need in step.needs} - self._steps.keys())
        if unknown:
            raise ValueError(f"no step is called {', '.join(unknown)}")
        try:
            self._order = tuple(TopologicalSorter({step.name: step.needs for step in steps}).static_order())
        except CycleError as error:
            raise ValueError(f"steps that need each other: {' -> '.join(error.args[1])}") from None

    async def run(self, context: Context, on_event: Callable[[Event], None]) -> None:
        """Do every step; returns when all are done or skipped.

        When one fails, or the caller is cancelled, those that run are cancelled, and awaited.

        Raises
        ------
        StepFailed
            The first that failed.
        """
        tasks: dict[str, asyncio.Task[bool]] = {}
        for name in self._order:
            step = self._steps[name]
            before = [tasks[need] for need in step.needs]
            tasks[name] = asyncio.create_task(_run_step(step, before, context, on_event), name=name)
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _run_step(
    step: Step[Context],
    before: Sequence[asyncio.Task[bool]],
    context: Context,
    on_event: Callable[[Event], None],
) -> bool:
    """Whether the steps after this one may begin."""

    def tell(state: StepState, detail: str | None = None) -> None:
        on_event(Event(step.name, state, time.time(), detail))

    # The failure of a step before is told by that one, and the end of the whole workflow.
    if before:
        await asyncio.wait(before)
        if any(task.cancelled() or task.exception() is not None or not task.result() for task in before):
            return False
    try:
        if step.when is not None and not step.when(context):
            tell("skipped")
            return True
        tell("running")
        detail = await _attempt(step, context, tell)
    except asyncio.CancelledError:
        tell("cancelled")
        raise
    except Exception as error:  # whatever it is, it goes on as the cause
        why = _why(error)
        tell("failed", why)
        raise StepFailed(step.name, why) from error
    tell("done", detail)
    return True


async def _attempt(step: Step[Context], context: Context, tell: Callable[[StepState, str | None], None]) -> str | None:
    """The first success of so many attempts; else the last failure."""
    retried: tuple[type[Exception], ...] = (StepTimeoutError, *step.retry_on)
    pause = step.pause
    for _ in range(step.attempts - 1):
        try:
            return await _within(step.timeout, step.run(context))
        except retried as error:
            tell("retrying", _why(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return await _within(step.timeout, step.run(context))


async def _within(timeout: float | None, work: Awaitable[str | None]) -> str | None:
    """Not ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that comes as the work ends."""
    if timeout is None:
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=timeout)
        if task.done():
            return task.result()
        raise StepTimeoutError(f"not done after {timeout:g} s")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
