"""Whom engines serve, where there are several gateway processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smg_fast.workers import WorkerSpec, shared


def spec(name: str, runtime: str = "tokenspeed", engines: int = 1, model: str | None = "m", **more: Any) -> WorkerSpec:
    path = None if model is None else Path("/models", model)
    return WorkerSpec(url=f"ipc:///s/{name}", runtime=runtime, model=path, engine_count=engines, **more)


def served(specs: list[WorkerSpec], processes: int) -> list[dict[str, list[int]]]:
    """By process: the workers, and which engines of theirs serve it."""
    return [
        {
            own.url[-1]: [
                engine for engine in range(own.engine_count) if own.share is not None and own.share.has(engine)
            ]
            for own in shared(specs, processes, process)
        }
        for process in range(processes)
    ]


def test_engines_of_vllm_serve_all() -> None:
    specs = [spec("a", "vllm", 3), WorkerSpec(url="ipc:///s/b")]
    assert served(specs, 2) == [{"a": [0, 1, 2], "b": [0]}] * 2
    share = shared(specs, 2, 1)[0].share
    assert share is not None
    assert (share.client_index, share.answers_handshake) == (1, False)


def test_engines_of_tokenspeed_serve_one_process_each() -> None:
    assert served([spec("a", engines=4)], 2) == [{"a": [0, 2]}, {"a": [1, 3]}]
    assert served([spec("a"), spec("b")], 2) == [{"a": [0]}, {"b": [0]}]
    assert served([spec("a", engines=3), spec("b")], 2) == [{"a": [0, 2]}, {"a": [1], "b": [0]}]
    # Who has only a part of the processes' engines answers the handshake for the others.
    answers = [
        [own.share.answers_handshake for own in shared([spec("a", engines=2)], 2, process) if own.share]
        for process in (0, 1)
    ]
    assert answers == [[True], [False]]


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([spec("a", engines=3)], "/models/m has 3, which is no multiple of 2"),
        # Clients that ask for one of them may come to either process.
        ([spec("a"), spec("b", model="n")], "/models/m has 1,"),
        ([spec("a", served_model_names=("x",)), spec("b", served_model_names=("y",))], "x has 1,"),
        # So may all while the better one is ready.
        ([spec("a", priority=1), spec("b")], "/models/m has 1,"),
        # They may be of different models.
        ([spec("a", model=None), spec("b", model=None)], "ipc:///s/a has 1,"),
    ],
)
def test_every_process_has_the_same_to_offer(specs: list[WorkerSpec], said: str) -> None:
    with pytest.raises(ValueError, match=f"--gateway-processes 2: .*{said}"):
        shared(specs, 2, 0)
