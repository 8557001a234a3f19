"""Where the gateway's CPU time goes: python -m bench.profile [--runtime vllm] [--scenario paced-256]

Samples the gateway's processes under a load with Linux's ``perf``, which must be installed and allowed, and tells the
microseconds per token: in the kernel by system call, elsewhere by library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.end_to_end import raise_descriptor_limit
from bench.gateways import SmgFast, running
from bench.load import Clients, compiled
from bench.report import aligned
from bench.scenarios import SCENARIOS
from smg_fast.embedded import MODEL_DIRECTORY
from smg_fast.engines import FAMILIES

_HERTZ = 1999
# A line of a stack: address, symbol and offset, where the code is.
_FRAME = re.compile(r"\s+[0-9a-f]+ (?P<symbol>.+?)(\+0x[0-9a-f]+)? \((?P<object>.*)\)$")
_SYSTEM_CALL = re.compile(r"(__(x64|arm64|se)_sys|__sys|ksys)_(?P<name>\w+)")
_LEAST_PART = 0.005  # what has less is not told apart


def _stacks(script: str) -> Iterator[list[tuple[str, str]]]:
    """Symbols and where they are, the innermost first."""
    for sample in script.split("\n\n"):
        frames = [match for line in sample.splitlines() if (match := _FRAME.match(line))]
        if frames:
            yield [(frame["symbol"], frame["object"]) for frame in frames]


def _place(stack: list[tuple[str, str]]) -> str:
    inmost = stack[0][1]
    if not inmost.startswith(("[kernel", "[unknown")):
        return Path(inmost).name
    calls = (_SYSTEM_CALL.match(symbol) for symbol, _ in stack)
    return next((f"kernel: {call['name']}" for call in calls if call), "kernel: scheduling, interrupts")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", choices=FAMILIES, default="tokenspeed", help="[default: %(default)s]")
    parser.add_argument("--scenario", choices=SCENARIOS, default="paced-256", help="[default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=5.0, help="[default: %(default)g]")
    parser.add_argument("--model", type=Path, default=MODEL_DIRECTORY, metavar="DIR")
    arguments = parser.parse_args()
    perf = shutil.which("perf")
    if perf is None:
        parser.error("there is no perf on the PATH")
    raise_descriptor_limit()
    scenario = SCENARIOS[arguments.scenario]
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        running(SmgFast(), arguments.runtime, arguments.model, scenario.tick_ms) as started,
    ):
        clients = Clients(compiled("clients.c", Path(directory)))
        samples, pid = Path(directory, "samples"), f"{started.gateway.pid}"
        record = [perf, "record", "-q", "-g", "-e", "cpu-clock", "-F", f"{_HERTZ}", "-o", f"{samples}", "-p", pid]
        recording: list[subprocess.Popen[bytes]] = []
        begun: list[float] = []

        def counting() -> None:
            begun.append(started.gateway.cpu_seconds())
            recording.append(subprocess.Popen([*record, "--", "sleep", f"{arguments.seconds}"]))

        answers = clients.drive(started.port, scenario.load(started.model), arguments.seconds, counting)
        cpu = started.gateway.cpu_seconds() - begun[0]
        if recording[0].wait():
            raise SystemExit("perf failed: what it said of it is above")
        script = subprocess.run([perf, "script", "-i", samples], capture_output=True, text=True, check=True).stdout
    places = Counter(map(_place, _stacks(script)))
    whole, total = cpu * 1e6 / answers.tokens, sum(places.values())
    told = {place: count / total for place, count in places.most_common() if count / total >= _LEAST_PART}
    told["else"] = 1 - sum(told.values())
    rows = [[place, f"{whole * part:.2f}", f"{part:.0%}"] for place, part in told.items()]
    print("\n".join(aligned([["", "us/token", ""], *rows, ["all", f"{whole:.2f}", ""]])))


if __name__ == "__main__":
    main()
