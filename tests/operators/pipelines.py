"""Small pipelines with copies, clusters and passes: loads in plain Python, and all plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import star_value
from tests.operators.star_cases import star


def piped(seed: int, **changes: Any) -> OperatorProblem:
    """A random problem with some of everything; most devices are alike, so that copies exist."""
    rng = np.random.default_rng(seed + 10_000)
    p = star(seed)
    keep = np.arange(p.m)
    if p.m > 1 and rng.random() < 0.7:
        keep[1] = 0
    compute = np.where(np.isfinite(p.compute_s[:, :1]), p.compute_s, 2.0)[:, keep]
    clusters = rng.integers(-1, 2, p.m)[keep] if rng.random() < 0.5 else ()
    pipeline = Pipeline(
        diffmaxima=bool(rng.random() < 0.5),
        replication=bool(rng.random() < 0.6),
        sync_seconds_per_byte=float(rng.choice([0.0, 0.1, 0.5])),
        cluster=tuple(clusters),
        cluster_seconds_per_byte=tuple(rng.choice([0.0, 0.25, 2.0], p.m)[keep][: len(clusters)]),
    )
    return p.replace(
        **{
            "compute_s": compute,
            "pinned": np.full(p.n, -1),
            "host_seconds_per_byte": p.host_seconds_per_byte[keep],
            "memory_bytes": p.memory_bytes[keep],
            "pipeline": pipeline,
        }
        | changes
    )


def all_plans(p: OperatorProblem) -> Iterator[OperatorPlan]:
    """Every placement with every way to copy its stages that the rules allow."""
    allowed = [np.flatnonzero(row).tolist() for row in p.allowed()]
    groups = p.colocation.tolist()
    for place in product(*allowed):
        if any(place[i] != place[groups.index(groups[i])] for i in range(p.n)):
            continue
        used = sorted(set(place))
        free = [d for d in range(p.m) if d not in used]
        choices = product(*([d, *(used if p.pipeline.replication else [])] for d in free))
        for chosen in choices:
            leader = np.arange(p.m)
            leader[free] = chosen
            plan = OperatorPlan(np.array(place), replica_of=leader)
            try:
                check_plan(p, plan)
            except InputError:
                continue
            yield plan


@cache
def best_piped(seed: int, contiguous: bool) -> float:
    """`best_pipeline` of `piped`, which several tests ask for."""
    return best_pipeline(piped(seed, contiguous=contiguous))


def best_pipeline(p: OperatorProblem) -> float:
    """Value of the best of all plans by the judge, ``inf`` where none fits."""
    best = np.inf
    for plan in all_plans(p):
        # The loads alone are soon known.
        if star_value(p, plan) < best and (found := judge(p, plan)).feasible:
            best = found.value
    return float(best)
