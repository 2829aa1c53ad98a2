"""Where the nodes of a layered picture stand: columns by depth, rows by their neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.report.graph_groups import MOST_COLUMNS, Picture

SWEEPS = 6


def bands(picture: Picture) -> list[list[list[int]]]:
    """Node indices by band, column and row, ordered so that few edges cross.

    A training step has two bands, forward and backward; the second runs from right to left, so
    that an operator stands near its gradient. Everything else has one.
    """
    forward = [k for k, node in enumerate(picture.nodes) if not node.back]
    backward = [k for k, node in enumerate(picture.nodes) if node.back]
    laid = [_ordered(picture, _by_depth(picture, forward))] if forward else []
    if backward:
        turned = _by_depth(picture, backward)[::-1]
        laid.append(_ordered(picture, turned))
    return laid


def _by_depth(picture: Picture, members: Sequence[int]) -> list[list[int]]:
    depths = [picture.nodes[k].depth for k in members]
    first, span = min(depths), max(depths) - min(depths) + 1
    count = min(MOST_COLUMNS, int(span))
    filled: list[list[int]] = [[] for _ in range(count)]
    for k, depth in zip(members, depths, strict=True):
        filled[min(count - 1, int((depth - first) / span * count))].append(k)
    return [column for column in filled if column]


def _ordered(picture: Picture, filled: list[list[int]]) -> list[list[int]]:
    """Each column sorted by where its neighbours stand.

    Barycentre heuristic of Sugiyama, Tagawa, Toda 1981 (doi 10.1109/TSMC.1981.4308636), without
    the dummy nodes for long edges.
    """
    row = {node: _place(k, len(column)) for column in filled for k, node in enumerate(column)}
    near = _neighbours(picture, row)
    for sweep in range(SWEEPS):
        for column in filled if sweep % 2 == 0 else reversed(filled):
            wanted = {k: _mean([row[other] for other in near[k]], row[k]) for k in column}
            column.sort(key=lambda k: (wanted[k], k))
            row.update({node: _place(k, len(column)) for k, node in enumerate(column)})
    return filled


def _neighbours(picture: Picture, members: Mapping[int, float]) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {node: [] for node in members}
    for edge in picture.edges:
        if edge.source in members and edge.target in members:
            near[edge.source].append(edge.target)
            near[edge.target].append(edge.source)
    return near


def _place(k: int, count: int) -> float:
    """Rows are centred, so a column of one stands on the axis."""
    return k - (count - 1) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
