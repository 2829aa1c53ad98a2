"""A graph that has not been placed: coloured by phase, or by kind where there is one phase."""

from __future__ import annotations

from collections import Counter

import numpy as np

from placewright.graph.graph import Graph
from placewright.operators.problem import OperatorProblem
from placewright.report.graph_groups import picture
from placewright.report.graph_view import draw, flow_words
from placewright.report.svg import DEVICE_COLOURS


def structure_view(graph: Graph) -> tuple[str, str, tuple[str, ...]]:
    """SVG, one sentence on it, and what the colours stand for.

    The drawing is that of a placed graph in which each phase (or kind) is a device and an
    operator takes as many seconds as it has GFLOP.
    """
    phases = tuple(dict.fromkeys(op.phase for op in graph.operators))
    by_kind = len(phases) < 2
    names = _main_kinds(graph) if by_kind else tuple(p or "other" for p in phases)
    colour = {name: k for k, name in enumerate(names)}
    placed = [
        colour.get(op.kind if by_kind else op.phase or "other", len(names) - 1)
        for op in graph.operators
    ]
    shown = picture(_as_problem(graph, names), np.array(placed, dtype=np.int64), graph)
    what = f"{len(graph.operators)} operators"
    what += f" as {len(shown.nodes)} groups" if shown.grouped else ""
    caption = f"{what}, {flow_words(shown)}. Area grows with FLOPs."
    return draw(shown, names, bold=False), caption, names


def _main_kinds(graph: Graph) -> tuple[str, ...]:
    count = Counter(op.kind for op in graph.operators)
    main = [kind for kind, _ in count.most_common(DEVICE_COLOURS - 1)]
    return (*main, "other") if len(count) > len(main) else tuple(main)


def _as_problem(graph: Graph, names: tuple[str, ...]) -> OperatorProblem:
    n, m = len(graph.operators), len(names)
    position = {op.name: i for i, op in enumerate(graph.operators)}
    readers = [[position[c] for c in tensor.consumers] for tensor in graph.tensors]
    return OperatorProblem(
        operator_names=graph.operator_names,
        device_names=names,
        compute_s=np.repeat([[op.flops / 1e9] for op in graph.operators], m, axis=1),
        tensor_names=tuple(t.name for t in graph.tensors),
        tensor_producer=np.array([position[t.producer] for t in graph.tensors], dtype=np.int64),
        tensor_bytes=np.array([t.bytes for t in graph.tensors], dtype=np.float64),
        consumer_offsets=np.cumsum([0, *map(len, readers)]),
        consumers=np.array([c for group in readers for c in group], dtype=np.int64),
        latency_s=np.zeros((m, m)),
        seconds_per_byte=np.zeros((m, m)),
        channel=np.zeros((m, m), dtype=np.int64),
        channel_names=("none",),
        resident_bytes=np.zeros(n),
        memory_bytes=np.full(m, np.inf),
        colocation=np.arange(n),
        pinned=np.full(n, -1),
        name=graph.name,
    )
