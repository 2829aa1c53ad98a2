"""CPUs with more cores than this machine: more threads than cores would time their quarrel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from placewright.cluster.cluster import Device
from placewright.cluster.detect import cpu_cores
from placewright.profiling.caveats import ProfileWarning


class TooFewCoresWarning(ProfileWarning):
    """A CPU of the cluster has more cores than this machine: its costs are not its own."""


def cores_to_measure(device: Device) -> int:
    """Cores of this machine that are measured for a CPU, 0 where it is computed instead.

    One that has more cores than are here is computed where its ``peak_flops`` is known, else
    the cores that are here stand for it.
    """
    here = cpu_cores()
    if device.cores <= here:
        return device.cores
    return 0 if device.peak_flops is not None else here


def warn_of_cores(what: str, devices: Sequence[Device]) -> None:
    """Warn of the CPUs among `devices` that this machine has too few cores for.

    Parameters
    ----------
    what
        Is to be measured.
    """
    large = [d for d in devices if d.cores > cpu_cores()]
    computed = [d for d in large if cores_to_measure(d) == 0]
    measured = [d for d in large if cores_to_measure(d) > 0]
    if computed:
        _warn(f"{what} was computed from peak_flops, not measured,", computed, "")
    if measured:
        _warn(f"{what} was measured with too few cores", measured, "give peak_flops, or ")


def _warn(what: str, devices: Sequence[Device], other: str) -> None:
    names = ", ".join(f"{d.name} ({d.cores})" for d in devices)
    most = max(d.cores for d in devices)
    warnings.warn(
        f"{what} for {names}: this machine has {cpu_cores()} cores\n"
        f"  next: {other}profile on a machine with {most} cores and keep it with --table",
        TooFewCoresWarning,
        stacklevel=4,
    )
