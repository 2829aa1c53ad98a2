"""Who did what when: the one format for predicted and for measured time."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.numerics.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes held by one lane: ``held_bytes[k]`` from ``times_s[k]`` until the next time."""

    lane: int
    times_s: FloatArray
    held_bytes: FloatArray
    capacity_bytes: float = float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Spans on lanes (devices and link channels) and the memory of the devices.

    Attributes
    ----------
    lanes
        Device names first, then channel names.
    devices
        How many of the lanes are devices.
    labels
        What ran: operator names first, then tensor names.
    lane, label
        One entry per span: index into `lanes` and `labels`.
    start_s, end_s
        One entry per span, seconds from the start of the step.
    """

    lanes: tuple[str, ...]
    devices: int
    labels: tuple[str, ...]
    lane: IntArray
    label: IntArray
    start_s: FloatArray
    end_s: FloatArray
    memory: tuple[MemoryCurve, ...] = ()
    title: str = ""

    @property
    def duration_s(self) -> float:
        """End of the last span."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0
