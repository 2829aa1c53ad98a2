"""Who did what when: the one format for predicted and for measured time.

`write_trace` writes it for ui.perfetto.dev and chrome://tracing (Trace Event Format, JSON).
Predicted and measured are two process groups, each device and link channel a thread of it.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.io.arguments import checked
from placewright.io.stored import write_file
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


Event = dict[str, Any]


def write_trace(path: str | Path, *, predicted: Trace, measured: Trace | None = None) -> Path:
    """Write a trace file, compressed if its name ends in ``.gz``.

    The same traces give the same bytes.
    """
    content = {"displayTimeUnit": "ms", "traceEvents": list(events(predicted, measured))}
    return write_file(path, json.dumps(content, separators=(",", ":")))


def events(predicted: Trace, measured: Trace | None = None) -> Iterator[Event]:
    """All events, the predicted group first."""
    for process, (name, trace) in enumerate((("predicted", predicted), ("measured", measured)), 1):
        if trace is not None:
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": _order(process)}
            yield from _threads(process, trace)
            yield from _spans(process, trace)
            yield from _memory(process, trace)


def _threads(process: int, trace: Trace) -> Iterator[Event]:
    for track, name in enumerate(trace.tracks):
        at = {"pid": process, "tid": track + 1}
        kind = "device" if track < trace.devices else "link"
        yield {"ph": "M", "name": "thread_name", **at, "args": {"name": f"{kind} {name}"}}
        yield {"ph": "M", "name": "thread_sort_index", **at, "args": _order(track)}


def _spans(process: int, trace: Trace) -> Iterator[Event]:
    rows = zip(
        trace.track.tolist(),
        trace.label.tolist(),
        (trace.start_s * 1e6).tolist(),
        ((trace.end_s - trace.start_s) * 1e6).tolist(),
        strict=True,
    )
    for track, label, start_us, length_us in rows:
        yield {
            "ph": "X",
            "name": trace.labels[label],
            "cat": "compute" if track < trace.devices else "transfer",
            "pid": process,
            "tid": track + 1,
            "ts": round(start_us, 4),
            "dur": round(length_us, 4),
        }


def _memory(process: int, trace: Trace) -> Iterator[Event]:
    for curve in trace.memory:
        name = f"memory {trace.tracks[curve.track]}"
        for time_s, held in zip(curve.times_s.tolist(), curve.held_bytes.tolist(), strict=True):
            yield {
                "ph": "C",
                "name": name,
                "pid": process,
                "ts": round(time_s * 1e6, 4),
                "args": {"bytes": held},
            }


def _order(place: int) -> dict[str, int]:
    return {"sort_index": place}
