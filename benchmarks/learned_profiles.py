"""Compare learned planners as published with their repaired versions.

    python benchmarks/learned_profiles.py --on server-4gpu
    python benchmarks/learned_profiles.py --planners post --out rows.jsonl --minutes 8

Inference of the zoo's small models on presets of four devices (analytic profile, contended links),
the published files with the latency of calls through host memory, and DOPPLER's graphs under its
own cost model (`doppler_queues`; ``$PLACEWRIGHT_DATA``). Prints a row per graph and planner: values
relative to the reference (HEFT; the best single device through host memory), of the best trivial
plan and of both profiles, mean over seeds with half its 95 % interval, how far the repaired one is
above the lower bound, and after how many evaluations it was at the reference; at the end, where
`repaired` is not better, and whether the bound proves that nothing is. It counts evaluations: what
else the machine does changes nothing. Rows are kept by seed (`harness.KeptRows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import exp, inf, log
from statistics import mean, median
from typing import Any

from doppler_queues import QueueValues, read_queues
from harness import DATA, KeptRows, Table, run
from placewright import Cluster, Context, OperatorProblem, judge, profile
from placewright.capturing.model import capture_source
from placewright.measurement import half_interval
from placewright.operators.bounds import bounds
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.neural_networks import read_msr
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import proposal_of
from placewright.planning.parameters import choose
from small_zoo import SIZES, small

PROFILES = ("as_published", "repaired")

EVALUATIONS = {"post": 2000, "hsdag": 200, "hp3c": 100, "doppler": 100}
"""By planner: updates of networks take a second or so."""

SMALLER = {"hp3c": "hidden=64, groups=32"}
"""HP3C as published has fewer units and groups than its default: an update takes a second else."""


@dataclass(frozen=True)
class Graph:
    """A problem; what values its placements but for the judge; the reference, and what is relative.

    `reference_s`: of HEFT, or of the best single device; `trivial` and `bound` relative to it.
    """

    problem: OperatorProblem
    queues: QueueValues | None
    reference_s: float
    trivial: float
    bound: float

    @classmethod
    def of(cls, problem: OperatorProblem, queues: QueueValues | None = None) -> Graph:
        """With its reference."""
        trivial_s = reference_s = Evaluations(problem, measure=queues).trivial_s
        if HEFT.unsupported_reason(problem) is None:
            plan = proposal_of(HEFT(problem, Context())).plan
            values = queues(plan.placement) if queues else [judge(problem, plan).value]
            reference_s = float(values[0])
        bound = max(bounds(problem).values()) / reference_s
        return cls(problem, queues, reference_s, trivial_s / reference_s, bound)

    def run(self, text: str, limit: int, seed: int) -> tuple[float, float]:
        """The value of a run over the reference, and after how many evaluations it was there."""
        planner: Any = choose(planners(self.problem), text)[1]
        context = Context(seed=seed, bound=self.bound * self.reference_s)
        found = Evaluations(self.problem, context, limit=limit, measure=self.queues)
        learned(planner, found)
        most_s = self.reference_s * (1 + 1e-9)
        below = (p.evaluations for p in found.curve if p.value_s <= most_s)
        return found.best.score.value_s / self.reference_s, next(below, inf)

    def rows(self, name: str, limit: int, seeds: int, kept: KeptRows) -> dict[str, Any] | None:
        """Values of both profiles of a planner, by seed; ``None`` where some are left."""
        found: dict[str, Any] = {"graph": self}
        for which in PROFILES:
            smaller = [SMALLER[name]] if which == "as_published" and name in SMALLER else []
            text = f"{name}({', '.join([f'profile={which}', *smaller])})"
            key = f"{self.problem.name}, {text}, {limit} evaluations"
            runs = [
                kept.get(f"{key}, seed {seed}", partial(self.run, text, limit, seed))
                for seed in range(seeds)
            ]
            if None in runs:
                return None
            found[which] = [value for value, _ in runs]
            found["at"] = max(evaluations for _, evaluations in runs)
        return found | {"gap": mean(found["repaired"]) / self.bound - 1}


def main(
    *,
    on: tuple[str, ...] = ("edge-quad", "server-4gpu"),
    models: tuple[str, ...] = tuple(SIZES),
    planners: tuple[str, ...] = tuple(EVALUATIONS),
    training: bool = False,
    published: bool = True,
    evaluations: int = 0,
    seeds: int = 5,
    kept: KeptRows,
) -> None:
    """Print the table, and a summary for each planner; `evaluations` 0: those of the planner."""
    table = Table("graph", "operators", "planner", "trivial", *PROFILES, "gap", "at reference")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in planners}
    for graph in graphs(on, models, training=training, published=published):
        for name in planners:
            row = graph.rows(name, evaluations or EVALUATIONS[name], seeds, kept)
            if row is not None:
                found[name].append(row)
                cells = [with_interval(row[which]) for which in PROFILES]
                head = graph.problem.name, graph.problem.n, name, f"{graph.trivial:.4f}"
                table.row(*head, *cells, f"{row['gap']:.1%}", f"{row['at']:.0f}")
    for name, rows in found.items():
        if rows:
            print(f"\n{summary(name, rows)}")


def graphs(
    presets: tuple[str, ...], models: tuple[str, ...], *, training: bool, published: bool
) -> Iterator[Graph]:
    """Models on presets, then published files."""
    for preset in presets:
        for name in models:
            graph = capture_source(small(name), training=training)
            problem = profile(graph, Cluster.preset(preset), method="analytic")
            yield Graph.of(problem.replace(name=f"{name} on {preset}"))
    if published:
        for path in sorted((DATA / "msr" / "latency").glob("*.json")):
            yield Graph.of(read_msr(path, "latency"))
        for path in sorted((DATA / "doppler").glob("[!r]*.json")):
            yield Graph.of(read_dag(path), QueueValues(*read_queues(path)))


def summary(name: str, rows: list[dict[str, Any]]) -> str:
    """Where `repaired` is not better, and evaluations until the reference."""
    ratio = [mean(row["repaired"]) / mean(row["as_published"]) for row in rows]
    better = sum(x < 1 - 1e-9 for x in ratio)
    lines = [
        f"{name}: repaired is better on {better} of {len(rows)}, {exp(mean(map(log, ratio))):.3f} "
        f"of as published (geometric mean); at the reference after "
        f"{median(row['at'] for row in rows):.0f} evaluations (median), at most "
        f"{max(row['at'] for row in rows):.0f}"
    ]
    for row, x in zip(rows, ratio, strict=True):
        if x >= 1 - 1e-9:
            proved = max(row["repaired"]) <= row["graph"].bound * (1 + 1e-9)
            why = (
                "nothing is better, by the bound" if proved else f"{row['gap']:.3%} above the bound"
            )
            kind = "worse" if x > 1 + 1e-9 else "as good"
            own = f"{row['graph'].problem.name} ({mean(row['repaired']):.5f})"
            lines.append(f"{kind} on {own}: {why}")
    return "\n".join(lines)


def with_interval(values: list[float]) -> str:
    """Mean, and half of its 95 % interval where seeds differ."""
    half = half_interval(values) if len(values) > 1 else 0.0
    return f"{mean(values):.4f}" + (f" ± {half:.4f}" if half >= 5e-5 else "")


if __name__ == "__main__":
    run(main)
