"""Which GPUs engines get."""

from __future__ import annotations

import pytest

from smg_fast.commands.gpus import gpu_shares
from smg_fast.engines.launch import LaunchError


def shares(processes: int, each: int, listed: str | None) -> list[str | None]:
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in gpu_shares(processes, each, listed)]


@pytest.mark.parametrize(
    ("processes", "each", "listed", "expected"),
    [
        (2, 2, "4,5,6,7", ["4,5", "6,7"]),
        (3, 1, "2, 0 ,1", ["2", "0", "1"]),
        (2, 1, "GPU-8f2c,MIG-11aa,3", ["GPU-8f2c", "MIG-11aa"]),
        (2, 4, None, ["0,1,2,3", "4,5,6,7"]),
        (2, 4, "", [None, None]),
        (1, 4, None, [None]),
        (1, 2, "6,7,8", [None]),
    ],
)
def test_each_process_sees_its_own(processes: int, each: int, listed: str | None, expected: list[str | None]) -> None:
    assert shares(processes, each, listed) == expected


@pytest.mark.parametrize(
    ("processes", "each", "listed", "said"),
    [(2, 2, "0,1,2", "2 x 2 GPUs are needed, and CUDA_VISIBLE_DEVICES lists 3: 0,1,2"), (1, 2, "5", "1 x 2 GPUs")],
)
def test_too_few_are_refused(processes: int, each: int, listed: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        gpu_shares(processes, each, listed)
