"""How vLLM engines are started so that they dial a gateway.

``vllm serve --headless`` starts engines without a server: all ranks of a group, which it ends together. They say hello
at the data-parallel address, which is there for servers on another host, and does as well for a gateway on this one.
Seen with vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from ..launch import LaunchError, Program, refuse_options, size

__all__ = ["PYTHON_VARIABLE", "LaunchError", "gpus_per_rank", "launch_command"]

#: Names an interpreter that has vLLM.
PYTHON_VARIABLE = "SMG_FAST_VLLM_PYTHON"

_PROGRAM = Program("vllm", "vllm.entrypoints.cli.main", PYTHON_VARIABLE, "--vllm-python")
_GROUP = "is decided here: --dp-size says how many engines there are, and the gateway where they dial"
_SERVER = "means nothing here: engines start without a server"
_REFUSED = {
    "--headless": _SERVER,
    "--api-server-count": _SERVER,
    "-asc": _SERVER,
    "--data-parallel*": _GROUP,
    "-dp*": _GROUP,
}


def launch_command(
    model: str, handshake: str, options: Sequence[str], *, ranks: int = 1, python: str | None = None
) -> list[str]:
    """The command line of the engines for a model's directory.

    Parameters
    ----------
    handshake
        ``tcp://HOST:PORT`` that the engines shall dial.
    options
        Of ``vllm serve``.
    ranks
        Data-parallel ranks, all in this one process and its children.
    python
        Interpreter that has vLLM, unless ``SMG_FAST_VLLM_PYTHON`` names it, ``vllm`` is on the ``PATH``, or this
        interpreter has it.

    Raises
    ------
    LaunchError
        There is no vLLM, or the options have one that decides how engines are grouped or where they dial.
    """
    refuse_options(options, _REFUSED)
    address = urlsplit(handshake)
    group = ["--data-parallel-size", str(ranks), "--data-parallel-size-local", str(ranks)] if ranks > 1 else []
    return [
        *_PROGRAM.command(python),
        *("serve", model, "--headless", *group),
        *("--data-parallel-address", str(address.hostname), "--data-parallel-rpc-port", str(address.port)),
        *options,
    ]


def gpus_per_rank(options: Sequence[str]) -> int:
    """GPUs that one rank takes with these options. Raises ``LaunchError`` for a size that is none."""
    return (
        size(options, "--tensor-parallel-size", "-tp")
        * size(options, "--pipeline-parallel-size", "-pp")
        * size(options, "--prefill-context-parallel-size", "-pcp")
    )
