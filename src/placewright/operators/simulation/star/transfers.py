"""Transfers through host memory (star) in time: what devices take in and what they bring out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judgement import HOST, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """Transfers between devices and host memory, all in one direction."""

    tensor: IntArray
    device: IntArray
    start_s: FloatArray
    end_s: FloatArray


def in_turn(
    tensor: IntArray,
    device: IntArray,
    took_s: FloatArray,
    clock_s: FloatArray,
    turn: IntArray | None = None,
) -> Halves:
    """One after another, in the order given.

    Parameters
    ----------
    clock_s
        When whoever sends is through with what comes before; moved on by this.
    turn
        Index into `clock_s` of each transfer: its device, unless told otherwise.
    """
    start, end = np.empty(len(tensor)), np.empty(len(tensor))
    turns = (device if turn is None else turn).tolist()
    for x, (at, took) in enumerate(zip(turns, took_s.tolist(), strict=True)):
        start[x] = clock_s[at]
        end[x] = clock_s[at] = clock_s[at] + took
    return Halves(tensor, device, start, end)


def through_host(taken: Halves, brought: Halves) -> Transfers:
    """What is taken in and what is brought out, by start time."""
    host = np.full(len(taken.tensor), HOST), np.full(len(brought.tensor), HOST)
    tensor = np.concatenate([taken.tensor, brought.tensor])
    source = np.concatenate([host[0], brought.device])
    target = np.concatenate([taken.device, host[1]])
    start = np.concatenate([taken.start_s, brought.start_s])
    end = np.concatenate([taken.end_s, brought.end_s])
    by = np.lexsort((target, tensor, end, start))
    return Transfers(tensor[by], source[by], target[by], start[by], end[by])
