"""Which GPUs each engine gets."""

from __future__ import annotations

from ..engines.launch import LaunchError

#: What CUDA, and with it every engine, looks for GPUs by.
VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpu_shares(processes: int, each: int, listed: str | None) -> list[dict[str, str]]:
    """What each process has to have in its environment, beside ours, to see its own GPUs and no other's.

    A single process sees what this one does. Of several the first gets the first ``each`` devices, and so on; if none
    are listed, those from number 0 on.

    Parameters
    ----------
    processes, each
        How many there are, and GPUs that one takes.
    listed
        The value of ``CUDA_VISIBLE_DEVICES``, if it is set. An empty list says to do without GPUs, and stays.

    Raises
    ------
    LaunchError
        Fewer devices are listed than are needed.
    """
    needed = processes * each
    devices = [str(number) for number in range(needed)]
    if listed is not None:
        devices = [device for text in listed.split(",") if (device := text.strip())]
        if not devices:
            return [{}] * processes
        if len(devices) < needed:
            raise LaunchError(f"{processes} x {each} GPUs are needed, and {VARIABLE} lists {len(devices)}: {listed}")
    if processes == 1:
        return [{}]
    return [{VARIABLE: ",".join(devices[first : first + each])} for first in range(0, needed, each)]
