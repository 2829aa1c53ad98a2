"""Measure an adaptive run: recovery from half a CPU lost, overhead, and migrations under noise.

    python benchmarks/adaptation.py [recovery] [overhead] [noise]

On a testbed of two nodes (root). Recovery: at step 20 the faster board loses half of its CPU. The
plan that the run comes to and the optimum, solved anew with perfect knowledge, are then measured
under the same loss in turns, for a machine's speed changes from minute to minute; "steps" are
those until the running median is within 5 % of the optimum, at the pace the machine had in the run.
Overhead: adaptation switched on and off every 25 steps of one run. Noise: the board's CPU quota
drawn anew every step, 10 % up or down.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from placewright import (
    Cluster,
    Device,
    Link,
    OperatorPlan,
    PlacedModel,
    Testbed,
    judge,
    load_model,
    place,
    solve,
)
from placewright.adapt.training_loop import TrainingLoop
from placewright.operators.adaptive.run import AdaptiveRun

LINKS = (Link("a", "b", 1.25e8, 2e-4), Link("b", "a", 1.25e8, 2e-4))
DUO = Cluster((Device("a", node="a", speed=0.9), Device("b", node="b", speed=0.7)), LINKS, "adapt")

DISTURBED, STEPS, WINDOW = 20, 70, 5
COLD, TURN, TURN_S, TURNS = 2, 6, 2.0, 4


@contextmanager
def running(
    name: str, steps: int
) -> Iterator[tuple[Testbed, PlacedModel, TrainingLoop[AdaptiveRun]]]:
    """A training run of a zoo model on a testbed that is up."""
    source = load_model(f"zoo:{name}", batch=2, training=True)
    with (
        place(
            source,
            cluster=DUO,
            training=True,
            engine="testbed",
            planner="ceft+pbqp",
            calibrate=False,
        ) as placed,
        placed.trainer(snapshot_every=10**6) as trainer,
    ):
        trainer.run.steps = steps + 1000
        yield Testbed.find(DUO.name), placed, trainer


def beside_optimum_s(
    placed: PlacedModel, adapted: OperatorPlan, slower: float
) -> tuple[float, float]:
    """Median steps of a plan and of the one solved with perfect knowledge, in turns."""
    factors = np.array([slower, 1.0])
    known = placed.workload.problem
    problem = known.replace(compute_s=known.compute_s * factors)
    plans = adapted, solve(problem, "ceft+pbqp").plan
    times: tuple[list[float], list[float]] = ([], [])
    with placed.runner() as runner:
        for turn in range(2 * TURNS):
            k = (0, 1, 1, 0)[turn % 4]
            runner.load(problem, plans[k])
            runner.session.run(COLD)
            steps = max(TURN, round(TURN_S / judge(problem, plans[k]).value))
            times[k].extend(r.duration_s for r in runner.session.run(steps))
    return float(np.median(times[0])), float(np.median(times[1]))


def recovery(name: str) -> None:
    """One row: before, right after, the plan it came to, the optimum, steps to recover."""
    with running(name, STEPS) as (bed, placed, trainer):
        run = trainer.run
        for step in range(STEPS):
            if step == DISTURBED:
                bed.set_device("a", speed=0.45)
            run.step()
        assert run.adaptation is not None
        adapted, timeline = run.adaptation.plan, run.timeline
        run.close()
        adapted_s, best_s = beside_optimum_s(placed, adapted, 2.0)
    times, plans = np.asarray(timeline.step_s), np.asarray(timeline.plan)
    last = np.flatnonzero(plans == plans[-1])
    own_s = float(np.median(times[last[last >= DISTURBED][COLD:]]))
    medians = np.array([np.median(times[k : k + WINDOW]) for k in range(DISTURBED, STEPS - WINDOW)])
    good = np.flatnonzero(medians <= 1.05 * own_s * best_s / adapted_s)
    taken = f"{good[0] + WINDOW}" if len(good) else f"not in {STEPS - DISTURBED}"
    events = [e for e in timeline.events if e.kind != "snapshot"]
    solves = [e.numbers["resolve_s"] for e in events if e.kind == "migrate"]
    for event in events:
        print(f"  step {event.step}: {event.kind}: {event.text} {dict(event.numbers)}")
    print(
        f"| {name} | {np.median(times[5:DISTURBED]):.3f} | {medians[0]:.3f} | {own_s:.3f} | "
        f"{adapted_s:.3f} | {best_s:.3f} | {adapted_s / best_s - 1:+.1%} | {taken} | "
        f"{max(solves, default=float('nan')) * 1e3:.0f} |",
        flush=True,
    )


def overhead(name: str, blocks: int = 12, block: int = 25) -> None:
    """Median and mean seconds of steps with adaptation on and off."""
    with running(name, 2 * blocks * block) as (_, _, trainer):
        run = trainer.run
        for _ in range(5):
            run.step()
        found: dict[bool, list[float]] = {True: [], False: []}
        for k in range(blocks):
            run.adapt = k % 2 == 0
            found[run.adapt] += [run.step() for _ in range(block)]
        on, off = (np.asarray(found[k]) for k in (True, False))
        moved = run.timeline.count("migrate")
    median, mean = np.median(on) / np.median(off) - 1, on.mean() / off.mean() - 1
    print(
        f"| {name} | {np.median(on) * 1e3:.1f} | {np.median(off) * 1e3:.1f} | "
        f"{median:+.1%} | {mean:+.1%} | {moved} |",
        flush=True,
    )


def noise(name: str, steps: int = 500) -> None:
    """Migrations in a run whose faster board gets 10 % more or less CPU at every step."""
    rng = np.random.default_rng(0)
    with running(name, steps) as (bed, _, trainer):
        run = trainer.run
        for _ in range(steps):
            bed.set_device("a", speed=float(0.9 * (1 + 0.1 * rng.uniform(-1, 1))))
            run.step()
        kinds = {kind: run.timeline.count(kind) for kind in ("drift", "migrate")}
        spread = np.std(run.timeline.step_s) / np.mean(run.timeline.step_s)
    print(
        f"| {name} | {steps} | {spread:.1%} | {kinds['drift']} | {kinds['migrate']} |",
        flush=True,
    )


def main() -> None:
    """Print the selected tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["recovery", "overhead", "noise"])
    parser.add_argument("--models", nargs="*", default=["resnet50", "rnnlm"])
    args = parser.parse_args()
    if "recovery" in args.what:
        print(
            "| model | before s | after the loss s | adapted s | side by side: adapted s | "
            "optimum s | above | steps | re-solve ms |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for name in args.models:
            recovery(name)
    if "overhead" in args.what:
        print("\n| model | adapting ms | not ms | median | mean | migrations |")
        print("|---|---|---|---|---|---|")
        overhead(args.models[-1])
    if "noise" in args.what:
        print("\n| model | steps | spread | alarms | migrations |")
        print("|---|---|---|---|---|")
        noise(args.models[-1])


if __name__ == "__main__":
    main()
