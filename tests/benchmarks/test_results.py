"""Results as tables: of a run, of two runs, in a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import compare
from bench.document import written
from bench.results import Figures, Measured, Results, rows
from bench.scenarios import SCENARIOS


def results(**costs: float) -> Results:
    """One load, by gateway; a second round was twice, a third half as expensive."""
    return Results(
        machine="a machine",
        model="a model",
        seconds=1.0,
        measured=[
            Measured(
                runtime="vllm",
                scenario="paced-64",
                load=SCENARIOS["paced-64"],
                gateway=gateway.replace("_", "-"),
                rounds=[Figures(cpu_us=cost * factor) for factor in (1, 2, 0.5)],
            )
            for gateway, cost in costs.items()
        ],
    )


def test_a_run_tells_medians_and_ratios() -> None:
    head, ours, *_, floor = rows(results(smg_fast=6.0, smg=24.0, vllm_rs=20.0, floor=4.0))
    assert head[1] == "us/token"
    assert (ours[0], ours[1], *ours[-2:]) == ("vllm paced-64 smg-fast", "6.00", "0.300", "1.500")
    assert (floor[0], floor[1], *floor[-2:]) == ("vllm paced-64 floor", "4.00", "", "")


def test_another_build_is_no_peer() -> None:
    _, ours, _ = rows(results(smg_fast=6.0, baseline=8.0))
    assert ours[-2:] == ["-", "-"]


def test_two_runs_are_compared_where_they_have_the_same_load(tmp_path: Path) -> None:
    before, after = results(smg_fast=8.0, smg=24.0), results(smg_fast=6.0)
    after.save(tmp_path / "after.json")
    head, ratio = compare.rows(before, Results.load(tmp_path / "after.json"))
    assert head[:2] == ["after / before", "us/token"]
    assert ratio[:3] == ["vllm paced-64 smg-fast", "0.750", "-"]


DOCUMENT = """\
Before.
<!-- gateways cpu_us vllm paced-64 paced-256 -->
{}<!-- end -->
<!-- gateways cpu_us tokenspeed paced-64 -->
<!-- end -->
After.
"""


def test_a_document_gets_the_tables_that_were_measured() -> None:
    table = """
|  | smg-fast | smg | floor | / best peer | / floor |
| --- | ---: | ---: | ---: | ---: | ---: |
| paced-64 | 6.00 | 24.00 | 4.00 | 0.250 | 1.500 |

"""
    once = written(DOCUMENT.format("stale\n"), results(smg_fast=6.0, smg=24.0, floor=4.0))
    assert once == DOCUMENT.format(table)
    assert written(once, results(smg_fast=6.0, smg=24.0, floor=4.0)) == once


def test_a_document_cannot_ask_for_what_is_no_figure() -> None:
    with pytest.raises(ValueError, match="'speed' is no figure"):
        written("<!-- gateways speed vllm paced-64 -->\n<!-- end -->", results(smg_fast=6.0))
