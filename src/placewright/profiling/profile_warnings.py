"""Warnings about costs that differ from those requested, and the checks that raise them."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence

from placewright.cluster.cluster import Device
from placewright.cluster.devices import cpu_cores
from placewright.graph.graph import Graph
from placewright.runtime.host import busy_seconds, children_of, process_seconds


class ProfileWarning(UserWarning):
    """Costs differ from those that were requested."""


class BusyMachineWarning(ProfileWarning):
    """Other processes were running during the measurement, so the measured times are too long."""


class TooFewCoresWarning(ProfileWarning):
    """A CPU of the cluster has more cores than this machine: its costs are not its own."""


class SharedCoresWarning(ProfileWarning):
    """Workers of this machine share its cores, and take longer when all of them compute."""


class UncountedWarning(ProfileWarning):
    """Costs that are computed leave out what some operators compute."""


class MessagesNotMeasuredWarning(ProfileWarning):
    """Links are taken as they are given, because two workers could not be started."""


class NotMeasuredWarning(ProfileWarning):
    """Costs were computed because PyTorch, which measures them, is not installed."""


class OtherMachineWarning(ProfileWarning):
    """A kept profile was measured on another machine than this one."""


SAMPLE_S = 0.25

TOLERATED_CPUS = 0.25
"""CPUs that may be busy beside the measurement: an editor, a shell."""


def warn_of_background_load(what: str, cores: int) -> None:
    """Warn if other processes keep the `cores` cores busy on which `what` is to be measured.

    They share its cores and its memory bus, and a profile would count what they cost as the
    operators' own time. Never warns where the system has no /proc (other than Linux).
    """
    count = os.cpu_count() or 1
    busy = busy_cpus()
    if busy > max(TOLERATED_CPUS, count - cores - TOLERATED_CPUS):
        warnings.warn(
            f"{what} was measured while other processes kept {busy:.1f} of {count} CPUs busy: "
            "costs are too high\n  next: profile again when the machine is idle",
            BusyMachineWarning,
            stacklevel=2,
        )


def warn_of_shared_cores(what: str, devices: Sequence[Device]) -> None:
    """Warn where CPUs that are busy at once ask for more cores than this machine has.

    An emulated one that is slower by its `speed` waits for the rest of the time.
    """
    cpus, have = [d for d in devices if d.kind == "cpu"], cpu_cores()
    wanted = sum(d.cores * min(1.0, d.speed) for d in cpus)
    if len(cpus) > 1 and wanted > have:
        warnings.warn(
            f"the {len(cpus)} CPUs of {what} ask for {wanted:g} cores when all are busy, and this "
            f"machine has {have}: their workers share them and take longer than predicted\n"
            "  next: give devices a lower `speed`, or each a machine of its own (torchrun, ray)",
            SharedCoresWarning,
            stacklevel=4,
        )


def busy_cpus(seconds: float = SAMPLE_S) -> float:
    """CPUs that other processes keep busy; what a hypervisor took away counts too.

    This process and its children do not count: what they have begun ends before a worker starts.
    Where next to nothing is at work, two fifths of the time show it.
    """
    start, before, busy = time.perf_counter(), _others_s(), 0.0
    for part in (0.4, 0.6):
        time.sleep(part * seconds)
        busy = max(0.0, _others_s() - before) / max(time.perf_counter() - start, 1e-3)
        if busy <= TOLERATED_CPUS / 2:
            break
    return busy


def _others_s() -> float:
    """CPU seconds of all but this process and its children since boot, 0 where unknown."""
    own = map(process_seconds, (os.getpid(), *children_of(os.getpid())))
    return (busy_seconds() or 0.0) - sum(own)


def cores_to_measure(device: Device) -> int:
    """Cores of this machine that are measured for a CPU, 0 where it is computed instead.

    One that has more cores than are here is computed where its ``peak_flops`` is known, else
    the cores that are here stand for it: more threads than cores would time their contention.
    """
    here = cpu_cores()
    if device.cores <= here:
        return device.cores
    return 0 if device.peak_flops is not None else here


def warn_of_cores(what: str, devices: Sequence[Device]) -> None:
    """Warn of the CPUs among `devices` that this machine has too few cores to measure."""
    large = [d for d in devices if d.cores > cpu_cores()]
    computed = [d for d in large if cores_to_measure(d) == 0]
    measured = [d for d in large if cores_to_measure(d) > 0]
    for group, how, advice in (
        (computed, "computed from peak_flops, not measured,", ""),
        (measured, "measured with too few cores", "give peak_flops, or "),
    ):
        if group:
            names = ", ".join(f"{d.name} ({d.cores})" for d in group)
            most = max(d.cores for d in group)
            warnings.warn(
                f"{what} was {how} for {names}: this machine has {cpu_cores()} cores\n"
                f"  next: {advice}profile on a machine with {most} cores and keep it with --table",
                TooFewCoresWarning,
                stacklevel=3,
            )


NAMED_SHARE = 0.001
"""Share of a model's bytes from which PyTorch's own operators without a formula are named."""


def warn_of_uncounted(graph: Graph, computed: Sequence[Device]) -> None:
    """Name the kinds of operators without a FLOP formula on the devices that are `computed`.

    Those of PyTorch are named from `NAMED_SHARE` of the bytes that the model moves; what others
    compute cannot be told from their bytes, so they always are.
    """
    shares = uncounted_shares(graph)
    named = [
        kind
        for kind, share in shares.items()
        if share >= NAMED_SHARE or kind.partition(".")[0] not in ("aten", "prims")
    ]
    if not computed or not named:
        return
    count = Counter(op.kind for op in graph.operators)
    listed = ", ".join(f"{kind} ({count[kind]}x, {100 * shares[kind]:.2g} %)" for kind in named)
    where = ", ".join(device.name for device in computed[:3]) + (", ..." if computed[3:] else "")
    advice = "profile on a machine that has the device and keep it with --table"
    if not any(kind.startswith(("onnx.", "openvino.", "tensorflow.")) for kind in named):
        formula = "torch.utils.flop_counter.register_flop_formula"
        advice = f"give them a formula by {formula} before the model is captured"
    warnings.warn(
        f"{graph.name}: no formula for what these operators compute (in brackets: how many, and "
        f"their share of the bytes that all operators move): {listed}. On {where} their costs "
        f"count bytes alone; {advice}",
        UncountedWarning,
        stacklevel=3,
    )


def uncounted_shares(graph: Graph) -> dict[str, float]:
    """Kinds of operators without a formula, and their share of the bytes that are moved."""
    total = sum(op.bytes_accessed for op in graph.operators) or 1.0
    shares: dict[str, float] = {}
    for op in graph.operators:
        if op.uncounted:
            shares[op.kind] = shares.get(op.kind, 0.0) + op.bytes_accessed / total
    return shares
