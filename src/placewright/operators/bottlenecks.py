"""What a plan's time is made of: the critical path by device and link, and memory that is full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray
from placewright.operators.judge import OperatorJudgement

NEARLY_FULL = 0.9
"""Share of a device's memory from which it is named among the limits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that the plan's time hangs on.

    Attributes
    ----------
    kind
        ``"compute"``, ``"link"`` or ``"memory"``.
    name
        The device or the channel.
    share
        Of the makespan that the critical path spends there; for memory, of the bytes in use at
        the peak.
    """

    kind: str
    name: str
    share: float

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %"
        if self.kind == "memory":
            return f"memory of {self.name} is {percent} full"
        return f"{self.kind} on {self.name}: {percent} of the critical path"


def limits(played: OperatorJudgement, critical: BoolArray) -> tuple[Limit, ...]:
    """Tracks on the critical path, the largest share first, then devices that are nearly full.

    Parameters
    ----------
    critical
        One entry per span of the trace. Several paths may be critical: the shares then add up to
        more than one, and with free links, where transfers overlap, a single one may be above it.
    """
    trace = played.trace()
    length = np.where(critical, trace.end_s - trace.start_s, 0.0)
    spent = np.bincount(trace.track, length, minlength=len(trace.tracks))
    total = trace.duration_s
    found = [
        Limit("compute" if k < trace.devices else "link", trace.tracks[k], float(spent[k] / total))
        for k in np.argsort(-spent, kind="stable").tolist()
        if total > 0 and spent[k] > 0
    ]
    return (*found, *_full(played))


def _full(played: OperatorJudgement) -> list[Limit]:
    p = played.problem
    share = played.peak_bytes / np.maximum(p.memory_bytes, 1)
    near = np.flatnonzero(share >= NEARLY_FULL).tolist()
    return [Limit("memory", p.device_names[d], float(share[d])) for d in near]
