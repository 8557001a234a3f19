"""An engine without a model: it echoes or recites, at a given pace, with logprobs, load and faults on request.

``python -m smg_fast.embedded.simulator --handshake tcp://HOST:PORT`` starts one that knows no tokenizer. A caller that
has one uses ``add_arguments``, ``options_from`` and ``run``.
"""

from __future__ import annotations

from smg_fast.embedded.simulator.engine import run
from smg_fast.embedded.simulator.faults import Faults
from smg_fast.embedded.simulator.logprobs import logprob_rows, token_logprobs
from smg_fast.embedded.simulator.options import SimulatorOptions, add_arguments, options_from
from smg_fast.embedded.simulator.scheduler import Counters
from smg_fast.embedded.simulator.script import TurnMarkers

__all__ = [
    "Counters",
    "Faults",
    "SimulatorOptions",
    "TurnMarkers",
    "add_arguments",
    "logprob_rows",
    "options_from",
    "run",
    "token_logprobs",
]
