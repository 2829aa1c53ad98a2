"""Features of groups of operators."""

from __future__ import annotations

import math
from zlib import crc32

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.learned.graph_features import standardised
from placewright.operators.planners.learned.grouping import Grouping
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import groups_of

VERSION = "groups 1"
"""Version of `group_features`; changes with the meaning of any column."""

KINDS = 16
"""Columns over which operator kinds are spread by a hash: the same for every graph."""

SHAPES, DIMENSIONS, NEIGHBOURS = 5, 5, 20
"""Columns of a published operator feature, after its type: shapes, of so many dimensions each, and
neighbours."""


def group_features(problem: OperatorProblem, grouping: Grouping, start: IntArray) -> FloatArray:
    """Shape (groups, columns): times, bytes, kinds, degrees, position, and a start's devices.

    Columns are centred and scaled; the last m are the devices of `start`, shape (n,), one-hot.
    """
    p, group, count = problem, grouping.group, grouping.count
    finite = np.where(np.isfinite(p.compute_s), p.compute_s, np.nanmax(_finite(p.compute_s)))
    work = np.stack([np.bincount(group, finite[:, d], count) for d in range(p.m)], axis=1)
    mean = work.mean(axis=1)
    between = grouping.adjacency_bytes(p)
    sizes = np.stack(
        [between.sum(axis=0), between.sum(axis=1), np.bincount(group, p.resident_bytes, count)],
        axis=1,
    )
    degree = np.stack([(between > 0).sum(axis=0), (between > 0).sum(axis=1)], axis=1)
    position = np.arange(count) / max(1, count - 1)
    waves = [f(math.pi * 2**k * position) for k in range(5) for f in (np.sin, np.cos)]
    columns = [
        np.log1p(mean / (mean.mean() + 1e-30)),
        *(work / (mean[:, None] + 1e-30)).T,
        *np.log1p(sizes).T,
        *np.log1p(degree).T,
        np.log1p(np.bincount(group, minlength=count)),
        position,
        *np.log1p(_kinds(p, group, count)).T,
        *waves,
    ]
    scaled = standardised(np.stack(columns, axis=1), least=1e-12)
    hot = (grouping.devices(p, start)[:, None] == np.arange(p.m)).astype(np.float64)
    return np.concatenate([scaled, hot], axis=1)


def hp3c_features(problem: OperatorProblem) -> FloatArray:
    """Shape (colocation groups, 46): type number, shapes padded with -1, signed neighbours.

    Of a group's first operator. Neighbours are operators' numbers plus one, negative for producers.
    Kinds and shapes that are not known are type 0 and all -1.
    """
    p, first = problem, groups_of(problem).first
    kinds = list(p.operator_kinds) or [""] * p.n
    number = {kind: k for k, kind in enumerate(sorted(set(kinds)))}
    signed: list[list[int]] = [[] for _ in range(p.n)]
    for a, b in zip(p.consumed_from.tolist(), p.consumers.tolist(), strict=True):
        signed[b].append(-(a + 1))
        signed[a].append(b + 1)
    rows = []
    for i in first.tolist():
        shape = _dimensions(p, i)
        near = signed[i][:NEIGHBOURS]
        rows.append([number[kinds[i]], *shape, *near, *[0] * (NEIGHBOURS - len(near))])
    return np.array(rows, dtype=np.float64)


def _dimensions(p: OperatorProblem, i: int) -> list[int]:
    """Five shapes of five dimensions, of which one is known."""
    known = list(p.output_shapes[i])[:DIMENSIONS] if p.output_shapes else []
    return [*known, *[-1] * (SHAPES * DIMENSIONS - len(known))]


def _kinds(p: OperatorProblem, group: IntArray, count: int) -> FloatArray:
    """Shape (count, KINDS): operators of a group by hashed kind."""
    found = np.zeros((count, KINDS))
    if p.operator_kinds:
        column = np.array([crc32(kind.encode()) % KINDS for kind in p.operator_kinds])
        np.add.at(found, (group, column), 1.0)
    return found


def _finite(values: FloatArray) -> FloatArray:
    kept: FloatArray = np.where(np.isfinite(values), values, 0.0)
    return kept
