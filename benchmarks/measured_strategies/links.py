"""Links of a measured plan's cluster: fitted curves, or nominal bandwidths."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from placewright.layers.files import field
from placewright.layers.workers import Link
from placewright.numerics.arrays import IntArray

from .fields import Row, optional, rows

MESSAGES = tuple(float(2**k) for k in range(16, 31))
"""Sizes at which fitted curves are read: those that were measured."""


def links_of(
    data: Any, nodes: list[Any], profiled: dict[str, float], where: str
) -> tuple[tuple[Link, ...], IntArray]:
    """Links and their index; inside nodes at most the bandwidth that a kind's profile shows."""
    curves = optional(data, "cluster.links")
    index = np.full((len(nodes), len(nodes)), -1, dtype=np.int64)
    links: list[Link] = []
    known: dict[str, int] = {}
    for a, first in enumerate(nodes):
        for b, second in enumerate(nodes):
            if curves is None:
                profile_bandwidth = profiled.get(first["device"], math.inf) if a == b else math.inf
                ends = [nominal(first, a == b), nominal(second, a == b), profile_bandwidth]
            else:
                ends = [first["device"], second["device"], first["count"], second["count"]]
            key = json.dumps([a == b, *ends])
            if key not in known:
                link = (
                    _nominal_link(ends, a == b)
                    if curves is None
                    else _curve_link(curves, first, second, a == b, where)
                )
                known[key] = -1 if link is None else len(links)
                links += [] if link is None else [link]
            index[a, b] = known[key]
    return tuple(links), index


def nominal(node: Any, inside: bool) -> float:
    """Bytes per second; inside a node at least what its card has, where only that is known."""
    own = node.get("internal_bytes_per_s") if inside else None
    return float(own or node.get("network_bytes_per_s") or math.nan)


def _nominal_link(limits: list[float], inside: bool) -> Link | None:
    """Between nodes the slower card, shared; inside a node every pair has its own way."""
    known = [x for x in limits if 0 < x < math.inf]
    if not known:
        return None
    bandwidth = min(known)
    return Link.linear(bandwidth, 0.0, math.inf if inside else bandwidth)


def _curve_link(curves: Any, first: Any, second: Any, inside: bool, where: str) -> Link | None:
    """Times by number of pairs; the bandwidth of a curve is the sum over the pairs.

    Where no curve joins two kinds of devices, the slower of what each has among its own.
    """
    one, two = str(first["device"]), str(second["device"])
    if inside:
        table = rows(field(curves, "within_node", where), f"{where}: cluster.links.within_node")
        found = {int(r["count"]) // 2: r for r in table if r["device"] == one}
        return _by_pairs(found)
    table = rows(field(curves, "between_nodes", where), f"{where}: cluster.links.between_nodes")
    direct = _by_pairs(_directed(table, one, two))
    if direct is not None or one == two:
        return direct
    own = [_by_pairs(_directed(table, kind, kind)) for kind in (one, two)]
    known = [link for link in own if link is not None]
    return max(known, key=lambda link: link.seconds(MESSAGES[-1])) if known else None


def _directed(table: list[Row], one: str, two: str) -> dict[int, Row]:
    """Curves between two kinds by number of pairs: the very direction and equal counts win."""
    found: dict[int, Row] = {}
    # Twice over the rows: the very direction overwrites the opposite one.
    for exact in (False, True):
        for row in table:
            ends = (row["from_device"], row["to_device"])
            if set(ends) == {one, two} and (ends == (one, two)) >= exact:
                senders = min(int(row["from_count"]), int(row["to_count"]))
                if int(row["from_count"]) == int(row["to_count"]) or senders not in found:
                    found[senders] = row
    return found


def _by_pairs(found: dict[int, Row]) -> Link | None:
    if not found:
        return None
    pairs = sorted(found)
    times = [[_curve_s(found[n], size, n) for size in MESSAGES] for n in pairs]
    # A fitted parabola may fall where nothing was measured; no larger message takes less.
    ascending = np.maximum.accumulate(np.array(times), axis=1)
    return Link(np.array(pairs), np.array(MESSAGES), ascending)


def _curve_s(row: Any, size: float, pairs: int) -> float:
    """Seconds until each of `pairs` has sent `size` bytes."""
    # The file fits bandwidth over the logarithm of megabytes; between two limits, for fits go wild.
    x = math.log2(size / 1e6)
    total = row["a2_bytes_per_s"] * x * x + row["a1_bytes_per_s"] * x + row["a0_bytes_per_s"]
    top = row.get("largest_measured_bytes_per_s") or math.inf
    bandwidth = min(max(total, 0.02 * top if math.isfinite(top) else 1e6), top)
    return float(size * pairs / bandwidth)
