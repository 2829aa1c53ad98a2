"""Operators without a cost formula: which they are, and how much of a model they might be."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

from placewright.cluster.cluster import Device
from placewright.graph.graph import Graph
from placewright.profiling.caveats import ProfileWarning

MATTERS = 0.001
"""Share of a model's bytes from which PyTorch's own operators without a formula are named."""


class UncountedWarning(ProfileWarning):
    """Costs that are computed leave out what some operators compute."""


def warn_of_uncounted(graph: Graph, computed: Sequence[Device]) -> None:
    """Name the kinds of operators whose work is not known, where it is needed and matters.

    Those of PyTorch matter from `MATTERS` of the bytes that the model moves; what others compute
    cannot be told from their bytes, so they always do.

    Parameters
    ----------
    computed
        Devices whose costs come from formulas.
    """
    shares = uncounted_shares(graph)
    named = [kind for kind, share in shares.items() if share >= MATTERS or not _of_torch(kind)]
    if not computed or not named:
        return
    count = Counter(op.kind for op in graph.operators)
    told = ", ".join(f"{kind} ({count[kind]}x, {100 * shares[kind]:.2g} %)" for kind in named)
    where = ", ".join(device.name for device in computed[:3]) + (", ..." if computed[3:] else "")
    warnings.warn(
        f"{graph.name}: no formula for what these operators compute (in brackets: how many, and "
        f"their share of the bytes that all operators move): {told}. On {where} their costs count "
        "bytes alone; give them a formula by torch.utils.flop_counter.register_flop_formula "
        "before the model is captured",
        UncountedWarning,
        stacklevel=3,
    )


def uncounted_shares(graph: Graph) -> dict[str, float]:
    """Kinds of operators without a formula, and their share of the bytes that are moved."""
    total = sum(op.bytes_accessed for op in graph.operators) or 1.0
    shares: dict[str, float] = {}
    for op in graph.operators:
        if op.uncounted:
            shares[op.kind] = shares.get(op.kind, 0.0) + op.bytes_accessed / total
    return shares


def _of_torch(kind: str) -> bool:
    return kind.partition(".")[0] in ("aten", "prims")
