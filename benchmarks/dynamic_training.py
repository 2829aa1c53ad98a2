"""The paper's comparison: training steps on unlike boards, planners side by side, for real.

    python benchmarks/dynamic_training.py [--models alexnet] [--clusters boards]

Three clusters as testbeds on this machine (root): two unlike boards; one strong board with two
weak ones over slow links; four mixed boards. The plans of a model take turns in rounds, a few
steps each, so that all of them meet the same noise; there are more rounds where steps are short.
"dynamic" is the plan that a run with adaptation, started from CEFT+PBQP, has come to when its
tryout is over and another --adapt-steps steps are done.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from placewright.adapt.decide import Policy
from placewright.adapt.rivals import rivals
from placewright.adapt.run import AdaptiveRun, Job
from placewright.capture.model import capture_source
from placewright.capture.source import load_model
from placewright.capture.state import initial_state
from placewright.capture.zoo import FACTORIES
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import PlacewrightError
from placewright.execute.engines.local import Local
from placewright.execute.session import Session
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import execution_order
from placewright.profile.build import profile
from placewright.solve import compare, solve
from placewright.testbed.testbed import Testbed

STATIC = (
    "ceft+pbqp",
    "heft",
    "cpop",
    "round-robin",
    "metis",
    "topological-split",
)
"""`topological-split` is the layer split by load that an expert draws."""

FAR = 1.5
"""Times as long as the best plan: further turns would tell nothing."""


def star(name: str, speeds: Mapping[str, float], bandwidth: float) -> Cluster:
    """Boards of these speeds, a link between every two."""
    devices = tuple(Device(n, node=n, speed=s) for n, s in speeds.items())
    links = tuple(Link(a, b, bandwidth, 2e-4) for a in speeds for b in speeds if a != b)
    return Cluster(devices, links, name)


CLUSTERS = {
    "boards": star("boards", {"a": 0.9, "b": 0.5}, 1.25e8),
    "strong+weak": star("strong-weak", {"strong": 0.9, "w1": 0.3, "w2": 0.3}, 2.5e7),
    "mixed": star("mixed", {"a": 0.6, "b": 0.4, "c": 0.3, "d": 0.2}, 1.25e8),
}


def plans_of(problem: OperatorProblem, seconds: float) -> dict[str, OperatorPlan]:
    """Every plan by the name in the table."""
    singles = [f"only:{name}" for name in problem.device_names]
    plans = {"best single": compare(problem, singles).plan}
    for name in STATIC:
        try:
            plans[name] = solve(problem, name).plan
        except PlacewrightError as error:
            print(f"  {name}: {error}", flush=True)
    plans["auto"] = solve(problem, "auto", time_limit_s=seconds).plan
    return plans


def dynamic_plan(job: Job, plan: OperatorPlan, steps: int) -> tuple[OperatorPlan, int]:
    """What a run with adaptation comes to, and how often it moved."""
    policy = Policy(sample_every=5)
    others = rivals(job.problem, plan, float("inf"), policy.least_gain)
    with (
        tempfile.TemporaryDirectory() as folder,
        AdaptiveRun(
            job,
            Path(folder),
            plan=plan,
            rivals=others,
            policy=policy,
            snapshot_every=10**6,
        ) as run,
    ):
        run.step()
        assert run.adaptation is not None
        while run.adaptation.tryout is not None:
            run.step()
        for _ in range(steps):
            run.step()
        return run.adaptation.plan, run.timeline.plans - 1


def measured(
    job: Job, plans: Mapping[str, OperatorPlan], asked: argparse.Namespace
) -> dict[str, list[float]]:
    """Step seconds of every plan, in turns, forwards and backwards.

    Names of one placement are measured once; one far behind has only the first turn.
    """
    names: dict[bytes, list[str]] = {}
    for name, plan in plans.items():
        names.setdefault(plan.placement.tobytes(), []).append(name)
    turns = [group[0] for group in names.values()]
    found: dict[str, list[float]] = {name: [] for name in turns}
    start, done = time.perf_counter(), 0
    with job.open(job.graph, job.cluster, job.state) as session:
        while done < asked.rounds or time.perf_counter() - start < asked.seconds:
            for name in turns if done % 2 == 0 else reversed(turns):
                order = execution_order(job.problem, judge(job.problem, plans[name]))
                session.load(plans[name].placement.tolist(), order)
                session.run(1)
                found[name] += [record.duration_s for record in session.run(asked.steps)]
            best = min(float(np.median(t)) for t in found.values())
            turns = [name for name in turns if np.median(found[name]) < FAR * best]
            done += 1
    return {name: found[group[0]] for group in names.values() for name in group}


def pair(model: str, cluster: Cluster, asked: argparse.Namespace) -> list[dict[str, object]]:
    """All rows of one model on one cluster."""
    source = load_model(f"zoo:{model}", batch=asked.batch, training=True)
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state)
    with Testbed.up(cluster) as bed:
        seats = {d.name: bed.seat(d.name) for d in cluster.devices}
        job = Job(graph, cluster, problem, state, open=partial(Session, engine=Local(seats)))
        plans = plans_of(problem, asked.auto_seconds)
        plans["dynamic"], moves = dynamic_plan(job, plans["ceft+pbqp"], asked.adapt_steps)
        times = measured(job, plans, asked)
    best = min(float(np.median(t)) for t in times.values())
    return [
        {
            "model": model,
            "cluster": cluster.name,
            "plan": name + (f" ({moves} moves)" if name == "dynamic" else ""),
            "predicted_s": judge(problem, plan).value,
            "measured_s": float(np.median(times[name])),
            "spread": float(np.std(times[name]) / np.mean(times[name])),
            "over_best": float(np.median(times[name])) / best - 1,
        }
        for name, plan in plans.items()
    ]


def summary(rows: list[dict[str, object]]) -> str:
    """Prediction error and how often the dynamic plan and `auto` are the fastest."""
    predicted = np.array([float(str(r["predicted_s"])) for r in rows])
    real = np.array([float(str(r["measured_s"])) for r in rows])
    error = np.median(np.abs(predicted / real - 1))
    lines = [f"\nprediction: median error {error:.1%} over {len(rows)} runs"]
    for name in ("dynamic", "auto"):
        over = [float(str(r["over_best"])) for r in rows if str(r["plan"]).startswith(name)]
        within = sum(o <= 0.03 for o in over)
        lines.append(
            f"{name}: within 3 % of the fastest on {within} of {len(over)} pairs, "
            f"at worst {max(over):+.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the rows and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(FACTORIES))
    parser.add_argument("--clusters", nargs="*", default=list(CLUSTERS))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="at least")
    parser.add_argument("--seconds", type=float, default=40.0, help="rounds go on for so long")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--adapt-steps", type=int, default=15)
    parser.add_argument("--auto-seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    print("| model | cluster | plan | predicted s | measured s | spread | over the fastest |")
    print("|---|---|---|---|---|---|---|")
    for cluster in asked.clusters:
        for model in asked.models:
            rows += (found := pair(model, CLUSTERS[cluster], asked))
            for r in found:
                print(
                    f"| {r['model']} | {r['cluster']} | {r['plan']} | {r['predicted_s']:.3f} | "
                    f"{r['measured_s']:.3f} | {r['spread']:.1%} | {r['over_best']:+.1%} |",
                    flush=True,
                )
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1))
    print(summary(rows))


if __name__ == "__main__":
    main()
