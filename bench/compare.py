"""Two files of ``bench.end_to_end`` side by side: python -m bench.compare BEFORE.json AFTER.json

What both have is compared, as after over before. The machine is another from day to day: to compare two builds for
sure, measure them in one run, with ``--baseline``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.report import aligned
from bench.results import COLUMNS, Results, ratio


def rows(before: Results, after: Results) -> Iterator[Sequence[str]]:
    """A table: after over before, for every figure that both have of a gateway under the same load."""
    names = [name for name in COLUMNS if name != "errors"]
    yield ["after / before", *(COLUMNS[name][0] for name in names)]
    known = {(one.key, one.load): one.median for one in before.measured}
    for one in after.measured:
        was, figures = known.get((one.key, one.load)), one.median
        if was is not None:
            yield [" ".join(one.key), *(ratio(getattr(figures, name), getattr(was, name)) for name in names)]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = (Results.load(Path(name)) for name in sys.argv[1:])
    for what in ("machine", "model", "seconds"):
        if getattr(before, what) != getattr(after, what):
            print(f"not the same {what}: {getattr(before, what)}; {getattr(after, what)}", file=sys.stderr)
    print("\n".join(aligned(list(rows(before, after)))))


if __name__ == "__main__":
    main()
