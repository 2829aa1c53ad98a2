"""Where the nodes of a layered picture stand: columns by depth, rows by their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.report.graph_groups import MOST_COLUMNS, Picture

SWEEPS = 6


def columns(picture: Picture) -> list[list[int]]:
    """Node indices, column by column, ordered so that few edges cross.

    Barycentre heuristic of Sugiyama, Tagawa, Toda 1981 (doi 10.1109/TSMC.1981.4308636), without
    the dummy nodes for long edges.
    """
    filled = _by_depth(picture)
    near = _neighbours(picture)
    row = {node: _place(k, len(column)) for column in filled for k, node in enumerate(column)}
    for sweep in range(SWEEPS):
        for column in filled if sweep % 2 == 0 else reversed(filled):
            wanted = {
                node: _mean([row[other] for other in near[node]], row[node]) for node in column
            }
            column.sort(key=lambda node: (wanted[node], node))
            row.update({node: _place(k, len(column)) for k, node in enumerate(column)})
    return filled


def _by_depth(picture: Picture) -> list[list[int]]:
    deepest = max(node.depth for node in picture.nodes)
    count = min(MOST_COLUMNS, int(deepest) + 1)
    filled: list[list[int]] = [[] for _ in range(count)]
    for k, node in enumerate(picture.nodes):
        filled[min(count - 1, int(node.depth / (deepest + 1) * count))].append(k)
    return [column for column in filled if column]


def _neighbours(picture: Picture) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in picture.nodes]
    for edge in picture.edges:
        near[edge.source].append(edge.target)
        near[edge.target].append(edge.source)
    return near


def _place(k: int, count: int) -> float:
    """Rows are centred, so a column of one stands on the axis."""
    return k - (count - 1) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
