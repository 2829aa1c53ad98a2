"""Compare predicted and measured epochs of sample plans on four heterogeneous nodes.

    python benchmarks/samples_run.py [NAME ...]

As root the nodes are those of a testbed: CPU quotas, shaped links, files that move over them,
handwritten digits that are spread unevenly, labels too. The slowest node holds most. Without root
speeds and links are emulated by waiting.

Each NAME is a planner, or none, lb-bsp or fedavg; all without. `ROUNDS` times, one name after the
other: a round measures the nodes' speeds first, plans with them, executes each plan and adds
what it measured to ``benchmarks/results/samples_run.jsonl`` as it comes. Called again, it goes on
where it was stopped; ``fresh`` as the first word begins a new table. ``table`` alone prints the
medians of what has been measured so far, and how far apart the runs were. Seconds to the same
loss: until the loss on the test samples is at most `LOSS`, which every way to train reaches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.report.text import percent, plain_table, seconds
from placewright.samples.files import problem_from
from placewright.samples.nodes import NodeWorkers, nodes_up
from placewright.samples.plan import SamplePlan
from placewright.samples.planners import planners
from placewright.samples.problem import Overlap, SampleProblem
from placewright.samples.run import measure, run
from placewright.samples.training.job import SampleJob, example_job
from placewright.samples.training.node_training import Recipe
from placewright.testbed.testbed import missing

ROUNDS = 2
RESULTS = Path(__file__).parent / "results" / "samples_run.jsonl"
PLANNED = ("auto", "proportional", "greedy", "nic", "lp", "ilp")
BASELINES = ("none", "lb-bsp", "fedavg")

SAMPLES = (640, 160, 120, 80)
FAVOURITES = ((0, 1, 2, 3, 4), (5, 6), (7, 8), (9,))
"""Classes that a node has four times as many of as of the others."""
SKEW = 4.0
LOSS = 0.3
RECIPE = Recipe(epochs=8, batch=100)
NETWORK = {"channels": 16, "depth": 2, "enlarged": 4}
RATE = 0.05


def nodes(sample_bytes: int = 30_000) -> SampleProblem:
    """Four nodes: the one with most samples is slow, the fast ones hold little."""
    speed = ("30ms", "15ms", "10ms", "20ms")
    link = ("40Mbps", "80Mbps", "80Mbps", "40Mbps")
    data = {
        "name": "four unlike nodes",
        "nodes": [
            {
                "name": name,
                "classes": dict(
                    zip(
                        map(str, range(10)),
                        samples_by_class(SAMPLES[k], FAVOURITES[k]),
                        strict=True,
                    )
                ),
                "seconds_per_sample": speed[k],
                "uplink": link[k],
                "downlink": link[k],
            }
            for k, name in enumerate("abcd")
        ],
        "latency": "1ms",
        "sample_bytes": sample_bytes,
        "epochs": RECIPE.epochs,
        "overlap": "A",
    }
    return problem_from(data, where="benchmark", name="four")


def digits(problem: SampleProblem) -> SampleJob:
    """The network and the digits that the nodes hold."""
    job = example_job(problem, RECIPE.seed, **NETWORK)
    return SampleJob(job.model, job.loss_fn, job.samples, "sgd", RATE, job.test)


def samples_by_class(count: int, favourites: Sequence[int]) -> list[int]:
    """Divide `count` samples among ten classes, `SKEW` times as many for each favourite."""
    weight = np.array([SKEW if c in favourites else 1.0 for c in range(10)])
    counts = np.floor(count * weight / weight.sum()).astype(int)
    counts[: count - counts.sum()] += 1
    return [int(each) for each in counts]


def main(names: Sequence[str]) -> None:
    """Round after round what has not been measured yet, then the table."""
    for number in range(ROUNDS):
        done = {row["name"] for row in kept() if row["round"] == number}
        if left := [name for name in names if name not in done]:
            one_round(number, left)
    show()


def one_round(number: int, names: Sequence[str]) -> None:
    """Measure speeds, plan, run, keep."""
    problem = nodes()
    if missing():
        execute_plans(problem, names, None, number)
        return
    with nodes_up(problem) as up:
        shares = {name: round(up.bed.cpu_share(name), 3) for name in problem.node_names}
        print(f"round {number + 1} of {ROUNDS}: measuring speeds; cores: {shares}", flush=True)
        measured = measure(problem, RECIPE, digits(problem), up.workers).of(problem, RECIPE.batch)
        execute_plans(measured, names, up.workers, number)


def execute_plans(
    problem: SampleProblem, names: Sequence[str], workers: NodeWorkers | None, number: int
) -> None:
    """Each of `names` on files of its own; results are kept."""
    print(np.round(1e3 * problem.seconds_per_sample, 2), "ms per sample")
    print(np.round(1e3 * problem.fixed_s, 1), "and", round(1e3 * problem.sync_s, 1), "ms per epoch")
    for name in names:
        plans = {name: planned(problem, name)} if name in PLANNED else {}
        [one] = run(
            problem,
            None,
            digits(problem),
            others=plans,
            baselines=() if plans else (name,),
            recipe=RECIPE,
            workers=workers,
        )
        record = {"round": number, "real": one.real, "profile": profile(problem)}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one.as_json(0.0) | record) + "\n")
        print(f"{name}: {one.measured_s:.2f} s, predicted {one.predicted_s}", flush=True)


def kept() -> list[dict[str, Any]]:
    """All rows so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def planned(problem: SampleProblem, name: str) -> SamplePlan:
    """The plan; ``nic`` knows no barrier and plans without."""
    if name == "auto":
        best: SamplePlan = solve(problem, time_limit_s=10).plan
        return best
    variant = problem.replace(overlap=Overlap.STAGGERED) if name == "nic" else problem
    plan: SamplePlan = planners(problem)[name](variant, Context())
    return plan


def profile(problem: SampleProblem) -> dict[str, Any]:
    """What was measured before planning."""
    return {
        "seconds_per_sample": problem.seconds_per_sample.tolist(),
        "fixed_s": problem.fixed_s.tolist(),
        "sync_s": problem.sync_s,
    }


def show() -> None:
    """Medians of every name."""
    rows = {name: [row for row in kept() if row["name"] == name] for name in (*PLANNED, *BASELINES)}
    header = (
        "",
        "runs",
        "predicted",
        "measured",
        "error",
        "errors",
        "moving",
        f"to loss {LOSS:g}",
        "",
        "best loss",
        "accuracy",
    )
    slow = reached_s(rows["none"])
    lines = [_line(name, runs, slow) for name, runs in rows.items() if runs]
    print(plain_table(header, lines, " rrrrlrrrrr"))


def _line(name: str, runs: list[dict[str, Any]], slow: float | None) -> tuple[str, ...]:
    reached = reached_s(runs)
    errors = [row["predicted_s"] / row["measured_s"] - 1 for row in runs if row["predicted_s"]]
    return (
        name,
        str(len(runs)),
        seconds(_median(runs, "predicted_s")) if errors else "-",
        seconds(_median(runs, "measured_s")),
        percent(median(errors)) if errors else "-",
        " ".join(percent(error) for error in errors),
        seconds(_median(runs, "move_s")),
        "-" if reached is None else seconds(reached),
        "-" if reached is None or slow is None else f"{slow / reached:.2f}x",
        f"{_median(runs, 'best_loss'):.3f}",
        percent(_median(runs, "accuracy")),
    )


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(median(row[key] for row in runs))


def reached_s(runs: list[dict[str, Any]]) -> float | None:
    """Median seconds to `LOSS`; ``None`` where a run did not reach it."""
    times = [to_loss(row) for row in runs]
    known = [time_s for time_s in times if time_s is not None]
    return float(median(known)) if known and len(known) == len(times) else None


def to_loss(row: dict[str, Any]) -> float | None:
    """Seconds, moving included, until the test loss is at most `LOSS`."""
    elapsed_s = row["move_s"]
    for epoch in row["epochs"]:
        elapsed_s += epoch["measured_s"]
        if epoch["test_loss"] <= LOSS:
            return float(elapsed_s)
    return None


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["table"]:
        show()
    else:
        if words[:1] == ["fresh"]:
            RESULTS.unlink(missing_ok=True)
            words = words[1:]
        main(words or (*PLANNED, *BASELINES))
