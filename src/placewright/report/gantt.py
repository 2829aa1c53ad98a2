"""A trace as a Gantt chart: a track per device and per link that carried something.

`gantt` draws it; `timeline` adds the spans as data, by which ``timeline.js`` draws any part of it
as large as one likes and says of a span where it ran, when, and what it waited for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.report.page import (
    Note,
    data_element,
    device_class,
    drawing,
    few_digits,
    label,
    number,
    scroll,
    tag,
    ticks,
)
from placewright.report.text import numbers_are_bare, percent, seconds
from placewright.report.trace import Trace

WIDTH, LEFT, RIGHT = 1120.0, 132.0, 58.0
DEVICE_TRACK, LINK_TRACK, GAP = 30.0, 15.0, 6.0
FINEST_PX = 1.2
MOST_LINKS = 24
MOST_SPANS = 20_000
"""Of more, a page has the drawing alone."""

START_DIGITS = 9
"""Of the start of a span in a page: gaps are small beside it."""


def timeline(
    trace: Trace,
    *,
    title: str,
    until_s: float | None = None,
    critical: BoolArray | None = None,
    waits: IntArray | None = None,
    notes: Sequence[Note] = (),
) -> str:
    """The chart with its data, to zoom, pan and ask; those of one section move together.

    Parameters
    ----------
    title, until_s, critical
        As of `gantt`.
    waits
        For each span the one whose end it waited for, -1 where it waited for none.
    notes
        What else to say of each span: why it is there, what it would take elsewhere.
    """
    chart = scroll(gantt(trace, title=title, until_s=until_s, critical=critical))
    if not 0 < len(trace.track) <= MOST_SPANS:
        return chart
    order = np.lexsort((trace.end_s, trace.start_s, trace.track))
    data = _data(trace, order) | {
        "title": title,
        "until": until_s or trace.duration_s or 1.0,
        "frame": (LEFT, WIDTH - RIGHT, FINEST_PX),
        "bare": numbers_are_bare(),
    }
    if critical is not None:
        data["critical"] = critical[order].astype(int).tolist()
    if waits is not None:
        place = np.append(np.argsort(order), -1)  # the last one is that of -1
        data["waits"] = place[waits[order]].tolist()
    said = (Note(note.name, [note.of[k] for k in order]) for note in notes if any(note.of))
    data["notes"] = [note.as_json() for note in said]
    return tag("div", chart, data_element(data), class_="timeline", data_script="timeline")


def _data(trace: Trace, order: IntArray) -> dict[str, Any]:
    """The spans in this order, as columns; labels that none of them has are left out."""
    used, label_of = np.unique(trace.label[order], return_inverse=True)
    starts, lengths = trace.start_s[order], (trace.end_s - trace.start_s)[order]
    return {
        "tracks": trace.tracks,
        "devices": trace.devices,
        "labels": [trace.labels[k] for k in used.tolist()],
        "track": trace.track[order].tolist(),
        "label": label_of.tolist(),
        "start": [few_digits(x, START_DIGITS) for x in starts.tolist()],
        "length": [few_digits(x, START_DIGITS) for x in lengths.tolist()],
    }


_SCRIPT = re.compile(r'<script type="application/json">(\{"tracks":.*?)</script>')


def timelines_in(page: str) -> Iterator[tuple[str, Trace]]:
    """Title and trace of every `timeline` in a page that this version wrote."""
    for written in _SCRIPT.findall(page):
        data = json.loads(written)
        start_s = np.array(data["start"], dtype=np.float64)
        yield (
            data["title"],
            Trace(
                tracks=tuple(data["tracks"]),
                devices=data["devices"],
                labels=tuple(data["labels"]),
                track=np.array(data["track"], dtype=np.int64),
                label=np.array(data["label"], dtype=np.int64),
                start_s=start_s,
                end_s=start_s + np.array(data["length"], dtype=np.float64),
            ),
        )


def gantt(
    trace: Trace, *, title: str, until_s: float | None = None, critical: BoolArray | None = None
) -> str:
    """The trace as SVG.

    Parameters
    ----------
    title
        For screen readers.
    until_s
        End of the time axis, to draw two traces to one scale; by default the trace's own.
    critical
        Whether each span is on the critical path, and marked.
    """
    critical = np.zeros(len(trace.track), dtype=np.bool_) if critical is None else critical
    top = until_s or trace.duration_s or 1.0
    links, quieter = _busy_links(trace)
    tracks = [*range(trace.devices), *links]
    y, parts = 6.0, []
    for track in tracks:
        height = DEVICE_TRACK if track < trace.devices else LINK_TRACK
        parts.append(_track(trace, track, y, height, top, critical))
        y += height + GAP
    more = f"and {quieter} quieter links" if quieter else ""
    note = label(LEFT - 10, y + 15, more, "tick", "end") if more else ""
    end = _end_mark(trace.duration_s, top, y)
    return drawing(WIDTH, y + 22, _axis(top, y), *parts, end, note, title=title)


def _busy_links(trace: Trace) -> tuple[list[int], int]:
    """Links that carried something, the busiest if there are many, and how many are left out."""
    busy = np.zeros(len(trace.tracks))
    np.add.at(busy, trace.track, trace.end_s - trace.start_s)
    used = [k for k in range(trace.devices, len(trace.tracks)) if busy[k] > 0]
    drawn = sorted(used, key=lambda k: -busy[k])[:MOST_LINKS]
    return sorted(drawn), len(used) - len(drawn)


def _track(
    trace: Trace, track: int, y: float, height: float, top: float, critical: BoolArray
) -> str:
    is_device = track < trace.devices
    class_ = device_class(track) if is_device else "link"
    finest_s = top * FINEST_PX / (WIDTH - LEFT - RIGHT)
    blocks = visible_blocks(trace, track, finest_s, critical)
    busy = sum(b.busy_s for b in blocks) / (trace.duration_s or 1.0)
    parts = [
        tag("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=height, class_="row", rx=2),
        label(LEFT - 10, y + height / 2 + 4, _short(trace.tracks[track]), "name", "end"),
        tag("g", *[_bar(trace, block, y, height, top) for block in blocks], data_track=track),
        label(WIDTH - RIGHT + 8, y + height / 2 + 4, percent(busy), "busy"),
    ]
    return tag("g", *parts, class_=class_, data_device=track if is_device else None)


def _bar(trace: Trace, block: GanttBlock, y: float, height: float, top: float) -> str:
    x, length = _x(block.start_s, top), _x(block.end_s, top) - _x(block.start_s, top)
    dense = block.busy_s / max(block.end_s - block.start_s, 1e-30)
    return tag(
        "rect",
        x=x,
        y=y,
        width=max(length - (0.4 if length > 3 else 0), 0.6),
        height=height,
        class_="span critical" if block.critical else "span",
        opacity=None if dense > 0.9 else number(max(0.25, dense)),
        data_tip=_tip(trace, block),
    )


def _tip(trace: Trace, block: GanttBlock) -> str:
    what = trace.labels[block.label]
    if block.count > 1:
        what = f"{block.count} short spans, longest {what}"
    what += "\non the critical path" if block.critical else ""
    return f"{what}\n{seconds(block.start_s)} to {seconds(block.end_s)} ({seconds(block.busy_s)})"


def _axis(top: float, y: float) -> str:
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 15, seconds(t), "tick", "middle")
        for t in ticks(top, 8)
    ]
    return tag("g", *lines, class_="axis")


def _end_mark(end_s: float, top: float, y: float) -> str:
    x = _x(end_s, top)
    return tag("line", x1=x, x2=x, y1=2.0, y2=y, class_="end")


def _x(time_s: float, top: float) -> float:
    return LEFT + time_s / top * (WIDTH - LEFT - RIGHT)


def _short(name: str, most: int = 20) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


@dataclass(frozen=True, slots=True)
class GanttBlock:
    """One span, or a run of spans each too short to be seen alone.

    Attributes
    ----------
    busy_s
        Seconds of work in it; less than its length where small gaps were swallowed.
    count
        How many spans it stands for.
    label
        Index into the trace's labels of the longest span in it.
    critical
        Whether a span in it is on the critical path.
    """

    start_s: float
    end_s: float
    busy_s: float
    count: int
    label: int
    critical: bool = False


def visible_blocks(
    trace: Trace, track: int, finest_s: float, critical: BoolArray | None = None
) -> list[GanttBlock]:
    """The track's spans in order; runs of spans shorter than `finest_s` are merged.

    A run grows while the gap to the next span and that span itself are shorter than `finest_s`
    and the run is shorter than four times that, so a track has at most about
    ``duration / finest_s`` blocks.
    """
    which = np.flatnonzero(trace.track == track)
    which = which[np.lexsort((trace.end_s[which], trace.start_s[which]))]
    starts, ends = trace.start_s[which], trace.end_s[which]
    marked = np.zeros(len(which), dtype=np.bool_) if critical is None else critical[which]
    edges = [0, *_breaks(starts, ends, finest_s), len(which)]
    return [
        _block(starts[a:b], ends[a:b], trace.label[which[a:b]].tolist(), bool(marked[a:b].any()))
        for a, b in pairwise(edges)
        if b > a
    ]


def _breaks(starts: FloatArray, ends: FloatArray, finest_s: float) -> list[int]:
    """Where a new block begins."""
    breaks, began = [], starts[0] if len(starts) else 0.0
    for k in range(1, len(starts)):
        short = ends[k] - starts[k] < finest_s and ends[k - 1] - starts[k - 1] < finest_s
        near = starts[k] - ends[k - 1] < finest_s
        if not (short and near and ends[k] - began < 4 * finest_s):
            breaks.append(k)
            began = starts[k]
    return breaks


def _block(starts: FloatArray, ends: FloatArray, labels: list[int], critical: bool) -> GanttBlock:
    lengths = ends - starts
    longest = labels[int(lengths.argmax())]
    start, end = float(starts[0]), float(ends.max())
    return GanttBlock(start, end, float(lengths.sum()), len(labels), longest, critical)
