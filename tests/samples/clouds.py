"""Small random problems in every mode, with limits of every kind, for the linear program."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem
from tests.samples.tiny import tiny


def cloud(seed: int, *without: str, **fields: Any) -> SampleProblem:
    """Four or five nodes, one or two classes, some links missing; perhaps nothing fits.

    Fields `without` which it is wanted are as `tiny` has them.
    """
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(4, 6)), int(rng.integers(1, 3))
    held = rng.integers(0, 40, (n, k)) + 1
    pair = rng.uniform(0.01, 0.3, (n, n))
    # A way through all nodes stays.
    missing = (rng.random((n, n)) < 0.3) & (np.abs(np.subtract.outer(range(n), range(n))) > 1)
    pair[missing | np.eye(n, dtype=np.bool_)] = np.inf
    mixed = k > 1 and rng.random() < 0.6
    keep = np.minimum(held, rng.integers(0, 8, (n, k))) * (rng.random() < 0.5)
    storage = np.maximum(held.sum(axis=1) + rng.integers(-5, 20, n), keep.sum(axis=1))
    limited = (rng.random(n) < 0.3) & (np.arange(n) > 0)
    usual: dict[str, Any] = {
        "seconds_per_sample": rng.uniform(0.05, 0.4, n),
        "send_s": pair,
        "receive_s": pair * rng.uniform(0.5, 1.0, (n, n)),
        "storage": np.where(limited, storage, np.inf),
        "keep": keep,
        "price_s": rng.uniform(0, 0.01, (n, n)) * (rng.random() < 0.5),
        "fixed_s": rng.uniform(0, 0.5, n),
        "epochs": int(rng.integers(1, 4)),
        "sync_s": float(rng.uniform(0, 0.1)),
        "label_mix": float(rng.uniform(0.02, 0.3)) if mixed else np.inf,
        "overlap": list(Overlap)[seed % 3],
        "duplex": list(Duplex)[seed // 3 % 2],
        "batches": list(Batches)[seed // 6 % 2],
        "relay": bool(seed // 12 % 2),
    }
    kept = {key: value for key, value in usual.items() if key not in without}
    return tiny(held, **kept | fields)
