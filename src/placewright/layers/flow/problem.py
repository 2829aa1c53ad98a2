"""Machines that each hold a range of a model's layers, the links between them, and the judge.

A plan is worth the maximum flow of tokens through the machines. Each machine is an arc with the
tokens/s of the layers that it holds; ``source -> i`` is open where i begins with layer 0,
``i -> sink`` where it ends with the last one, ``i -> j`` where j begins where i ends (with partial
inference: where it holds the next layer), each with the tokens/s of its link. Ends grow along every
path, so that there are no circles and a path runs every layer once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.layers.flow.kernels import max_flow, workspace
from placewright.numerics.arrays import FloatArray, IntArray, check_names, freeze_arrays
from placewright.planning.contract import Problem
from placewright.report.text import plain_table

MOST_NODES, MOST_LAYERS = 1_000, 10_000
"""Links are a table of all pairs of machines, loads one of machines by layers."""

LARGEST_RATE = 1e15
"""Tokens/s: sums of rates up to it lose nothing that matters."""


@dataclass(frozen=True, slots=True)
class LayerRanges:
    """A plan: machine i holds layers ``start[i]`` to ``end[i] - 1``; none where both are 0."""

    start: tuple[int, ...]
    end: tuple[int, ...]


@checked
@dataclass(frozen=True, slots=True, eq=False)
class FlowProblem(Problem["LayerRanges", "FlowJudgement"]):
    """Which layers to hold on which machine, for the most tokens per second.

    Attributes
    ----------
    layers
        L, all alike.
    node_names, node_types
        Of the n machines.
    rates
        Shape (n, K + 1): tokens/s of a machine that holds k layers; 0 where it cannot hold so many,
        and in column 0. More layers may be faster: tables are measured.
    links
        Shape (n + 2, n + 2): tokens/s from machine to machine, 0 where there is no link. Row n is
        the source and column n + 1 the sink, both the coordinator.
    latency_s
        The same shape; not part of the objective.
    partial_inference
        Whether a machine may begin in the middle of its range, at the same rate.
    layer_bytes, token_bytes, activation_bytes
        Of a layer's weights, of a token, and of what machines exchange per token: for the file.
    """

    layers: int
    node_names: tuple[str, ...]
    node_types: tuple[str, ...]
    rates: FloatArray
    links: FloatArray
    latency_s: FloatArray
    partial_inference: bool = False
    layer_bytes: float = 0.0
    token_bytes: float = 2.0
    activation_bytes: float = 1.0
    name: str = "flow"

    def __post_init__(self) -> None:
        freeze_arrays(self)
        n, shape = len(self.node_names), (len(self.node_names) + 2,) * 2
        if not 1 <= n <= MOST_NODES:
            raise InputError(f"must be 1 to {MOST_NODES} machines", where="nodes", by=f"got {n}")
        if not 1 <= self.layers <= MOST_LAYERS:
            by = f"got {self.layers}"
            raise InputError(f"must be 1 to {MOST_LAYERS}", where="num_layers", by=by)
        check_names("machine", self.node_names, "nodes")
        if len(self.node_types) != n or self.rates.ndim != 2 or len(self.rates) != n:
            raise InputError("must have a row for each machine", where="rates and types")
        if self.links.shape != shape or self.latency_s.shape != shape:
            raise InputError(f"must have the shape {shape}", where="links and latency_s")
        for what, table in (("throughput", self.rates), ("links", self.links)):
            if not ((table >= 0) & (table <= LARGEST_RATE)).all():
                by = f"0 to {LARGEST_RATE:g} tokens/s"
                raise InputError("holds a rate that is none", where=what, by=by)
        if self.rates[:, 0].any() or np.diagonal(self.links).any():
            raise InputError("no layers have no rate, and nothing links to itself", where=self.name)

    @property
    def n(self) -> int:
        """Number of machines."""
        return len(self.node_names)

    @property
    def most(self) -> IntArray:
        """Shape (n,): the most layers that each machine can hold, L at most; 0 for none."""
        able = self.rates[:, : self.layers + 1] > 0
        return np.where(able.any(axis=1), able.shape[1] - 1 - able[:, ::-1].argmax(axis=1), 0)

    @property
    def classes(self) -> IntArray:
        """Shape (n,): machines with equal tables have the same number."""
        return np.unique(self.rates, axis=0, return_inverse=True)[1].reshape(-1)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan."""
        digest = hashlib.sha256(f"{self.layers} {self.partial_inference}".encode())
        for part in (self.node_names, self.rates.tobytes(), self.links.tobytes()):
            digest.update(repr(part).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        rows = []
        for kind in dict.fromkeys(self.node_types):
            own = [i for i, each in enumerate(self.node_types) if each == kind]
            most, first = int(self.most[own[0]]), self.rates[own[0]]
            rows.append((kind, str(len(own)), str(most), f"{first[1]:.5g}", f"{first[most]:.5g}"))
        header = ("type", "machines", "most layers", "tokens/s of 1", "of the most")
        count = int(np.count_nonzero(self.links))
        head = f"{self.name}: {self.layers} layers, {self.n} machines, {count} links"
        return f"{head}\n{plain_table(header, rows, ' rrrr')}"


def ranges_of(starts: Any, ends: Any) -> LayerRanges:
    """The plan of two arrays."""
    return LayerRanges(tuple(int(x) for x in starts), tuple(int(x) for x in ends))


def check_plan(problem: FlowProblem, plan: LayerRanges) -> None:
    """Raise `InputError` where a machine holds what it cannot."""
    if not len(plan.start) == len(plan.end) == problem.n:
        by = f"{len(plan.start)} and {len(plan.end)} for {problem.n}"
        raise InputError("must have a range for each machine", where="placement", by=by)
    for name, s, e, most in zip(
        problem.node_names, plan.start, plan.end, problem.most.tolist(), strict=True
    ):
        if (s, e) == (0, 0):
            continue
        if not 0 <= s < e <= problem.layers:
            by = f"[{s}, {e}] of {problem.layers} layers"
            raise InputError("is no range of layers", where=f"placement of {name}", by=by)
        if e - s > most:
            by, hint = f"{e - s} layers, at most {most}", "give it fewer layers"
            raise InputError("cannot hold these", where=f"placement of {name}", by=by, hint=hint)


@dataclass(frozen=True, slots=True, eq=False)
class FlowJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Tokens/s.
    carried
        Shape (n,): tokens/s through each machine.
    violation, violation_size
        What keeps every token from passing, and the number of layers that no machine holds, or 1
        where links are missing.
    """

    problem: FlowProblem
    plan: LayerRanges
    value: float
    carried: FloatArray
    violation: str
    violation_size: float

    @property
    def feasible(self) -> bool:
        """Whether any token passes all layers."""
        return not self.violation

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        used = self.carried > 0
        held = np.subtract(self.plan.end, self.plan.start)
        work = float(self.carried @ held)
        return {
            "machines": (float(used.sum()), ""),
            "layers held per layer": (float(held[used].sum()) / self.problem.layers, ""),
            "tokens x layers": (work, ""),
        }

    def trace(self) -> None:
        """Flows have no timeline."""
        return


def judge(problem: FlowProblem, plan: LayerRanges) -> FlowJudgement:
    """Tokens/s of a plan.

    Raises `InputError`: it is no plan of the problem.
    """
    check_plan(problem, plan)
    work, left = workspace(problem.n, problem.layers)
    value = max_flow(
        np.array(plan.start),
        np.array(plan.end),
        problem.rates,
        problem.links,
        problem.layers,
        problem.partial_inference,
        work,
        left,
    )
    carried = left[0, 1 : 2 * problem.n : 2].copy()
    violation, missing = "", 0.0
    if value <= 0:
        held = np.zeros(problem.layers, dtype=bool)
        for s, e in zip(plan.start, plan.end, strict=True):
            held[s:e] = True
        missing = float((~held).sum())
        what = f"no machine holds layer {int(held.argmin())}" if missing else "no links join them"
        missing = missing or 1.0  # a link is
        violation = f"no token passes all {problem.layers} layers: {what}"
    return FlowJudgement(problem, plan, float(value), carried, violation, missing)
