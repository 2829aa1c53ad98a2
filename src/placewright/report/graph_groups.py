"""What the picture of a graph shows: operators, or groups of them where there are too many."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.graph.program import ORDER_ONLY
from placewright.numerics.arrays import BoolArray, IntArray

if TYPE_CHECKING:
    from placewright.graph.graph import Graph
    from placewright.operators.problem import OperatorProblem

MOST_NODES = 400
"""More operators than these are drawn in groups."""

MOST_GROUPS = 200
BACK = ("backward", "optimizer")
MOST_COLUMNS = 72


@dataclass(frozen=True, slots=True)
class Node:
    """One operator or group.

    Attributes
    ----------
    depth
        Mean number of operators on the longest path that leads to it.
    seconds
        Compute on its device.
    back
        Whether it is of the backward or the optimizer phase.
    """

    name: str
    device: int
    depth: float
    seconds: float
    count: int
    back: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Tensors from one node to another (indices), and their bytes."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges to be drawn; `grouped` says by what, empty if not."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    grouped: str = ""


def picture(problem: OperatorProblem, placement: IntArray, graph: Graph | None = None) -> Picture:
    """At most about `MOST_NODES` nodes: operators, else modules, else steps of the depth."""
    depth = shown_depths(problem)
    known = graph is not None and graph.operator_names == problem.operator_names
    back = np.zeros(problem.n, dtype=np.bool_)
    if known and graph is not None:
        back = np.array([op.phase in BACK for op in graph.operators])
    if problem.n <= MOST_NODES:
        return _contract(problem, placement, depth, list(problem.operator_names), back, "")
    if known and graph is not None:
        keys = _module_keys(graph, placement)
        if keys is not None:
            return _contract(problem, placement, depth, keys, back, "module and device")
    step = max(1.0, (depth.max() + 1) / MOST_COLUMNS)
    by_depth = [
        (f"depth {int(d // step * step)} and on", problem.device_names[p])
        for d, p in zip(depth, placement, strict=True)
    ]
    return _contract(problem, placement, depth, by_depth, back, "depth and device")


def operator_depths(problem: OperatorProblem) -> IntArray:
    """Shape (n,): operators on the longest path before each operator.

    What only orders counts for operators that wait for nothing else.
    """
    depth = np.zeros(problem.n, dtype=np.int64)
    offsets, topology, orders = problem.consumer_offsets, problem.topology, _only_order(problem)
    carries = np.repeat(~orders, np.diff(offsets))
    fed = np.bincount(problem.consumers[carries], minlength=problem.n) > 0
    for i in topology.order.tolist():
        for k in topology.out_tensors[topology.out_offsets[i] : topology.out_offsets[i + 1]]:
            readers = problem.consumers[offsets[k] : offsets[k + 1]]
            later = readers[~fed[readers]] if orders[k] else readers
            depth[later] = np.maximum(depth[later], depth[i] + 1)
    return depth


def shown_depths(problem: OperatorProblem) -> IntArray:
    """`operator_depths`, and what waits for nothing stands just before its first reader."""
    depth, offsets, topology = operator_depths(problem), problem.consumer_offsets, problem.topology
    shown = depth.copy()
    for i in np.flatnonzero(np.diff(topology.in_offsets) == 0).tolist():
        made = topology.out_tensors[topology.out_offsets[i] : topology.out_offsets[i + 1]].tolist()
        readers = [problem.consumers[offsets[k] : offsets[k + 1]] for k in made]
        first = min((int(depth[r].min()) for r in readers if len(r)), default=1)
        shown[i] = max(0, first - 1)
    return shown


def _module_keys(graph: Graph, placement: IntArray) -> list[tuple[str, str, int]] | None:
    """The deepest cut of the module tree that gives few enough groups, ``None`` without one."""
    best = None
    turns = ["backward" if op.phase in BACK else "forward" for op in graph.operators]
    for level in range(1, 12):
        keys = [
            (".".join(op.module.split(".")[:level]) or op.kind, turn, int(device))
            for op, turn, device in zip(graph.operators, turns, placement, strict=True)
        ]
        if len(set(keys)) > MOST_GROUPS or (best is not None and len(set(keys)) == len(set(best))):
            break
        best = keys
    return best if best is not None and len(set(best)) > 2 else None


def _contract(
    problem: OperatorProblem,
    placement: IntArray,
    depth: IntArray,
    keys: Sequence[Hashable],
    back: BoolArray,
    grouped: str,
) -> Picture:
    number: dict[Hashable, int] = {}
    group = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
    count = np.bincount(group)
    seconds = np.bincount(group, problem.compute_s[np.arange(problem.n), placement])
    mean_depth = np.bincount(group, depth) / count
    first = np.unique(group, return_index=True)[1]
    nodes = tuple(
        Node(_words(key), int(placement[i]), float(d), float(s), int(c), bool(back[i]))
        for key, i, d, s, c in zip(number, first, mean_depth, seconds, count, strict=True)
    )
    return Picture(nodes, _edges(problem, group), grouped)


def _edges(problem: OperatorProblem, group: IntArray) -> tuple[Edge, ...]:
    """Between different groups, each tensor once per pair; what only orders is left out."""
    tensor = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    source = group[problem.tensor_producer[tensor]]
    target = group[problem.consumers]
    orders = np.array(
        [name.startswith(ORDER_ONLY) for name in problem.tensor_names], dtype=np.bool_
    )
    shown = (source != target) & ~orders[tensor]
    moved = np.unique(np.stack([tensor, source, target], axis=1)[shown], axis=0)
    pairs, inverse = np.unique(moved[:, 1:], axis=0, return_inverse=True)
    sizes = np.bincount(inverse.ravel(), problem.tensor_bytes[moved[:, 0]], minlength=len(pairs))
    return tuple(Edge(int(s), int(t), float(b)) for (s, t), b in zip(pairs, sizes, strict=True))


def _only_order(problem: OperatorProblem) -> BoolArray:
    """Shape (t,): tensors that carry no value."""
    names = problem.tensor_names
    return np.array([name.startswith(ORDER_ONLY) for name in names], dtype=np.bool_)


def _words(key: Hashable) -> str:
    if isinstance(key, tuple):
        return ", ".join(str(part) for part in key[:2] if part)
    return str(key)
