"""The page of a graph file: facts, the explorer, and kinds of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.graph.files import read_graph
from placewright.graph.graph import ORDER_ONLY, Graph, Operator
from placewright.report.explorer import Amount, Category, ExploredGraph, LayoutGraph, explorer
from placewright.report.page import (
    DEVICE_COLOURS,
    Note,
    facts,
    heading,
    html_page,
    section,
    tag,
    text,
)


def graph_page(data: dict[str, Any], path: Path) -> str:
    """The page of a graph file."""
    graph = read_graph(path)
    return html_page(
        graph.name,
        heading(graph.name, f"graph, from {path.name}"),
        facts(
            [
                ("operators", str(len(graph.operators)), "lead"),
                ("tensors", str(len(graph.tensors)), ""),
                ("GFLOP", f"{graph.flops / 1e9:.3g}", ""),
            ]
        ),
        section("Graph", "Boxes are modules; data flow from left to right.", explored(graph)),
        section("Operators", "", tag("pre", text(repr(graph)), tabindex=0)),
    )


def explored(graph: Graph) -> str:
    """The explorer of a graph without a plan."""
    flow, operators = dataflow(graph), graph.operators
    colours = phase_and_kind(flow.phases, [op.kind for op in operators])
    return explorer(
        ExploredGraph(graph.name, flow, colours, amounts(operators), operator_facts(operators))
    )


def dataflow(graph: Graph) -> LayoutGraph:
    """Operators and tensors as arrays."""
    position = {op.name: i for i, op in enumerate(graph.operators)}
    readers = [[position[c] for c in tensor.consumers] for tensor in graph.tensors]
    return LayoutGraph(
        graph.operator_names,
        np.array([position[t.producer] for t in graph.tensors], dtype=np.int64),
        np.array([t.bytes for t in graph.tensors], dtype=np.float64),
        np.cumsum([0, *map(len, readers)]),
        np.array([c for group in readers for c in group], dtype=np.int64),
        np.array([t.name.startswith(ORDER_ONLY) for t in graph.tensors], dtype=np.bool_),
        tuple(op.module for op in graph.operators),
        tuple(op.phase for op in graph.operators),
    )


def phase_and_kind(phases: Sequence[str], kinds: Sequence[str]) -> list[Category]:
    """To colour by phase, where there are several, and by the most frequent kinds."""
    count = Counter(kinds)
    main = {kind for kind, _ in count.most_common(DEVICE_COLOURS - 1)}
    shown = [kind if kind in main else "other kinds" for kind in kinds]
    named = [phase or "other" for phase in phases]
    found = [_category("phase", named)] if len(set(named)) > 1 else []
    return [*found, _category("kind", shown)] if shown else found


def _category(name: str, of: Sequence[str]) -> Category:
    """Values in the order of their first operator."""
    index: dict[str, int] = {}
    numbers = [index.setdefault(value, len(index)) for value in of]
    return Category(name, tuple(index), np.array(numbers, dtype=np.int64))


def amounts(operators: Sequence[Operator]) -> list[Amount]:
    """FLOPs, and the bytes that an operator keeps, reads and writes; nothing without operators."""
    if not operators:
        return []
    columns = {
        "FLOPs": ("FLOP", [op.flops + op.elementwise_flops for op in operators]),
        "memory": ("bytes", [op.resident_bytes for op in operators]),
        "bytes accessed": ("bytes", [op.bytes_accessed for op in operators]),
    }
    return [
        Amount(name, unit, np.array(of, dtype=np.float64)) for name, (unit, of) in columns.items()
    ]


def operator_facts(operators: Sequence[Operator]) -> list[Note]:
    """Kind, module and what an operator gives; nothing without operators."""
    if not operators:
        return []
    shapes = [", ".join(f"{o.dtype} {list(o.shape)}" for o in op.outputs) for op in operators]
    return [
        Note("kind", [op.kind for op in operators]),
        Note("module", [op.module for op in operators]),
        Note("gives", shapes),
    ]
