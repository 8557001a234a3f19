"""How a vLLM engine is started so that it dials a gateway.

``vllm serve --headless`` starts engines without a server. They say hello at the data-parallel address, which is there
for servers on another host, and does as well for a gateway on this one. Seen with vLLM 0.32.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

#: Names an interpreter that has vLLM.
PYTHON_VARIABLE = "SMG_FAST_VLLM_PYTHON"

_PROGRAM = ("-m", "vllm.entrypoints.cli.main")
_HAS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"


class LaunchError(ValueError):
    """An engine that cannot be started as asked. The text tells the operator why."""


def launch_command(model: str, handshake: str, options: Sequence[str], *, python: str | None = None) -> list[str]:
    """The command line of an engine for a model's directory.

    Parameters
    ----------
    handshake
        ``tcp://HOST:PORT`` that the engine shall dial.
    options
        Of ``vllm serve``.
    python
        Interpreter that has vLLM, unless ``SMG_FAST_VLLM_PYTHON`` names it, ``vllm`` is on the ``PATH``, or this
        interpreter has it.

    Raises
    ------
    LaunchError
        There is no vLLM, or the options have one that decides where engines dial.
    """
    for option in options:
        name = option.partition("=")[0].replace("_", "-")
        if name in ("--headless", "-dp") or name.startswith(("--data-parallel", "-dp")):
            raise LaunchError(f"{name} is not for whoever starts one engine: see smg-fast launch for more than one")
    address = urlsplit(handshake)
    return [
        *_vllm(python or os.environ.get(PYTHON_VARIABLE)),
        *("serve", model, "--headless"),
        *("--data-parallel-address", str(address.hostname), "--data-parallel-rpc-port", str(address.port)),
        *options,
    ]


def _vllm(python: str | None) -> list[str]:
    if python is not None:
        try:
            has_vllm = subprocess.run([python, "-c", _HAS_VLLM], stdin=subprocess.DEVNULL, check=False).returncode == 0
        except OSError as error:
            raise LaunchError(f"cannot run the interpreter {python}: {error.strerror}") from None
        if not has_vllm:
            raise LaunchError(f"the interpreter {python} has no vllm")
        return [python, *_PROGRAM]
    if (program := shutil.which("vllm")) is not None:
        return [program]
    if importlib.util.find_spec("vllm") is not None:
        return [sys.executable, *_PROGRAM]
    raise LaunchError(
        f"there is no vllm on the PATH, nor has this interpreter one: name one that has, with --vllm-python or "
        f"{PYTHON_VARIABLE}"
    )
