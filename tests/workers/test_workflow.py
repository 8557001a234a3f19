"""Steps in a dependency graph."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from smg_fast.workers.workflow import Event, Step, StepFailed, StepState, Workflow

#: What the steps here leave: their names, in the order they were done.
Done = list[str]

PATIENCE = 20.0


def done(name: str) -> Callable[[Done], Awaitable[None]]:
    async def run(context: Done) -> None:
        context.append(name)

    return run


def step(name: str, *needs: str, when: bool | None = None) -> Step[Done]:
    return Step(name=name, run=done(name), needs=needs, when=None if when is None else lambda _: when)


async def states(workflow: Workflow[Done], context: Done | None = None) -> list[tuple[str, StepState]]:
    """What is told of a run that succeeds."""
    events: list[Event] = []
    await asyncio.wait_for(workflow.run([] if context is None else context, events.append), PATIENCE)
    return [(event.step, event.state) for event in events]


@contextmanager
def fails(step: str, why: str) -> Iterator[None]:
    with pytest.raises(StepFailed) as failed:
        yield
    assert (failed.value.step, failed.value.why) == (step, why)


async def test_a_step_begins_when_those_it_needs_have_ended() -> None:
    context: Done = []
    workflow = Workflow([step("c", "b"), step("b", "a"), step("d", "a", "c"), step("a")])
    assert await states(workflow, context) == [(name, state) for name in "abcd" for state in ("running", "done")]
    assert context == ["a", "b", "c", "d"]


async def test_steps_that_need_nothing_of_each_other_run_at_once() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def one(_: Done) -> None:
        first.set()
        await second.wait()

    async def other(_: Done) -> None:
        second.set()
        await first.wait()

    await states(Workflow([Step(name="one", run=one), Step(name="other", run=other)]))


async def test_what_is_after_a_skipped_step_is_done_all_the_same() -> None:
    context: Done = []
    workflow = Workflow([step("a", when=False), step("b", "a", when=False), step("c", "b"), step("d", "c", when=True)])
    assert await states(workflow, context) == [
        ("a", "skipped"),
        ("b", "skipped"),
        ("c", "running"),
        ("c", "done"),
        ("d", "running"),
        ("d", "done"),
    ]
    assert context == ["c", "d"]


async def test_whether_a_step_is_skipped_is_asked_after_those_it_needs() -> None:
    context: Done = []
    late = Step(name="late", run=done("late"), needs=("first",), when=lambda done: "first" not in done)
    assert await states(Workflow([late, step("first")]), context) == [
        ("first", "running"),
        ("first", "done"),
        ("late", "skipped"),
    ]


async def test_what_a_step_returns_is_in_the_history() -> None:
    async def found(_: Done) -> str:
        return "what was found"

    events: list[Event] = []
    await Workflow([Step(name="a", run=found)]).run([], events.append)
    assert [(event.state, event.detail) for event in events] == [("running", None), ("done", "what was found")]
    assert events[0].at <= events[1].at


async def test_a_failure_ends_what_runs_and_begins_nothing_more() -> None:
    ended: list[str] = []

    async def endless(_: Done) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what takes a moment to end is awaited
            ended.append("endless")

    async def failing(_: Done) -> None:
        raise OSError("no such thing")

    events: list[Event] = []
    context: Done = []
    workflow = Workflow(
        [
            Step(name="endless", run=endless),
            Step(name="failing", run=failing),
            step("after", "failing"),
            step("after that", "after", "endless"),
        ]
    )
    with fails("failing", "no such thing"):
        await workflow.run(context, events.append)
    assert ended == ["endless"]
    assert context == []
    assert {event.step: (event.state, event.detail) for event in events} == {
        "failing": ("failed", "no such thing"),
        "endless": ("cancelled", None),
    }


async def test_a_condition_that_fails_is_a_failure_of_its_step() -> None:
    def broken(_: Done) -> bool:
        raise ValueError("cannot tell")

    with fails("a", "cannot tell"):
        await Workflow([Step(name="a", run=done("a"), when=broken)]).run([], lambda _: None)


@pytest.mark.parametrize("attempts", [1, 2, 3, 4])
async def test_a_step_is_tried_again_for_the_failures_it_names(attempts: int) -> None:
    """It succeeds the third time."""
    tried = 0

    async def third_time(_: Done) -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise ConnectionError(f"failure {tried}")

    events: list[Event] = []
    workflow = Workflow(
        [Step(name="a", run=third_time, attempts=attempts, pause=0.001, retry_on=(ConnectionError,)), step("b", "a")]
    )
    if attempts < 3:
        with fails("a", f"failure {attempts}"):
            await workflow.run([], events.append)
    else:
        await workflow.run([], events.append)
    assert tried == min(attempts, 3)
    retried = [event.detail for event in events if event.state == "retrying"]
    assert retried == ["failure 1", "failure 2"][: attempts - 1]


async def test_other_failures_are_for_good() -> None:
    tried = 0

    async def failing(_: Done) -> None:
        nonlocal tried
        tried += 1
        raise ValueError("wrong")

    with fails("a", "wrong"):
        await Workflow([Step(name="a", run=failing, attempts=9, retry_on=(OSError,))]).run([], lambda _: None)
    assert tried == 1


async def test_an_attempt_that_takes_too_long_is_ended_and_tried_again() -> None:
    ended = 0

    async def endless(_: Done) -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    events: list[Event] = []
    with fails("a", "not done after 0.01 s"):
        await Workflow([Step(name="a", run=endless, timeout=0.01, attempts=3, pause=0.001)]).run([], events.append)
    assert ended == 3
    assert [event.state for event in events] == ["running", "retrying", "retrying", "failed"]


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_cancelled_workflow_leaves_nothing_running(timeout: float | None) -> None:
    began = asyncio.Event()

    async def endless(_: Done) -> None:
        began.set()
        await asyncio.Event().wait()

    events: list[Event] = []
    workflow = Workflow([Step(name="a", run=endless, timeout=timeout), step("b", "a")])
    before = asyncio.all_tasks()
    running = asyncio.create_task(workflow.run([], events.append))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert [(event.step, event.state) for event in events] == [("a", "running"), ("a", "cancelled")]


async def test_a_cancellation_as_an_attempt_fails_is_not_lost() -> None:
    """Whoever cancels a workflow waits for it: it must not go on with further attempts, whichever comes first."""
    fail = asyncio.Event()

    async def failing(_: Done) -> None:
        await fail.wait()
        raise OSError("again")

    workflow = Workflow([Step(name="a", run=failing, timeout=60, attempts=1000, pause=0.01, retry_on=(OSError,))])
    for turns in range(12):
        fail.clear()
        running = asyncio.create_task(workflow.run([], lambda _: None))
        await asyncio.sleep(0.001)
        fail.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait((running,), timeout=PATIENCE)
        assert done, turns
        assert running.cancelled()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step("a"), step("a")], "two steps have one name"),
        ([step("a", "b", "c"), step("b")], "no step is called c"),
        ([step("a", "b"), step("b", "c"), step("c", "a")], "steps that need each other: .*a"),
        ([step("a", "a")], "steps that need each other: a -> a"),
    ],
)
def test_a_graph_that_has_no_order_is_refused(steps: list[Step[Done]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workflow(steps)


def any_workflow(dice: random.Random) -> tuple[Workflow[Done], set[str]]:
    """Up to eight steps that end at once, some skipped, with needs among them; and the names of those that are not."""
    names = [str(number) for number in range(dice.randint(1, 8))]
    skipped = {name for name in names if dice.random() < 0.5}
    steps = [
        step(name, *dice.sample(names[:index], dice.randint(0, index)), when=name not in skipped)
        for index, name in enumerate(names)
    ]
    dice.shuffle(steps)
    return Workflow(steps), set(names) - skipped


@pytest.mark.parametrize("at_once", [1, 500])
async def test_ten_thousand_workflows_of_steps_that_end_at_once_all_end(at_once: int) -> None:
    dice = random.Random(at_once)

    async def run() -> None:
        workflow, expected = any_workflow(dice)
        context: Done = []
        events: list[Event] = []
        await workflow.run(context, events.append)
        assert sorted(context) == sorted(expected)
        ended = [event.step for event in events if event.state in ("done", "skipped")]
        assert len(ended) == len(set(ended)) >= len(expected)

    async def stress() -> None:
        for _ in range(10_000 // at_once):
            await asyncio.gather(*(run() for _ in range(at_once)))

    await asyncio.wait_for(stress(), 120)
