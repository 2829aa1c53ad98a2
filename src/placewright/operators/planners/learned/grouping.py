"""Groups of operators that a learned policy places as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.groups import groups_of
from placewright.operators.planners.learned.planner import softmax
from placewright.operators.problem import OperatorProblem

How = Literal["colocation", "chains", "modules"]


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Operators in groups, numbered in topological order of their first operators.

    Attributes
    ----------
    group
        Shape (n,), group of every operator.
    allowed
        Shape (count, m), devices that every member can use; at least one per group.
    work_s
        Shape (count,), seconds on the fastest allowed devices.
    """

    group: IntArray
    allowed: BoolArray
    work_s: FloatArray

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.allowed)

    @property
    def uniform(self) -> FloatArray:
        """Shape (count, m), the chance of each allowed device, all alike."""
        return softmax(np.zeros(self.allowed.shape), self.allowed)

    def placements(self, devices: IntArray) -> IntArray:
        """Devices of groups, shape (k, count), as devices of operators, shape (k, n)."""
        rows: IntArray = np.atleast_2d(devices)[:, self.group]
        return rows

    def devices(self, problem: OperatorProblem, placement: IntArray) -> IntArray:
        """Shape (count,): where most of a group's work is in a placement of operators."""
        share = np.zeros(self.allowed.shape)
        least = np.where(np.isfinite(problem.compute_s), problem.compute_s, np.inf).min(axis=1)
        np.add.at(share, (self.group, placement), least + 1e-12)
        chosen: IntArray = np.where(self.allowed, share, -1.0).argmax(axis=1)
        return chosen

    def adjacency_bytes(self, problem: OperatorProblem) -> FloatArray:
        """Shape (count, count): bytes from group to group, a tensor once per reading group."""
        tensor = problem.consumed
        to = self.group[problem.consumers]
        pairs = np.unique(np.stack([tensor, to]), axis=1)
        source = self.group[problem.tensor_producer[pairs[0]]]
        between = np.zeros((self.count, self.count))
        np.add.at(between, (source, pairs[1]), problem.tensor_bytes[pairs[0]])
        np.fill_diagonal(between, 0.0)
        return between


def group_operators(problem: OperatorProblem, how: How = "modules", at_most: int = 128) -> Grouping:
    """Group by colocation, and further.

    Raises `InfeasibleError`: a colocation group that no device can run.

    Parameters
    ----------
    how
        ``colocation``: no further. ``chains``: v joins its only successor s where v is the only
        predecessor of s. ``modules``: chains, then operators of one module; as ``chains`` where
        modules are not known.
    at_most
        Groups; neighbours in topological order are joined, evenly by work, until there are no
        more. More remain where groups have no device in common.
    """
    own = groups_of(problem)
    join = _Union(own.allowed.copy())
    if how != "colocation":
        _join_chains(problem, own.group, join)
    if how == "modules" and any(problem.operator_modules):
        _join_modules(problem, own.group, join, at_most)
    share = -1.0 if how == "colocation" else 0.0  # below zero nothing without work is joined
    return _evened(problem, join.roots()[own.group], join.allowed, at_most, share)


class _Union:
    """Disjoint sets with the devices that all members can use."""

    def __init__(self, allowed: BoolArray) -> None:
        self.allowed = allowed
        self.above = list(range(len(allowed)))

    def root(self, x: int) -> int:
        while self.above[x] != x:
            self.above[x] = self.above[self.above[x]]
            x = self.above[x]
        return x

    def join(self, a: int, b: int) -> bool:
        """Make one set of two where a device can run both."""
        a, b = self.root(a), self.root(b)
        both = self.allowed[a] & self.allowed[b]
        if a == b or not both.any():
            return a == b
        self.above[max(a, b)] = min(a, b)
        self.allowed[min(a, b)] = both
        return True

    def roots(self) -> IntArray:
        return np.array([self.root(x) for x in range(len(self.above))], dtype=np.int64)


def _join_chains(problem: OperatorProblem, group: IntArray, join: _Union) -> None:
    """Operators with one successor that has one predecessor."""
    edges = np.unique(np.stack([problem.consumed_from, problem.consumers]), axis=1)
    successors = np.bincount(edges[0], minlength=problem.n)
    predecessors = np.bincount(edges[1], minlength=problem.n)
    alone = (successors[edges[0]] == 1) & (predecessors[edges[1]] == 1)
    for v, s in edges[:, alone].T.tolist():
        join.join(int(group[v]), int(group[s]))


def _join_modules(problem: OperatorProblem, group: IntArray, join: _Union, at_most: int) -> None:
    """Operators of one module; of the deepest level of modules that is not too many."""
    paths = [path.split(".") if path else [] for path in problem.operator_modules]
    deepest = max(map(len, paths))
    for depth in range(deepest, 0, -1):
        names = [".".join(path[:depth]) for path in paths]
        if len(Counter(names)) <= at_most or depth == 1:
            break
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name:
            join.join(first.setdefault(name, int(group[i])), int(group[i]))


def _evened(
    problem: OperatorProblem, label: IntArray, allowed: BoolArray, at_most: int, joined: float
) -> Grouping:
    """Number the groups topologically, and join neighbours where there are too many."""
    roots, group = np.unique(label, return_inverse=True)
    first = np.full(len(roots), problem.n)
    np.minimum.at(first, group, problem.topology.position)
    least = np.where(problem.allowed(), problem.compute_s, np.inf).min(axis=1)
    work = np.bincount(group, least, len(roots)).astype(np.float64)
    order = np.argsort(first, kind="stable").tolist()
    number, devices = _runs(order, work, allowed[roots], joined)
    share = work.sum() / at_most
    while len(devices) > at_most:
        fewer = _runs(order, work, allowed[roots], share)
        if len(fewer[1]) == len(devices) and share > work.sum():
            break  # no two neighbours have a device in common
        (number, devices), share = fewer, share * 1.2
    numbered = number[group]
    work = np.bincount(numbered, least, len(devices)).astype(np.float64)
    return Grouping(numbered, np.stack(devices), work)


def _runs(
    order: list[int], work: FloatArray, allowed: BoolArray, share: float
) -> tuple[IntArray, list[BoolArray]]:
    """Neighbours in `order` joined up to `share` of work each, where a device can run both."""
    number, devices, filled = np.empty(len(order), dtype=np.int64), [allowed[order[0]]], 0.0
    for g in order:
        both = devices[-1] & allowed[g]
        if g == order[0] or (both.any() and filled + work[g] <= share):
            devices[-1], filled = both, filled + work[g]
        else:
            devices.append(allowed[g])
            filled = float(work[g])
        number[g] = len(devices) - 1
    return number, devices
