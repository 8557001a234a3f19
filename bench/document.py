"""Tables of a document, from measured results: python -m bench.document RESULTS.json DOCUMENT.md

What stands between two lines such as these is replaced::

    <!-- gateways cpu_us tokenspeed paced-1 paced-64 -->
    <!-- end -->

``gateways FIGURE RUNTIME SCENARIO...`` makes a row of each load and a column of each gateway, with the ratios of ours
to the best peer and to the floor. ``figures GATEWAY RUNTIME FIGURE,FIGURE... SCENARIO...`` makes a row of each load and
a column of each figure (see ``results.Figures``). What was not measured makes no row, and without a row there is no
table. ``run`` tells where and how it was measured. ``picture FILE`` shows what ``bench.plot`` has drawn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.results import COLUMNS, FLOOR, OURS, PEERS, Figures, Results, best_peer, cell, ratio

_TABLE = re.compile(r"(<!-- (gateways|figures|run|picture)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(document: str, results: Results) -> str:
    """The document with these results in the place of those it had. Raises ``ValueError`` for a table nobody knows."""

    def table(match: re.Match[str]) -> str:
        begin, kind, arguments, end = match.groups()
        lines = "".join(f"{line}\n" for line in _KINDS[kind](results, *arguments.split()))
        return f"{begin}\n{lines}\n{end}" if lines else f"{begin}{end}"

    return _TABLE.sub(table, document)


def _gateways(results: Results, figure: str, runtime: str, *scenarios: str) -> Iterator[str]:
    _check(figure)
    measured = {scenario: results.medians(runtime, scenario) for scenario in scenarios}
    gateways = list(dict.fromkeys(gateway for medians in measured.values() for gateway in medians))
    if not gateways:
        return
    has_peers, has_floor = not set(PEERS).isdisjoint(gateways), FLOOR in gateways
    yield from _head(["", *gateways, *["/ best peer"] * has_peers, *["/ floor"] * has_floor])
    for scenario, medians in measured.items():
        if OURS not in medians:
            continue
        cells = [cell(medians[gateway], figure) if gateway in medians else "-" for gateway in gateways]
        ours: float | None = getattr(medians[OURS], figure)
        if has_peers:
            cells.append(ratio(ours, best_peer(medians, figure)))
        if has_floor:
            cells.append(ratio(ours, getattr(medians[FLOOR], figure) if FLOOR in medians else None))
        yield _row([scenario, *cells])


def _figures(results: Results, gateway: str, runtime: str, figures: str, *scenarios: str) -> Iterator[str]:
    names = figures.split(",")
    for name in names:
        _check(name)
    measured: dict[str, Figures] = {}
    for scenario in scenarios:
        medians = results.medians(runtime, scenario)
        if gateway in medians:
            measured[scenario] = medians[gateway]
    if measured:
        yield from _head(["", *(COLUMNS[name][0] for name in names)])
    for scenario, median in measured.items():
        yield _row([scenario, *(cell(median, name) for name in names)])


def _run(results: Results) -> Iterator[str]:
    rounds = max((len(one.rounds) for one in results.measured), default=0)
    yield f"{results.machine}; model `{results.model}`; medians of {rounds} rounds of {results.seconds:g} s, one run."


def _picture(results: Results, file: str) -> Iterator[str]:
    yield f"![CPU per token against concurrent streams]({file})"


_KINDS: dict[str, Callable[..., Iterator[str]]] = {
    "gateways": _gateways,
    "figures": _figures,
    "run": _run,
    "picture": _picture,
}


def _check(figure: str) -> None:
    if figure not in COLUMNS:
        raise ValueError(f"{figure!r} is no figure; there are {', '.join(COLUMNS)}")


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _row(cells)
    yield _row(["---", *["---:"] * (len(cells) - 1)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results, document = Results.load(Path(sys.argv[1])), Path(sys.argv[2])
    document.write_text(written(document.read_text(), results))


if __name__ == "__main__":
    main()
