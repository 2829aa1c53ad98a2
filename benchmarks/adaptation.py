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

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from harness import Table, joined, run
from placewright import OperatorPlan, PlacedModel, Testbed, judge, load_model, place, solve
from placewright.adapt.training_loop import TrainingLoop
from placewright.operators.adaptive.run import AdaptiveRun

DUO = joined("adapt", {"a": 0.9, "b": 0.7})
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


def recovery(name: str) -> list[str]:
    """One row: before, right after, the plan it came to, the optimum, steps to recover."""
    with running(name, STEPS) as (bed, placed, trainer):
        training = trainer.run
        for step in range(STEPS):
            if step == DISTURBED:
                bed.set_device("a", speed=0.45)
            training.step()
        assert training.adaptation is not None
        adapted, timeline = training.adaptation.plan, training.timeline
        training.close()
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
    seconds = (np.median(times[5:DISTURBED]), medians[0], own_s, adapted_s, best_s)
    resolve_ms = f"{max(solves, default=float('nan')) * 1e3:.0f}"
    return [*(f"{s:.3f}" for s in seconds), f"{adapted_s / best_s - 1:+.1%}", taken, resolve_ms]


def overhead(name: str, blocks: int = 12, block: int = 25) -> list[str]:
    """Median and mean seconds of steps with adaptation on and off."""
    with running(name, 2 * blocks * block) as (_, _, trainer):
        training = trainer.run
        for _ in range(5):
            training.step()
        found: dict[bool, list[float]] = {True: [], False: []}
        for k in range(blocks):
            training.adapt = k % 2 == 0
            found[training.adapt] += [training.step() for _ in range(block)]
        on, off = (np.asarray(found[k]) for k in (True, False))
        moved = training.timeline.count("migrate")
    median, mean = np.median(on) / np.median(off) - 1, on.mean() / off.mean() - 1
    times = [f"{np.median(each) * 1e3:.1f}" for each in (on, off)]
    return [*times, f"{median:+.1%}", f"{mean:+.1%}", str(moved)]


def noise(name: str, steps: int = 500) -> list[str]:
    """Migrations in a run whose faster board gets 10 % more or less CPU at every step."""
    rng = np.random.default_rng(0)
    with running(name, steps) as (bed, _, trainer):
        training = trainer.run
        for _ in range(steps):
            bed.set_device("a", speed=float(0.9 * (1 + 0.1 * rng.uniform(-1, 1))))
            training.step()
        kinds = {kind: training.timeline.count(kind) for kind in ("drift", "migrate")}
        spread = np.std(training.timeline.step_s) / np.mean(training.timeline.step_s)
    return [str(steps), f"{spread:.1%}", str(kinds["drift"]), str(kinds["migrate"])]


SIDES = ("side by side: adapted s", "optimum s", "above", "steps", "re-solve ms")
TABLES = {
    "recovery": (recovery, ("before s", "after the loss s", "adapted s", *SIDES)),
    "overhead": (overhead, ("adapting ms", "not ms", "median", "mean", "migrations")),
    "noise": (noise, ("steps", "spread", "alarms", "migrations")),
}


def main(*what: str, models: tuple[str, ...] = ("resnet50", "rnnlm")) -> None:
    """Print the selected tables; all models are in the first only."""
    for name in what or TABLES:
        cells_of, head = TABLES[name]
        table = Table("model", *head)
        for model in models if name == "recovery" else models[-1:]:
            table.row(model, *cells_of(model))
        print()


if __name__ == "__main__":
    run(main)
