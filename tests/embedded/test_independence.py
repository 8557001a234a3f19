"""The engine side is a second implementation of the wire: it must not lean on the first."""

from __future__ import annotations

import subprocess
import sys

from tests.embedded.gateway_side import ROOT


def test_the_simulator_imports_nothing_of_the_gateway() -> None:
    program = (
        "import sys, smg_fast.embedded.simulator\n"
        "print(*(name for name in sys.modules if name.startswith('smg_fast.') and '.embedded' not in name))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
