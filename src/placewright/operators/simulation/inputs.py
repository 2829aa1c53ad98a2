"""Inputs and results of simulators, and batches of placements."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewright.errors import InputError
from placewright.numerics.arrays import IntArray, frozen_int, thawed
from placewright.operators.problem import OperatorProblem

NO_ORDER = np.zeros(0, dtype=np.int64)
"""Stands for the upward rank under each placement (rule O2)."""

PARALLEL_WORK = 1_000_000
"""Placements times (operators + tensor uses) from which a batch is shared among the cores."""


class Mode(NamedTuple):
    """Options of a simulation.

    Attributes
    ----------
    contended
        Channels carry one transfer at a time (rule C3), else any number (rule C5).
    serial
        One operator or transfer at a time in the whole system (rules S1 to S3).
    in_order
        Devices wait for the next operator of the order (rule D3).
    memory
        Peaks of memory are computed.
    """

    contended: bool
    serial: bool
    in_order: bool
    memory: bool


def default_order(p: OperatorProblem) -> IntArray:
    """The order of a plan that has none: upward rank (rule O2), or the problem's (rule O4)."""
    return np.arange(p.n) if p.program_order or p.micro_batch.any() else NO_ORDER


def checked_batch(
    p: OperatorProblem, placements: npt.ArrayLike, order: npt.ArrayLike | None
) -> tuple[IntArray, IntArray]:
    """Placements and order as arrays with which no kernel reads outside its arrays."""
    rows = np.atleast_2d(thawed(frozen_int(placements, f"placements for {p.name}")))
    if rows.shape[1] != p.n or (rows.size and (rows.min() < 0 or rows.max() >= p.m)):
        raise InputError(
            "every placement needs one device that exists per operator",
            where=p.name,
            by=f"shape {rows.shape} for {p.n} operators, {p.m} devices",
        )
    fixed = default_order(p) if order is None else thawed(frozen_int(order))
    if order is not None and not np.array_equal(np.sort(fixed), np.arange(p.n)):
        raise InputError("order must list every operator once", where=p.name)
    return rows, fixed


def parts_of_batch(rows: int, work: int) -> list[slice]:
    """One stretch of the rows per core where the batch is large."""
    cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    count = min(rows, cores or 1) if work >= PARALLEL_WORK else 1
    ends = [rows * x // count for x in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
