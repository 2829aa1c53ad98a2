"""Compare planners by measured training steps on heterogeneous boards, as in the paper.

    python benchmarks/dynamic_training.py [--models alexnet] [--clusters boards] [--out FILE]
    python benchmarks/dynamic_training.py --out FILE --minutes 0      prints what is there

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

Rows are kept by pair of model and cluster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from harness import KeptRows, Table, accuracy, joined, run
from placewright import (
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

MeasuringRounds: TypeAlias = list[list[float]]
"""Step seconds of a plan, a list for each of its turns."""


Row = dict[str, Any]
"""One plan of one pair of model and cluster; without `measured_s` where it was not executed."""


@dataclass(frozen=True)
class Settings:
    """Of measuring: rounds at least, seconds for those after the first, steps of a turn."""

    batch: int
    rounds: int
    seconds: float
    steps: int
    adapt_steps: int
    run_steps: int
    auto_seconds: float


CLUSTERS = {
    "boards": joined("boards", {"a": 0.9, "b": 0.5}),
    "strong-weak": joined("strong-weak", {"strong": 0.9, "w1": 0.3, "w2": 0.3}, 2.5e7),
    "mixed": joined("mixed", {"a": 0.6, "b": 0.4, "c": 0.3, "d": 0.2}),
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


def dynamic_plan(placed: PlacedModel, how: Settings) -> tuple[OperatorPlan, int]:
    """What a run with adaptation comes to, and how often it moved; it tries the other plans too."""
    with placed.trainer(
        steps=how.run_steps, policy=AdaptationPolicy(sample_every=5), snapshot_every=10**6
    ) as trainer:
        training = trainer.run
        training.step()
        assert training.adaptation is not None
        while training.adaptation.trials is not None:
            training.step()
        for _ in range(how.adapt_steps):
            training.step()
        return training.adaptation.plan, training.timeline.plans - 1


def measured(
    placed: PlacedModel,
    plans: Mapping[str, OperatorPlan],
    values: Mapping[str, float],
    how: Settings,
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
        while done < how.rounds or time.perf_counter() < end_s:
            for name in turns if done % 2 == 0 else reversed(turns):
                runner.load(placed.interference.alone, plans[name])
                runner.session.run(COLD)
                found[name].append(one_turn(runner.session, how.steps, FAR * best))
                best = min(median(t) for t in found.values() if t)
            turns = [name for name in turns if median(found[name]) < FAR * best]
            end_s = end_s or time.perf_counter() + how.seconds
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


def pair(model: str, cluster: str, table: ProfileTable, how: Settings) -> list[Row]:
    """Every plan of a model on a cluster; its operators are timed once, for all clusters."""
    source = load_model(f"zoo:{model}", batch=how.batch, training=True)
    limit: Any = {"table": table, "time_limit_s": how.auto_seconds}
    with place(
        source, cluster=CLUSTERS[cluster], training=True, engine="testbed", **limit
    ) as placed:
        known = placed.interference
        print(f"  side by side, beside alone: {known}", flush=True)
        plans = plans_of(placed)
        started = placed.with_plan(plans["ceft+pbqp"])
        plans["dynamic"], moves = dynamic_plan(started, how)
        values = {n: judge(known.of(plan), plan).value for n, plan in plans.items()}
        times = measured(placed, plans, values, how)
    rows = []
    for name, value in values.items():
        row: Row = {"model": model, "cluster": cluster, "plan": name, "predicted_s": value}
        if name in times:
            steps = np.concatenate(times[name])
            row |= {"measured_s": float(np.median(steps)), "steps": len(steps)}
            row |= {"spread": float(np.std(steps) / np.mean(steps))}
            row |= {"over_best": over_fastest(times, name)}
        rows.append(row | {"moves": moves if name == "dynamic" else 0})
    return rows


def wide_table(pairs: list[list[Row]]) -> None:
    """Print a line per pair: predicted / measured milliseconds of every plan."""
    names = list(dict.fromkeys(r["plan"] for rows in pairs for r in rows))
    table = Table("model", "cluster", *names, "moves", left=2)
    for rows in pairs:
        own = {row["plan"]: row for row in rows}
        cells = [_cell(own[name]) if name in own else "-" for name in names]
        table.row(rows[0]["model"], rows[0]["cluster"], *cells, own["dynamic"]["moves"])


def _cell(row: Row) -> str:
    real = f"{row['measured_s'] * 1e3:.0f}" if "measured_s" in row else "-"
    return f"{row['predicted_s'] * 1e3:.0f} / {real}"


def summary(rows: list[Row]) -> str:
    """Prediction error and how often the dynamic plan and `auto` are the fastest."""
    executed = [r for r in rows if "measured_s" in r]
    times = ([r[key] for r in executed] for key in ("predicted_s", "measured_s"))
    lines = [f"prediction: {accuracy(*times)}, {len(executed)} plans"]
    for name in ("dynamic", "auto"):
        over = [r["over_best"] for r in executed if r["plan"] == name]
        within = sum(o <= 0.03 for o in over)
        lines.append(
            f"{name}: within 3 % of the fastest on {within} of {len(over)} pairs, "
            f"at worst {max(over):+.1%}"
        )
    return "\n".join(lines)


def main(  # noqa: PLR0913 - the options of the command line
    *,
    models: tuple[str, ...] = tuple(zoo_models()),
    clusters: tuple[str, ...] = tuple(CLUSTERS),
    batch: int = 2,
    rounds: int = 4,
    seconds: float = 40.0,
    steps: int = 3,
    adapt_steps: int = 15,
    run_steps: int = 1000,
    auto_seconds: float = 10.0,
    kept: KeptRows,
) -> None:
    """Print the rows and the summary; `run_steps`: steps that trying must pay for."""
    how = Settings(batch, rounds, seconds, steps, adapt_steps, run_steps, auto_seconds)
    head = ("predicted s", "measured s", "spread", "over the fastest")
    table, pairs = Table("model", "cluster", "plan", *head, left=3), []
    profiles = {model: ProfileTable() for model in models}
    for model, cluster in product(models, clusters):
        work = partial(pair, model, cluster, profiles[model], how)
        if found := kept.get(f"{model} on {cluster}", work):
            pairs.append(found)
            for r in found:
                cells = [f"{r['predicted_s']:.3f}", "-", "-", "-"]
                if "measured_s" in r:
                    shares = f"{r['spread']:.1%}", f"{r['over_best']:+.1%}"
                    cells[1:] = [f"{r['measured_s']:.3f}", *shares]
                table.row(model, cluster, r["plan"], *cells)
    if pairs:
        print()
        wide_table(pairs)
        print(f"\n{summary([row for rows in pairs for row in rows])}")


if __name__ == "__main__":
    run(main)
