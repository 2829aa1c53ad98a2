"""Spans that can be seen: thousands become as many as there are pixels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.trace import Trace


@dataclass(frozen=True, slots=True)
class Block:
    """One span, or a run of spans each too short to be seen alone.

    Attributes
    ----------
    busy_s
        Seconds of work in it; less than its length where small gaps were swallowed.
    count
        How many spans it stands for.
    label
        Index into the trace's labels of the longest span in it.
    """

    start_s: float
    end_s: float
    busy_s: float
    count: int
    label: int


def visible_blocks(trace: Trace, track: int, finest_s: float) -> list[Block]:
    """The track's spans in order; runs of spans shorter than `finest_s` are merged.

    A run grows while the gap to the next span and that span itself are shorter than `finest_s`
    and the run is shorter than four times that, so a track has at most about
    ``duration / finest_s`` blocks.
    """
    which = np.flatnonzero(trace.track == track)
    which = which[np.lexsort((trace.end_s[which], trace.start_s[which]))]
    starts, ends = trace.start_s[which], trace.end_s[which]
    edges = [0, *_breaks(starts, ends, finest_s), len(which)]
    return [
        _block(starts[a:b], ends[a:b], trace.label[which[a:b]].tolist())
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


def _block(starts: FloatArray, ends: FloatArray, labels: list[int]) -> Block:
    lengths = ends - starts
    longest = labels[int(lengths.argmax())]
    start, end = float(starts[0]), float(ends.max())
    return Block(start, end, float(lengths.sum()), len(labels), longest)
