"""Who did what when: the one format for predicted and for measured time."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes held by one track: ``held_bytes[k]`` from ``times_s[k]`` until the next time."""

    track: int
    times_s: FloatArray
    held_bytes: FloatArray
    capacity_bytes: float = float("inf")


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Spans on tracks (devices and link channels) and the memory of the devices.

    Attributes
    ----------
    tracks
        Device names first, then channel names.
    devices
        How many of the tracks are devices.
    labels
        What ran: operator names first, then tensor names.
    track, label
        One entry per span: index into `tracks` and `labels`.
    start_s, end_s
        One entry per span, seconds from the start of the step.
    """

    tracks: tuple[str, ...]
    devices: int
    labels: tuple[str, ...]
    track: IntArray
    label: IntArray
    start_s: FloatArray
    end_s: FloatArray
    memory: tuple[MemoryCurve, ...] = ()
    title: str = ""

    @property
    def duration_s(self) -> float:
        """End of the last span."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0
