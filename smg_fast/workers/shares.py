"""Which gateway processes the engines of the workers serve. ``docs/processes.md`` says why so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..engines import VLLM, family
from ..transport import Share
from .spec import WorkerSpec


class _Choice(msgspec.Struct, frozen=True):
    """What requests can choose workers by; every process has to offer the same. ``url``: of one of unknown model."""

    url: str | None
    model: Path | None
    names: tuple[str, ...]
    chat_template: Path | None
    generation_config: str
    priority: int

    @classmethod
    def of(cls, spec: WorkerSpec) -> _Choice:
        model, url = (None, spec.url) if spec.model is None else (spec.model.resolve(), None)
        return cls(url, model, spec.served_model_names, spec.chat_template, spec.generation_config, spec.priority)

    def __str__(self) -> str:
        return ", ".join(self.names) or self.url or str(self.model)


def shared(specs: Sequence[WorkerSpec], processes: int, process: int) -> list[WorkerSpec]:
    """One gateway process's share of the workers: those of which an engine serves it.

    Engines that have room for several clients serve all processes. Others serve one: those that a request can choose
    from are dealt out in turn.

    Raises
    ------
    ValueError
        They cannot be dealt out evenly, or a runtime is unknown.
    """
    own = []
    dealt: Counter[_Choice] = Counter()
    for spec in specs:
        if family(spec.runtime or VLLM.name).several_clients:
            clients = (tuple(range(processes)),) * spec.engine_count
        else:
            choice = _Choice.of(spec)
            first = dealt[choice]
            dealt[choice] += spec.engine_count
            clients = tuple((engine % processes,) for engine in range(first, dealt[choice]))
        share = Share(process, clients)
        if not share.is_empty:
            own.append(msgspec.structs.replace(spec, share=share))
    for choice, engines in dealt.items():
        if engines % processes:
            raise ValueError(
                f"--gateway-processes {processes}: an engine of TokenSpeed serves a single process, so that those of a "
                f"model are shared out evenly; {choice} has {engines}, which is no multiple of {processes}"
            )
    return own
