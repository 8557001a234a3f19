"""Two reports of ``bench.end_to_end`` side by side: python -m bench.compare BEFORE.json AFTER.json"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.end_to_end import Figures, Report
from bench.report import aligned

_COMPARED = ("cpu_us", "tokens_per_second", "first_p50", "first_p99", "gap_p50", "gap_p99", "kib_per_stream")


def rows(before: Report, after: Report) -> list[list[str]]:
    """A table: after over before, for every figure of every scenario that both have."""
    both = [name for name in before.figures if name in after.figures]
    ratios = (
        [name, *(_ratio(before.figures[name], after.figures[name], figure) for figure in _COMPARED)] for name in both
    )
    return [["after / before", *_COMPARED], *ratios]


def _ratio(before: Figures, after: Figures, figure: str) -> str:
    was = getattr(before, figure)
    return f"{getattr(after, figure) / was:.3f}" if was else "-"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = (msgspec.json.decode(Path(name).read_bytes(), type=Report) for name in sys.argv[1:])
    if before.machine != after.machine:
        print(f"not the same machine: {before.machine}; {after.machine}", file=sys.stderr)
    print("\n".join(aligned(rows(before, after))))


if __name__ == "__main__":
    main()
