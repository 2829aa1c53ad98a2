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
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import run as run_main
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
    held = [
        {"classes": by_class(count, favourites)}
        for count, favourites in zip(SAMPLES, FAVOURITES, strict=True)
    ]
    return four_nodes(held, "four unlike nodes", sample_bytes, RECIPE.epochs, overlap="A")


def four_nodes(
    held: Sequence[dict[str, Any]],
    name: str,
    sample_bytes: int,
    epochs: int,
    speeds: Sequence[str] = ("30ms", "15ms", "10ms", "20ms"),
    links: Sequence[str] = ("40Mbps", "80Mbps", "80Mbps", "40Mbps"),
    **options: Any,
) -> SampleProblem:
    """Nodes a to d with what each holds, its seconds per sample, and its link."""
    each = [
        {"name": node, "seconds_per_sample": speed, "uplink": link, "downlink": link, **own}
        for node, own, speed, link in zip("abcd", held, speeds, links, strict=True)
    ]
    data = {"name": name, "nodes": each, "latency": "1ms", "sample_bytes": sample_bytes}
    return problem_from(data | {"epochs": epochs} | options, where="benchmark", name="four")


def digits(problem: SampleProblem) -> SampleJob:
    """The network and the digits that the nodes hold."""
    job = example_job(problem, RECIPE.seed, **NETWORK)
    return SampleJob(job.model, job.loss_fn, job.samples, "sgd", RATE, job.test)


def by_class(count: int, favourites: Sequence[int]) -> dict[str, int]:
    """Divide `count` samples among ten classes, `SKEW` times as many for each favourite."""
    weight = np.array([SKEW if c in favourites else 1.0 for c in range(10)])
    counts = np.floor(count * weight / weight.sum()).astype(int)
    counts[: count - counts.sum()] += 1
    return {str(c): int(each) for c, each in enumerate(counts)}


def main(*names: str) -> None:
    """Round after round what has not been measured yet, then the table."""
    if names[:1] == ("fresh",):
        RESULTS.unlink(missing_ok=True)
        names = names[1:]
    for number in range(ROUNDS) if names != ("table",) else ():
        done = {row["name"] for row in kept() if row["round"] == number}
        left = [name for name in names or (*PLANNED, *BASELINES) if name not in done]
        if left:
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
        arrays = {"seconds_per_sample": problem.seconds_per_sample, "fixed_s": problem.fixed_s}
        profile = {k: v.tolist() for k, v in arrays.items()} | {"sync_s": problem.sync_s}
        record = {"round": number, "real": one.real, "profile": profile}
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


def show() -> None:
    """Medians of every name."""
    rows = {name: [row for row in kept() if row["name"] == name] for name in (*PLANNED, *BASELINES)}
    times = ("predicted", "measured", "error", "errors", "moving", f"to loss {LOSS:g}", "")
    slow = reached_s(rows["none"])
    lines = [_line(name, runs, slow) for name, runs in rows.items() if runs]
    print(plain_table(("", "runs", *times, "best loss", "accuracy"), lines, " rrrrlrrrrr"))


def _line(name: str, runs: list[dict[str, Any]], slow: float | None) -> tuple[str, ...]:
    reached = reached_s(runs)
    errors = [row["predicted_s"] / row["measured_s"] - 1 for row in runs if row["predicted_s"]]

    def middle(key: str) -> float:
        return float(median(row[key] for row in runs))

    return (
        name,
        str(len(runs)),
        seconds(middle("predicted_s")) if errors else "-",
        seconds(middle("measured_s")),
        percent(median(errors)) if errors else "-",
        " ".join(percent(error) for error in errors),
        seconds(middle("move_s")),
        "-" if reached is None else seconds(reached),
        "-" if reached is None or slow is None else f"{slow / reached:.2f}x",
        f"{middle('best_loss'):.3f}",
        percent(middle("accuracy")),
    )


def reached_s(runs: list[dict[str, Any]]) -> float | None:
    """Median seconds to `LOSS`, moving included; ``None`` where a run did not reach it."""
    times = []
    for row in runs:
        ends_s = accumulate((e["measured_s"] for e in row["epochs"]), initial=row["move_s"])
        pairs = zip(list(ends_s)[1:], row["epochs"], strict=True)
        times.append(next((s for s, epoch in pairs if epoch["test_loss"] <= LOSS), None))
    known = [time_s for time_s in times if time_s is not None]
    return float(median(known)) if known and len(known) == len(times) else None


if __name__ == "__main__":
    run_main(main)
