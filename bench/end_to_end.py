"""Whole gateways: clients, a gateway and the simulated engine, each in a process of its own, on this machine.

    python -m bench.end_to_end [--only paced-256 'unpaced-*'] [--smg bin/smg] [--vllm-rs vllm-rs] [--json FILE]

Each gateway is started anew for each load, and in each round all of them take their turn. CPU is that of the gateway's
processes, per token delivered.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from bench.gateways import Floor, Gateway, GatewayError, Running, Smg, SmgFast, VllmRust, running
from bench.load import Clients, ClientsError, compiled
from bench.report import aligned
from bench.results import COLUMNS, Figures, Measured, Results, cell, rows
from bench.scenarios import SCENARIOS, Scenario
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import FAMILIES


def measure(
    gateway: Gateway, runtime: str, model: Path, clients: Clients, scenario: Scenario, seconds: float
) -> Figures:
    """One gateway, freshly started, under one load.

    Raises ``GatewayError`` if it does not come up, or answers nothing; ``ClientsError``.
    """
    with running(gateway, runtime, model, scenario.tick_ms) as started:
        figures = _idle(started, clients, scenario) if scenario.idle else _busy(started, clients, scenario, seconds)
    if figures is None:
        raise GatewayError(f"{gateway.name} answered nothing")
    return figures


# Either begins with a few streams, who pay for what others find done: imports, caches, buffers.
_FEW = 8
# Growth by fewer streams than this says nothing of a stream.
_MANY = 1024


def _idle(started: Running, clients: Clients, scenario: Scenario) -> Figures:
    with clients.hold(started.port, Scenario(streams=_FEW).load(started.model)):
        pass
    before = started.gateway.memory_kib("VmRSS")
    with clients.hold(started.port, scenario.load(started.model)) as errors:
        grown = started.gateway.memory_kib("VmRSS") - before
    return Figures(kib_per_stream=grown / scenario.streams, errors=errors)


def _busy(started: Running, clients: Clients, scenario: Scenario, seconds: float) -> Figures | None:
    clients.drive(started.port, msgspec.structs.replace(scenario, streams=_FEW, tokens=4).load(started.model), 0)
    trees = [tree for tree in (started.gateway, started.engine) if tree is not None]
    begun: list[float] = []

    def cpu_seconds() -> None:
        begun[:] = [tree.cpu_seconds() for tree in trees]

    memory = started.gateway.memory_kib("VmRSS")
    answers = clients.drive(started.port, scenario.load(started.model), seconds, cpu_seconds)
    grown = started.gateway.memory_kib("VmHWM") - memory
    cpu, *engine = [tree.cpu_seconds() - before for tree, before in zip(trees, begun, strict=True)]
    if not answers.tokens:
        return None
    return Figures(
        cpu_us=cpu * 1e6 / answers.tokens,
        request_ms=cpu * 1e3 / answers.requests,
        tokens_per_second=answers.tokens / answers.elapsed,
        first_p50=_percentile(answers.first, 0.50),
        first_p99=_percentile(answers.first, 0.99),
        gap_p50=_percentile(answers.gaps, 0.50) if scenario.stream else None,
        gap_p99=_percentile(answers.gaps, 0.99) if scenario.stream else None,
        kib_per_stream=grown / scenario.streams if scenario.streams >= _MANY else None,
        gateway_cores=cpu / answers.elapsed,
        engine_cores=engine[0] / answers.elapsed if engine else None,
        clients_cores=answers.cpu_seconds / answers.elapsed,
        errors=answers.errors,
    )


def _percentile(seconds: Sequence[float], part: float) -> float:
    """In ms: the time that so large a part of them does not exceed."""
    return sorted(seconds)[math.ceil(part * len(seconds)) - 1] * 1e3


def _chosen(patterns: Sequence[str]) -> Iterator[tuple[str, Scenario]]:
    for name, scenario in SCENARIOS.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name, scenario


def _gateways(arguments: argparse.Namespace, directory: Path) -> Iterator[Gateway]:
    yield SmgFast()
    if arguments.baseline is not None:
        yield SmgFast((arguments.baseline,), "baseline")
    if arguments.smg is not None:
        yield Smg(arguments.smg)
    if arguments.vllm_rs is not None:
        yield VllmRust(arguments.vllm_rs)
    yield Floor(compiled("floor.c", directory))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.end_to_end", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="SCENARIO",
        help=f"loads to put on: these, or patterns of them: {', '.join(SCENARIOS)} [default: all]",
    )
    parser.add_argument(
        "--runtime", nargs="+", choices=FAMILIES, default=FAMILIES, help="families of the engine [default: all]"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a load [default: %(default)g]")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median counts [default: %(default)s]")
    parser.add_argument(
        "--model",
        type=Path,
        default=MODEL_DIRECTORY,
        metavar="DIR",
        help="whose tokenizer and chat template serve [default: a small one that comes along]",
    )
    parser.add_argument("--smg", metavar="FILE", help="measure this too: bin/smg of an environment with smg 1.13")
    parser.add_argument("--vllm-rs", metavar="FILE", help="and this: vllm/vllm-rs of a wheel of vLLM 0.33")
    parser.add_argument("--baseline", metavar="FILE", help="and this: bin/smg-fast of another environment")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, after each round")
    return parser


def _run(
    results: Results, gateways: Mapping[str, Gateway], clients: Clients, model: Path, rounds: int, file: Path | None
) -> Results:
    """The same with its rounds. The file has them after each. What fails is told, and has a round less."""
    done = results
    for number in range(1, rounds + 1):
        for one in results.measured:
            try:
                figures = measure(gateways[one.gateway], one.runtime, model, clients, one.load, results.seconds)
            except (ClientsError, GatewayError) as error:
                print(f"round {number}: {' '.join(one.key)}: {error}", file=sys.stderr, flush=True)
                continue
            one.rounds.append(figures)
            shown = " ".join(f"{COLUMNS[name][0]} {cell(figures, name)}" for name in ("cpu_us", "kib_per_stream"))
            print(f"round {number}: {' '.join(one.key)}: {shown}", file=sys.stderr, flush=True)
        done = msgspec.structs.replace(results, measured=[one for one in results.measured if one.rounds])
        if file is not None:
            done.save(file)
    return done


def raise_descriptor_limit() -> None:
    """As far as this user may, for the programs that are started: a stream takes a descriptor on either side."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    arguments = _parser().parse_args()
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        clients = Clients(compiled("clients.c", Path(directory)))
        gateways = {gateway.name: gateway for gateway in _gateways(arguments, Path(directory))}
        results = Results(
            machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            model=arguments.model.resolve().name,
            seconds=arguments.seconds,
            measured=[
                Measured(runtime=runtime, scenario=name, load=scenario, gateway=gateway.name, rounds=[])
                for runtime in arguments.runtime
                for name, scenario in _chosen(arguments.only)
                for gateway in gateways.values()
                if gateway.can(runtime, scenario)
            ],
        )
        done = _run(results, gateways, clients, arguments.model, arguments.rounds, arguments.json)
    print("\n".join(aligned(list(rows(done)))))
    failures = sum(arguments.rounds - len(one.rounds) for one in results.measured)
    if failures:
        sys.exit(f"{failures} measurements failed: what is above tells which")


if __name__ == "__main__":
    main()
