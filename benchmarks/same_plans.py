"""Record value, bound and plan of 200 fixed problems, and compare two such records.

    python benchmarks/same_plans.py -o before.json

``python benchmarks/same_plans.py --against before.json`` plans them again and exits 1 with a table
of what differs: run the first before a change that must not change any plan, the second after it
(``--every 4`` for a quick look). Rows are kept by problem (`harness.KeptRows`); it compares once
every problem is planned.

Every planner that ends by an amount of work and not by the clock runs, the long ones with less
work than by default; those that learn, and run only if they are named, do not. What is written for
a problem and a planner is the judge's value, the lower bound and a digest of the plan; ``null``
stands where a planner does not take the problem, the value and the bound are ``null`` where its
plan does not fit. Planners that only one of the two files has are listed after the table: a new
planner changes no plan of the others, one that is gone counts as a difference.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import placewright
from harness import KeptRows, Table, run
from placewright.operators.conformance import random_problem, tiny, with_random_views
from placewright.operators.pipeline import Pipeline
from placewright.operators.planners import planners as operator_planners
from placewright.planning.contract import on_request
from placewright.samples.planners import planners as sample_planners
from placewright.samples.problem import REGIMES, generate

WORK: dict[str, dict[str, Any]] = {
    "ceft+pbqp": {"effort": 2e5},
    "search": {"effort": 4e5, "first": 1e5},
    "lns": {"windows": 4, "work": 0.02},
}
"""Parameters other than the default, of planners that take long."""

PROOFS = {"exact": 7, "ilp": 4}
"""Largest problems, in operators or nodes, for planners that prove: these end in a moment."""

PLAN = ("placement", "order", "call", "replica_of", "source", "target", "count", "sample_class")
"""Arrays of a plan of either wing, where it has them."""

Answers = dict[str, dict[str, list[Any] | None]]
"""By problem, then by planner: value, bound and digest, or ``None``."""


@dataclass(slots=True)
class Recorded:
    """A planner that remembers its last plan, also where `solve` refuses it."""

    planner: Any
    plan: Any = None

    @property
    def name(self) -> str:
        """That of the planner."""
        return str(self.planner.name)

    def unsupported_reason(self, problem: Any) -> str | None:
        """As the planner has it."""
        return self.planner.unsupported_reason(problem)  # type: ignore[no-any-return]

    def __call__(self, problem: Any, context: Any) -> Any:
        """What the planner answers."""
        made = self.planner(problem, context)
        self.plan = getattr(made, "plan", made)
        return made


def small(seed: int) -> Any:
    """Up to 12 operators; every objective, kind of links and overlap in turn."""
    problem = random_problem(
        seed,
        links=("free", "contended")[seed % 2],
        overlap="serial" if seed % 5 == 0 else "parallel",
        objective="throughput" if seed % 4 == 3 else "latency",
        contiguous=seed % 12 == 11,
    )
    return with_random_views(problem, seed) if seed % 3 == 0 else problem


def layered(seed: int) -> Any:
    """Operators that read some of those before them; devices differ, memory is often short."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(40, 160)), int(rng.integers(2, 7))
    reads: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        before = np.arange(max(0, i - 12), i)
        for j in rng.choice(before, min(len(before), int(rng.integers(1, 4))), replace=False):
            reads[int(j)].append(i)
    compute = rng.uniform(1, 10, (n, 1)) / rng.uniform(1, 4, (1, m))
    compute[rng.random((n, m)) < 0.05 * (np.arange(m) > 0)] = np.inf
    size = rng.integers(1, 100, n)
    colocation = np.arange(n)
    late = np.flatnonzero(rng.random(n) < 0.1)
    colocation[late] = colocation[np.maximum(0, late - int(rng.integers(1, 9)))]
    need = size.sum() * 2
    memory = need * rng.uniform(1.2, 1.8) / m * rng.uniform(0.8, 1.2, m)
    return tiny(
        compute.tolist(),
        [(j, float(size[j]), r) for j, r in enumerate(reads) if r],
        latency_s=0.1,
        seconds_per_byte=0.03,
        name=f"layered-{seed}",
        resident_bytes=size.astype(float),
        memory_bytes=np.full(m, np.inf) if seed % 3 == 0 else np.ceil(memory),
        colocation=colocation,
        links=("free", "contended", "contended")[seed % 3],
        overlap="serial" if seed % 7 == 3 else "parallel",
        objective="throughput" if seed % 8 == 5 else "latency",
    )


def star(seed: int) -> Any:
    """Accelerators around a host: calls, contiguous pipelines, copies, clusters, two passes."""
    rng = np.random.default_rng(seed)
    p = random_problem(seed, most_operators=9, most_devices=1)
    n, m = p.n, 3
    fast = np.where(rng.random((n, 1)) < 0.1, np.inf, rng.choice([0.0, 0.5, 1.0, 2.0], (n, 1)))
    compute = np.hstack([np.repeat(fast, m - 1, axis=1), rng.choice([0, 2, 4, 6], (n, 1))])
    resident = rng.integers(0, 4, n)
    room = float(np.ceil(resident.sum() * rng.choice([0.4, 0.7, 2.0])))
    late = np.zeros(n, dtype=np.bool_)
    late[p.topology.order[int(rng.integers(0, n + 1)) :]] = rng.random() < 0.5
    latency = seed % 3 == 0
    pipeline = Pipeline(
        diffmaxima=seed % 4 == 1,
        replication=seed % 5 == 1,
        sync_seconds_per_byte=0.1 * (seed % 2),
        cluster=(0, 0, -1) if seed % 7 == 1 else (),
        cluster_seconds_per_byte=(0.25, 0.25, 0.25) if seed % 7 == 1 else (),
    )
    return tiny(
        compute.tolist(),
        name=f"star-{seed}",
        tensor_names=p.tensor_names,
        tensor_producer=p.tensor_producer,
        tensor_bytes=rng.choice([0.0, 0.25, 0.5, 1.0], p.t),
        consumer_offsets=p.consumer_offsets,
        consumers=p.consumers,
        resident_bytes=resident,
        memory_bytes=[room] * (m - 1) + [np.inf],
        colocation=p.colocation,
        communication="star",
        host_seconds_per_byte=[1.0] * (m - 1) + [0.0],
        objective="latency" if latency else "throughput",
        calls=1 + seed % 2,
        contiguous=not latency and seed % 2 == 0,
        is_backward=np.zeros(n, dtype=np.bool_) if latency else late,
        **(dict[str, Any]() if latency else {"pipeline": pipeline}),
    )


def cloud(seed: int) -> Any:
    """Nodes with samples: each regime, with the options of the problem in turn."""
    rng = np.random.default_rng(seed)
    problem = generate(list(REGIMES)[seed % len(REGIMES)], (3, 4, 8, 16)[seed // 4 % 4], seed)
    held, n = problem.samples, problem.n
    changes: dict[str, Any] = {
        "overlap": "ABC"[seed % 3],
        "duplex": ("full", "half")[seed % 2],
        "batches": "equal" if seed % 5 == 4 else "proportional",
        "relay": seed % 7 == 3,
    }
    if seed % 3 == 1:
        changes["storage"] = np.ceil(held.sum(axis=1) * rng.uniform(1, 3, n))
        changes["keep"] = held // 4
    if seed % 4 == 2:
        changes["price_s"] = rng.uniform(0, 0.02, (n, n))
        changes["fixed_s"] = rng.uniform(0, 1, n)
        changes["sync_s"] = float(rng.uniform(0, 1))
    if seed % 6 == 5:
        changes["samples"] = np.hstack([held // 2, held - held // 2])
        changes["keep"] = np.zeros((n, 2), dtype=np.int64)
        changes["class_names"] = ("a", "b")
        changes["label_mix"] = 0.3
    return problem.replace(**changes)


def problems() -> Iterator[tuple[str, Any, Any]]:
    """Key, planners and problem of all."""
    for kind, make, count, planners in (
        ("small", small, 72, operator_planners),
        ("layered", layered, 48, operator_planners),
        ("star", star, 32, operator_planners),
        ("cloud", cloud, 48, sample_planners),
    ):
        for seed in range(count):
            yield f"{kind}-{seed:02}", planners, make(seed)


def digest(plan: Any) -> str:
    """Of everything that the plan decides."""
    found = hashlib.sha256(str(getattr(plan, "dispatch", "")).encode())
    for key in PLAN:
        part = getattr(plan, key, None)
        found.update(b"-" if part is None else part.tobytes())
    return found.hexdigest()[:16]


def record(problem: Any, planner: Any) -> list[Any] | None:
    """Value, bound and digest of what a planner makes of a problem."""
    size = problem.n
    if planner.unsupported_reason(problem) is not None:
        return None
    if size > PROOFS.get(planner.name, size):
        return None
    recorder = Recorded(replace(planner, **WORK.get(planner.name, {})))
    try:
        result = placewright.solve(problem, recorder, time_limit_s=float("inf"))
    except placewright.InfeasibleError:
        return [None, None, "" if recorder.plan is None else digest(recorder.plan)]
    return [result.value, result.lower_bound, digest(recorder.plan)]


def rows_of(problem: Any, planners: Any) -> dict[str, list[Any] | None]:
    """What every planner makes of a problem."""
    known = planners(problem)
    return {name: record(problem, p) for name, p in known.items() if not on_request(p)}


def differences(before: Answers, after: Answers) -> int:
    """Print what differs, answer by answer; how many do, or are gone.

    One answer is what one planner made of one problem; single devices count as one planner.
    """
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("equal", "new", "gone")}
    rows: list[tuple[object, ...]] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, {}), after.get(key, {})
        for name in sorted(old.keys() | new.keys()):
            kind = "new" if name not in old else "gone" if name not in new else "equal"
            if kind == "equal" and old[name] != new[name]:
                rows.append((key, name, old[name], new[name]))
            else:
                counts[kind][name.partition(":")[0]] += 1
    table = Table("problem", "planner", "before", "after", left=4)
    for row in rows:
        table.row(*row)
    equal = counts["equal"]
    print(f"equal in both: {equal.total()} answers of {len(equal)} planners")
    for kind, text in (("new", "absent before, not compared"), ("gone", "absent now")):
        named = ", ".join(f"{name} ({n} problems)" for name, n in sorted(counts[kind].items()))
        print(f"{text}: {named or 'none'}")
    print(f"different: {len(rows)} answers")
    return len(rows) + len(counts["gone"])


def main(
    *, o: Path | None = None, every: int = 1, against: Path | None = None, kept: KeptRows
) -> int:
    """Write what was planned to a file, or compare; of each `every`-th problem only."""
    planned = {
        key: kept.get(key, partial(rows_of, problem, planners))
        for key, planners, problem in islice(problems(), 0, None, every)
    }
    if kept.left:
        return 0
    found = json.loads(json.dumps(planned))
    plans = sum(entry is not None for row in found.values() for entry in row.values())
    print(f"{len(found)} problems, {plans} plans", file=sys.stderr)
    if o is not None:
        o.write_text(json.dumps(found, indent=1) + "\n")
    if against is None:
        return 0
    before = json.loads(against.read_text())
    if every > 1:
        before = {key: before[key] for key in before.keys() & found.keys()}
    return int(differences(before, found) > 0)


if __name__ == "__main__":
    run(main)
