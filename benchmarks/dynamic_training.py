"""Compare planners by measured training steps on heterogeneous boards, as in the paper.

    python benchmarks/dynamic_training.py [--models alexnet] [--clusters boards] [--json FILE]
    python benchmarks/dynamic_training.py --json FILE --table

Three clusters as testbeds on this machine (root): two heterogeneous boards; one strong board with
two weak ones over slow links; four mixed boards. The plans of a model take turns in rounds, a few
steps each, so that all of them meet the same noise; there are more rounds where steps are short.
"dynamic" is the plan that a run with adaptation, started from CEFT+PBQP, has come to when its plan
trials are over and another --adapt-steps steps are done. All plans are made from a profile that was
calibrated on the boards: a few whole steps on each alone, then a few of a good plan of several
(`placewright.profiling.calibration`). `auto` may say that one board alone is faster, and tries its
plan beside those of that board and of CEFT+PBQP in two turns or more.

How far a plan is above the fastest is taken from halves: every second round says which plan is the
fastest, the other rounds say how far above it the plan is, then the other way round, and the mean
of both counts. The smallest of several noisy medians would be too low a reference.

With --json, pairs that the file has are not measured again, so that a run can be taken up later;
--table only prints what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.stats import spearmanr

from placewright import (
    Cluster,
    Device,
    Link,
    OperatorPlan,
    PlacedModel,
    PlacewrightError,
    judge,
    load_model,
    place,
    solve,
)
from placewright.capturing.zoo import zoo_models
from placewright.operators.adaptive.adaptation import AdaptationPolicy
from placewright.operators.run import best_single
from placewright.profiling.profiler import ProfileTable
from placewright.runtime.session import Session

STATIC = ("ceft+pbqp", "heft", "cpop", "round-robin", "metis", "topological-split")
"""`topological-split` is the layer split by load that an expert draws."""

FAR = 1.5
"""Times as long as the best plan: further turns would tell nothing."""

FAR_TURN_S = 3.0
"""Spent on the turn of such a plan."""

HOPELESS = 10.0
"""A plan predicted to take so many times as long as the best is not executed."""

COLD = 2
"""Steps after a plan was loaded that do not count: memory is new, as in a run's trials."""

NAN = float("nan")

MeasuringRounds: TypeAlias = list[list[float]]
"""Step seconds of a plan, a list for each of its turns."""


@dataclass(frozen=True)
class Row:
    """One plan of one pair of model and cluster; NaN where it was not executed."""

    model: str
    cluster: str
    plan: str
    predicted_s: float
    measured_s: float
    spread: float
    over_best: float
    steps: int
    moves: int = 0


def star(name: str, speeds: Mapping[str, float], bandwidth: float) -> Cluster:
    """Boards of these speeds, a link between every two."""
    devices = tuple(Device(n, node=n, speed=s) for n, s in speeds.items())
    links = tuple(Link(a, b, bandwidth, 2e-4) for a in speeds for b in speeds if a != b)
    return Cluster(devices, links, name)


CLUSTERS = {
    "boards": star("boards", {"a": 0.9, "b": 0.5}, 1.25e8),
    "strong-weak": star("strong-weak", {"strong": 0.9, "w1": 0.3, "w2": 0.3}, 2.5e7),
    "mixed": star("mixed", {"a": 0.6, "b": 0.4, "c": 0.3, "d": 0.2}, 1.25e8),
}


def plans_of(placed: PlacedModel) -> dict[str, OperatorPlan]:
    """Every plan by the name in the table; that of `auto` is the one placed."""
    single = best_single(placed.interference.alone)
    assert single is not None
    plans = {"best single": single.plan}
    for name in STATIC:
        try:
            plans[name] = solve(placed.interference.together, name).plan
        except PlacewrightError as error:
            print(f"  {name}: {error}", flush=True)
    plans["auto"] = placed.plan
    return plans


def dynamic_plan(placed: PlacedModel, args: argparse.Namespace) -> tuple[OperatorPlan, int]:
    """What a run with adaptation comes to, and how often it moved; it tries the other plans too."""
    with placed.trainer(
        steps=args.run_steps, policy=AdaptationPolicy(sample_every=5), snapshot_every=10**6
    ) as trainer:
        run = trainer.run
        run.step()
        assert run.adaptation is not None
        while run.adaptation.trials is not None:
            run.step()
        for _ in range(args.adapt_steps):
            run.step()
        return run.adaptation.plan, run.timeline.plans - 1


def measured(
    placed: PlacedModel,
    plans: Mapping[str, OperatorPlan],
    values: Mapping[str, float],
    args: argparse.Namespace,
) -> dict[str, MeasuringRounds]:
    """Step seconds of every plan, in turns, forwards and backwards.

    Names of one placement are measured once; one far behind has only the first turn.
    """
    limit = HOPELESS * min(values.values())
    names: dict[bytes, list[str]] = {}
    for name in sorted((n for n in plans if values[n] < limit), key=values.__getitem__):
        names.setdefault(plans[name].placement.tobytes(), []).append(name)
    turns = [group[0] for group in names.values()]
    found: dict[str, MeasuringRounds] = {name: [] for name in turns}
    done, best, end_s = 0, float("inf"), 0.0
    with placed.runner() as runner:
        while done < args.rounds or time.perf_counter() < end_s:
            for name in turns if done % 2 == 0 else reversed(turns):
                runner.load(placed.interference.alone, plans[name])
                runner.session.run(COLD)
                found[name].append(one_turn(runner.session, args.steps, FAR * best))
                best = min(median(t) for t in found.values() if t)
            turns = [name for name in turns if median(found[name]) < FAR * best]
            end_s = end_s or time.perf_counter() + args.seconds
            done += 1
    return {name: found[group[0]] for group in names.values() for name in group}


def median(turns: MeasuringRounds) -> float:
    """Of all steps of these turns."""
    return float(np.median(np.concatenate(turns)))


def one_turn(session: Session, steps: int, far_s: float) -> list[float]:
    """Seconds of so many steps; of those that end within `FAR_TURN_S` if they take `far_s`."""
    times: list[float] = []
    while len(times) < steps and (sum(times) < FAR_TURN_S or times[0] < far_s):
        times += [record.duration_s for record in session.run(1)]
    return times


def over_fastest(times: Mapping[str, MeasuringRounds], name: str) -> float:
    """How far the plan is above the fastest, each half of the rounds judging the other's choice."""
    rounds = max(map(len, times.values()))
    late = {n: t for n, t in times.items() if len(t) == rounds}
    if name not in late:
        least = min(median(t) for t in late.values())
        return median(times[name]) / least - 1.0
    ratios = []
    for half in (0, 1):
        chosen = {n: median(t[half::2]) for n, t in late.items()}
        judged = {n: median(t[1 - half :: 2]) for n, t in late.items()}
        ratios.append(judged[name] / judged[min(chosen, key=chosen.__getitem__)])
    return float(np.mean(ratios)) - 1.0


def pairs(model: str, clusters: list[Cluster], args: argparse.Namespace) -> Iterator[list[Row]]:
    """All rows of one model, cluster by cluster; its operators are timed once."""
    source = load_model(f"zoo:{model}", batch=args.batch, training=True)
    table = ProfileTable()
    for cluster in clusters:
        with place(
            source,
            cluster=cluster,
            training=True,
            engine="testbed",
            table=table,
            time_limit_s=args.auto_seconds,
        ) as placed:
            known = placed.interference
            print(f"  side by side, beside alone: {known}", flush=True)
            plans = plans_of(placed)
            started = placed.with_plan(plans["ceft+pbqp"])
            plans["dynamic"], moves = dynamic_plan(started, args)
            values = {n: judge(known.of(plan), plan).value for n, plan in plans.items()}
            times = measured(placed, plans, values, args)
        yield [row(model, cluster.name, n, values[n], times, moves) for n in plans]


def row(
    model: str,
    cluster: str,
    name: str,
    value: float,
    times: Mapping[str, MeasuringRounds],
    moves: int,
) -> Row:
    """What came of one plan."""
    moves = moves if name == "dynamic" else 0
    if name not in times:
        return Row(model, cluster, name, value, NAN, NAN, NAN, 0, moves)
    steps = np.concatenate(times[name])
    spread = float(np.std(steps) / np.mean(steps))
    over = over_fastest(times, name)
    return Row(
        model, cluster, name, value, float(np.median(steps)), spread, over, len(steps), moves
    )


def wide_table(rows: list[Row]) -> str:
    """A line per pair: predicted / measured milliseconds of every plan."""
    names = list(dict.fromkeys(r.plan for r in rows))
    lines = [f"| model | cluster | {' | '.join(names)} | moves |", "|---" * (len(names) + 3) + "|"]
    for pair in dict.fromkeys((r.model, r.cluster) for r in rows):
        own = {r.plan: r for r in rows if (r.model, r.cluster) == pair}
        cells = [_cell(own.get(name)) for name in names]
        lines.append(f"| {' | '.join((*pair, *cells))} | {own['dynamic'].moves} |")
    return "\n".join(lines)


def _cell(found: Row | None) -> str:
    if found is None:
        return "-"
    real = f"{found.measured_s * 1e3:.0f}" if found.steps else "-"
    return f"{found.predicted_s * 1e3:.0f} / {real}"


def summary(rows: list[Row]) -> str:
    """Prediction error and how often the dynamic plan and `auto` are the fastest."""
    run = [r for r in rows if r.steps]
    predicted, real = (
        np.array([getattr(r, k) for r in run]) for k in ("predicted_s", "measured_s")
    )
    error, rank = np.median(np.abs(predicted / real - 1)), spearmanr(predicted, real).statistic
    lines = [f"prediction: median error {error:.1%}, rank {rank:.3f} over {len(run)} runs"]
    for name in ("dynamic", "auto"):
        over = [r.over_best for r in run if r.plan == name]
        within = sum(o <= 0.03 for o in over)
        lines.append(
            f"{name}: within 3 % of the fastest on {within} of {len(over)} pairs, "
            f"at worst {max(over):+.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the rows and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(zoo_models()))
    parser.add_argument("--clusters", nargs="*", default=list(CLUSTERS), choices=list(CLUSTERS))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="at least")
    parser.add_argument("--seconds", type=float, default=40.0, help="for rounds after the first")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--adapt-steps", type=int, default=15)
    parser.add_argument("--run-steps", type=int, default=1000, help="that trying must pay for")
    parser.add_argument("--auto-seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    kept = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    rows = [Row(**content) for content in kept]
    if not args.table:
        measure(rows, args)
    print(f"\n{wide_table(rows)}\n\n{summary(rows)}")


def measure(rows: list[Row], args: argparse.Namespace) -> None:
    """Add the pairs that are not there yet, and keep each as it comes."""
    there = {(r.model, r.cluster) for r in rows}
    print("| model | cluster | plan | predicted s | measured s | spread | over the fastest |")
    print("|---|---|---|---|---|---|---|")
    for model in args.models:
        missing = [CLUSTERS[c] for c in args.clusters if (model, c) not in there]
        for found in pairs(model, missing, args) if missing else ():
            rows += found
            for r in found:
                print(
                    f"| {r.model} | {r.cluster} | {r.plan} | {r.predicted_s:.3f} | "
                    f"{r.measured_s:.3f} | {r.spread:.1%} | {r.over_best:+.1%} |",
                    flush=True,
                )
            if args.json:
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
