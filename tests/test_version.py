"""The version is said in one place."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from smg_fast import _codec


def test_the_version_is_the_one_in_cargo_toml() -> None:
    manifest = (Path(__file__).parents[1] / "Cargo.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', manifest, re.MULTILINE)
    output = subprocess.check_output([sys.executable, "-m", "smg_fast", "--version"], text=True)
    revision = f" ({_codec.__revision__})" if _codec.__revision__ else ""
    assert output == f"smg-fast {version}{revision}\n"
    assert importlib.metadata.version("smg-fast") == _codec.__version__ == version
