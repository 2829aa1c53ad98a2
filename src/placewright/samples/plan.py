"""What a planner of wing 3 answers: how many samples move from which node to which."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray, IntArray, IntVector, freeze_arrays
from placewright.samples.problem import SampleProblem


@checked
@dataclass(frozen=True, slots=True, eq=False)
class SamplePlan:
    """Moves, one entry each; in the order in which ports serve them where they queue.

    Attributes
    ----------
    source, target, count
        Shape (moves,): `count` samples go from node `source` to node `target`.
    sample_class
        Shape (moves,): the class of the samples; zeros by default.
    """

    source: IntVector
    target: IntVector
    count: IntVector
    sample_class: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.sample_class) == 0:
            object.__setattr__(self, "sample_class", np.zeros(len(self.source), dtype=np.int64))
        freeze_arrays(self)


def plan_of(problem: SampleProblem, flow: IntArray) -> SamplePlan:
    """The plan that moves ``flow[i, j, c]`` samples (or ``flow[i, j]`` of the only class)."""
    whole = flow.reshape(problem.n, problem.n, -1)
    source, target, sample_class = np.nonzero(whole)
    return SamplePlan(source, target, whole[whole != 0], sample_class)


def nothing() -> SamplePlan:
    """No sample moves."""
    none = np.zeros(0, dtype=np.int64)
    return SamplePlan(none, none, none)


def held_after(problem: SampleProblem, plan: SamplePlan) -> IntArray:
    """Shape (n, k): what each node holds when everything has moved."""
    held = problem.samples.copy()
    np.subtract.at(held, (plan.source, plan.sample_class), plan.count)
    np.add.at(held, (plan.target, plan.sample_class), plan.count)
    return held


def check_plan(problem: SampleProblem, plan: SamplePlan) -> None:
    """Raise where a plan moves what cannot be moved at all (limits are the judge's).

    Raises `InputError`: a node, a class or a link that does not exist, a count that is not
    positive.
    """
    where = f"plan for {problem.name}"
    if len({len(plan.source), len(plan.target), len(plan.count), len(plan.sample_class)}) > 1:
        raise InputError("source, target, count and class differ in length", where=where)
    for kind, entries, top in (
        ("node", plan.source, problem.n),
        ("node", plan.target, problem.n),
        ("class", plan.sample_class, problem.k),
    ):
        if len(entries) and not (entries.min() >= 0 and entries.max() < top):
            raise InputError(f"a move names a {kind} that does not exist", where=where)
    if (plan.count < 1).any():
        worst = int(plan.count.min())
        raise InputError("a move needs at least one sample", where=where, by=f"got {worst}")
    _check_links(problem, plan, where)


def _check_links(problem: SampleProblem, plan: SamplePlan, where: str) -> None:
    port_s: FloatArray = problem.send_s + problem.receive_s
    bad = np.flatnonzero(~np.isfinite(port_s[plan.source, plan.target]))
    bad = np.union1d(bad, np.flatnonzero(plan.source == plan.target))
    if len(bad):
        a, b = (problem.node_names[v[bad[0]]] for v in (plan.source, plan.target))
        raise InputError(f"no link from {a!r} to {b!r} that samples may take", where=where)
