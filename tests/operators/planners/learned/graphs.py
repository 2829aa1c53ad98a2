"""Random graphs of a given size."""

from __future__ import annotations

import numpy as np

from placewright import OperatorProblem
from placewright.operators.conformance import tiny


def drawn_graph(seed: int, n: int = 30, m: int = 2) -> OperatorProblem:
    """Operators in a hidden order, each read by none to two later ones; devices differ."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    tensors = []
    for at in range(n - 1):
        later = order[at + 1 : at + 6]
        readers = rng.choice(later, min(len(later), int(rng.integers(0, 3))), replace=False)
        if len(readers):
            tensors.append((int(order[at]), float(rng.random()), readers.tolist()))
    return tiny(rng.uniform(0.5, 2.0, (n, m)).tolist(), tensors, name=f"drawn-{seed}")
