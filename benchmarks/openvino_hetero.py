"""Measure the latency of plans under OpenVINO's HETERO:AUTO,CPU: two devices on one CPU.

    python benchmarks/openvino_hetero.py
    python benchmarks/openvino_hetero.py --models resnet50 --planner hsdag --samples 500
    python benchmarks/openvino_hetero.py --planner hsdag --reward measured --samples 40 \
        --time-limit 60 --out rows.jsonl --minutes 5

Every model is converted to OpenVINO and profiled on both devices, whose precision and threads are
unequal, pinned and printed. CPU only, AUTO only, the exact minimum cut, random search and local
search (at ``--samples`` evaluations), and every ``--planner``, give a placement. All of them are
then measured in turns: in every round each runs ``--steps`` inferences after a warm-up, forwards in
one round and backwards in the next, so that a machine which changes changes all. Printed are the
median of the rounds and the 95 % interval of their mean; the speed-up is over the best single
device.

With ``--reward measured`` the searches are rewarded by measured latency instead of the judge:
placements are run until their interval is narrow, each once, and one that OpenVINO does not compile
counts as infeasible, with the reason. ``--out FILE --minutes M`` keeps a row per model and goes on
in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from kept_rows import KeptRows, add_options
from placewright import Cluster, Device, PlacewrightError, Result, compare, solve
from placewright.deployment.model_files import FileWorkload, capture_model_file, profile_model_file
from placewright.deployment.workers import MeasuredPlacements
from placewright.measurement import half_interval
from placewright.operators.planners import planners
from placewright.planning.parameters import choose
from placewright.profiling.profiler import ProfileTable
from placewright.report.text import plain_table, seconds

MODELS = ("inception_v3", "resnet50", "bert")
SEARCHES = ("random-search", "local-search")


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, help="of the zoo")
    parser.add_argument("--planner", nargs="+", default=[], help="more planners")
    parser.add_argument("--samples", type=int, default=500, help="evaluations of each search")
    parser.add_argument("--reward", choices=("judge", "measured"), default="judge")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="inferences per round and plan")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds per planner")
    parser.add_argument("--auto", default="bf16:2", help="precision and threads of AUTO")
    parser.add_argument("--cpu", default="f32:1", help="precision and threads of CPU")
    parser.add_argument("--table", type=Path, help="keep profiles here")
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    cluster = Cluster((device("AUTO", args.auto), device("CPU", args.cpu)), name="HETERO:AUTO,CPU")
    kept = KeptRows(args.out, args.minutes)
    for model in args.models:
        names = " ".join([model, *args.planner])
        key = f"{names}, {args.samples} evaluations, {args.reward}, {args.time_limit} s"
        if (row := kept.get(key, partial(run, model, cluster, args))) is not None:
            print(text(row), flush=True)
    kept.print_left()


def device(name: str, settings: str) -> Device:
    """A device of HETERO; ``bf16:2`` is its precision and its threads."""
    precision, _, threads = settings.partition(":")
    return Device(name, precision=precision, cores=int(threads or 1))


def run(model: str, cluster: Cluster, args: argparse.Namespace) -> dict[str, Any]:
    """Plan and measure one model."""
    began = time.perf_counter()
    file = capture_model_file(f"openvino:zoo:{model}", args.batch)
    table = ProfileTable() if args.table is None else ProfileTable.kept(args.table)
    load = FileWorkload(file, cluster, profile_model_file(file, cluster, table=table))
    made_s = time.perf_counter() - began
    found = plans(load, args)
    engine, rounds = measured(load, list(found.values()), args)
    singles = [k for k, name in enumerate(found) if name.startswith("only:")]
    best = min(singles, key=lambda k: mean(rounds[k]))
    kept = {}
    for k, (name, result) in enumerate(found.items()):
        ratio = [a / b for a, b in zip(rounds[best], rounds[k], strict=True)]
        kept[name] = {
            "predicted_s": result.value,
            "measured_s": median(rounds[k]),
            "interval_s": list(interval(rounds[k])),
            "speed_up": mean(ratio),
            "speed_up_interval": list(interval(ratio)),
            "rounds_s": rounds[k],
            "runtime_s": result.runtime_s,
            "on_first": int((result.plan.placement == 0).sum()),
            "note": result.candidates[0].note,
        }
    return {
        "model": model,
        "operators": load.problem.n,
        "made_s": made_s,
        "engine": engine,
        "bound_s": max(result.lower_bound for result in found.values()),
        "reward": args.reward,
        "plans": kept,
    }


def text(row: dict[str, Any]) -> str:
    """A model's table."""
    rows = []
    for name, plan in row["plans"].items():
        (low, high), faster = plan["interval_s"], plan["speed_up_interval"]
        rows.append(
            (
                name,
                seconds(plan["predicted_s"]),
                seconds(plan["measured_s"]),
                f"{seconds(low)} to {seconds(high)}",
                f"{plan['speed_up']:.2f} ({faster[0]:.2f} to {faster[1]:.2f})",
                seconds(plan["runtime_s"]),
            )
        )
    head = ("plan", "predicted", "measured", "95 % interval", "times as fast", "planning")
    return "\n".join(
        [
            f"\n{row['model']}: {row['operators']} operators, captured and profiled in "
            f"{row['made_s']:.0f} s, reward {row['reward']}",
            row["engine"],
            plain_table(head, rows, " rrrrr"),
            f"no plan is predicted below {seconds(row['bound_s'])}",
        ]
    )


def plans(load: FileWorkload, args: argparse.Namespace) -> dict[str, Result]:
    """Results by name: single devices, minimum cut, searches, and the planners of ``--planner``."""
    problem, found = load.problem, {}
    for name in problem.device_names:
        found[f"only:{name}"] = compare(problem, [f"only:{name}"])
    found["min-cut"] = solve(problem, "min-cut", time_limit_s=args.time_limit, seed=args.seed)
    reward = MeasuredPlacements(load.opened) if args.reward == "measured" else None
    for name in (*(f"{s}(samples={args.samples})" for s in SEARCHES), *args.planner):
        try:
            found[name] = planned(load, name, reward, args)
        except PlacewrightError as error:
            print(f"{name}: {error}")
    if reward is not None:
        print(f"{len(reward.known)} placements were measured, {len(reward.refused)} refused")
        for why in sorted(set(reward.refused.values()))[:3]:
            print(f"  {why}")
    return found


def planned(
    load: FileWorkload, name: str, reward: MeasuredPlacements | None, args: argparse.Namespace
) -> Result:
    """A plan rewarded by the judge, or by measured latency where the planner can be."""
    planner: Any = choose(planners(load.problem), name)[1]
    if reward is None or not hasattr(planner, "reward"):
        return solve(load.problem, name, time_limit_s=args.time_limit, seed=args.seed)
    return solve(
        load.problem,
        replace(planner, reward="measured"),
        time_limit_s=args.time_limit,
        seed=args.seed,
        measure=reward,
    )


def measured(
    load: FileWorkload, results: list[Result], args: argparse.Namespace
) -> tuple[str, list[list[float]]]:
    """Settings of the engine, and the median latency of each plan in each round."""
    inputs = load.file.random_inputs(args.seed)
    with ExitStack() as stack:
        placed = [stack.enter_context(load.placed(result)) for result in results]
        for each in placed:
            load.check(each, inputs).demand()
        rounds: list[list[float]] = [[] for _ in placed]
        for turn in range(args.rounds):
            forth = range(len(placed))
            for k in forth if turn % 2 == 0 else reversed(forth):
                for _ in range(args.warmup):
                    placed[k].infer(inputs)
                rounds[k].append(median(timed(placed[k], inputs) for _ in range(args.steps)))
        for name, each in zip(range(len(placed)), placed, strict=True):
            for note in each.notes:
                print(f"plan {name}: {note}")
        return placed[0].engine, rounds


def timed(placed: Any, inputs: Any) -> float:
    """Seconds of one inference."""
    began = time.perf_counter()
    placed.infer(inputs)
    return time.perf_counter() - began


def interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the mean of rounds."""
    if len(values) < 2:
        return values[0], values[0]
    half = half_interval(values)
    return mean(values) - half, mean(values) + half


if __name__ == "__main__":
    main()
