"""CPU per token against concurrency, drawn: python -m bench.plot RESULTS.json PICTURE.svg"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import FLOOR, OURS, Measured, Results

# The file is kept under version control: the same results make the same bytes, and text stays text.
mpl.rcParams.update({"svg.hashsalt": "smg-fast", "svg.fonttype": "none", "font.size": 9})

_COLOURS = {OURS: "#c0392b", FLOOR: "#7f8c8d"}
_OTHERS = ("#2471a3", "#1e8449", "#b9770e")


def _curves(results: Results, runtime: str) -> dict[str, list[Measured]]:
    """By gateway, what was measured of streams at the engine's usual pace, in order of their number."""
    curves: dict[str, list[Measured]] = {}
    for one in sorted(results.measured, key=lambda one: one.load.streams):
        is_of_curve = one.scenario == f"paced-{one.load.streams}" and one.load.tick_ms == 10
        if one.runtime == runtime and is_of_curve:
            curves.setdefault(one.gateway, []).append(one)
    return curves


def _draw(axes: Axes, curves: dict[str, list[Measured]], title: str) -> None:
    others = iter(_OTHERS)
    for gateway, measured in curves.items():
        streams = [one.load.streams for one in measured]
        costs = [one.median.cpu_us or 0.0 for one in measured]
        style = "--" if gateway == FLOOR else "-"
        axes.plot(streams, costs, style, marker="o", label=gateway, color=_COLOURS.get(gateway) or next(others))
    axes.set(title=title, xlabel="concurrent streams", xscale="log", yscale="log")
    axes.set_xticks(ticks := sorted({one.load.streams for measured in curves.values() for one in measured}))
    axes.set_xticklabels([f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(costs := [1, 2, 5, 10, 20, 50, 100, 200, 500])
    axes.set_yticklabels([f"{cost}" for cost in costs])
    axes.grid(alpha=0.3)
    axes.legend()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = (Path(name) for name in sys.argv[1:])
    results = Results.load(source)
    runtimes = {one.runtime: _curves(results, one.runtime) for one in results.measured}
    figure = Figure(figsize=(4.2 * len(runtimes), 3.6), layout="constrained")
    panels = figure.subplots(1, len(runtimes), sharey=True, squeeze=False)[0]
    for axes, (runtime, curves) in zip(panels, runtimes.items(), strict=True):
        _draw(axes, curves, f"{runtime}'s wire, a token every 10 ms")
    panels[0].set_ylabel("gateway CPU per token, µs")
    figure.savefig(target, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
