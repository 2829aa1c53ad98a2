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
counts as infeasible, with the reason. Rows are kept by model (`harness.KeptRows`).
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

from harness import KeptRows, run
from placewright import Cluster, Device, PlacewrightError, Result, compare, solve
from placewright.deployment.model_files import FileWorkload, capture_model_file, profile_model_file
from placewright.deployment.workers import MeasuredPlacements
from placewright.measurement import half_interval
from placewright.operators.planners import planners
from placewright.planning.parameters import choose
from placewright.profiling.profiler import ProfileTable
from placewright.report.text import plain_table, seconds

SEARCHES = ("random-search", "local-search")


@dataclass(frozen=True)
class Settings:
    """Of planning and measuring; `planner`: more planners, `samples`: evaluations of searches."""

    planner: tuple[str, ...]
    samples: int
    reward: str
    batch: int
    rounds: int
    steps: int
    warmup: int
    time_limit: float
    seed: int
    table: Path | None


def main(  # noqa: PLR0913 - the options of the command line
    *,
    models: tuple[str, ...] = ("inception_v3", "resnet50", "bert"),
    planner: tuple[str, ...] = (),
    samples: int = 500,
    reward: Literal["judge", "measured"] = "judge",
    batch: int = 1,
    rounds: int = 10,
    steps: int = 10,
    warmup: int = 2,
    time_limit: float = 600.0,
    auto: str = "bf16:2",
    cpu: str = "f32:1",
    table: Path | None = None,
    seed: int = 0,
    kept: KeptRows,
) -> None:
    """Print a table per model; `auto`, `cpu`: precision and threads, `table` keeps profiles."""
    warnings.simplefilter("ignore")
    how = Settings(planner, samples, reward, batch, rounds, steps, warmup, time_limit, seed, table)
    cluster = Cluster((device("AUTO", auto), device("CPU", cpu)), name="HETERO:AUTO,CPU")
    for model in models:
        names = " ".join([model, *planner])
        key = f"{names}, {samples} evaluations, {reward}, {time_limit} s"
        if (row := kept.get(key, partial(row_of, model, cluster, how))) is not None:
            print(row, flush=True)


def device(name: str, settings: str) -> Device:
    """A device of HETERO; ``bf16:2`` is its precision and its threads."""
    precision, _, threads = settings.partition(":")
    return Device(name, precision=precision, cores=int(threads or 1))


def row_of(model: str, cluster: Cluster, how: Settings) -> str:
    """Plan and measure one model; its table."""
    began = time.perf_counter()
    file = capture_model_file(f"openvino:zoo:{model}", how.batch)
    profiles = ProfileTable() if how.table is None else ProfileTable.kept(how.table)
    load = FileWorkload(file, cluster, profile_model_file(file, cluster, table=profiles))
    made_s = time.perf_counter() - began
    found = plans(load, how)
    engine, rounds = measured(load, list(found.values()), how)
    singles = [k for k, name in enumerate(found) if name.startswith("only:")]
    best = min(singles, key=lambda k: mean(rounds[k]))
    rows = []
    for own, (name, result) in zip(rounds, found.items(), strict=True):
        (low, high), ratio = interval(own), [a / b for a, b in zip(rounds[best], own, strict=True)]
        cells = [seconds(result.value), seconds(median(own)), f"{seconds(low)} to {seconds(high)}"]
        faster = "{:.2f} ({:.2f} to {:.2f})".format(mean(ratio), *interval(ratio))
        rows.append((name, *cells, faster, seconds(result.runtime_s)))
    head = ("plan", "predicted", "measured", "95 % interval", "times as fast", "planning")
    bound_s = max(result.lower_bound for result in found.values())
    return "\n".join(
        [
            f"\n{model}: {load.problem.n} operators, captured and profiled in {made_s:.0f} s, "
            f"reward {how.reward}",
            engine,
            plain_table(head, rows, " rrrrr"),
            f"no plan is predicted below {seconds(bound_s)}",
        ]
    )


def plans(load: FileWorkload, how: Settings) -> dict[str, Result]:
    """Results by name: single devices, minimum cut, searches, and the planners of ``--planner``."""
    problem, found = load.problem, {}
    for name in problem.device_names:
        found[f"only:{name}"] = compare(problem, [f"only:{name}"])
    found["min-cut"] = solve(problem, "min-cut", time_limit_s=how.time_limit, seed=how.seed)
    reward = MeasuredPlacements(load.opened) if how.reward == "measured" else None
    for name in (*(f"{s}(samples={how.samples})" for s in SEARCHES), *how.planner):
        planner: Any = choose(planners(problem), name)[1]
        own: dict[str, Any] = {}
        if reward is not None and hasattr(planner, "reward"):
            planner, own = replace(planner, reward="measured"), {"measure": reward}
        try:
            found[name] = solve(problem, planner, time_limit_s=how.time_limit, seed=how.seed, **own)
        except PlacewrightError as error:
            print(f"{name}: {error}")
    if reward is not None:
        print(f"{len(reward.known)} placements were measured, {len(reward.refused)} refused")
        for why in sorted(set(reward.refused.values()))[:3]:
            print(f"  {why}")
    return found


def measured(
    load: FileWorkload, results: list[Result], how: Settings
) -> tuple[str, list[list[float]]]:
    """Settings of the engine, and the median latency of each plan in each round."""
    inputs = load.file.random_inputs(how.seed)
    with ExitStack() as stack:
        placed = [stack.enter_context(load.placed(result)) for result in results]
        for each in placed:
            load.check(each, inputs).demand()
        rounds: list[list[float]] = [[] for _ in placed]
        for turn in range(how.rounds):
            forth = range(len(placed))
            for k in forth if turn % 2 == 0 else reversed(forth):
                for _ in range(how.warmup):
                    placed[k].infer(inputs)
                rounds[k].append(median(timed(placed[k], inputs) for _ in range(how.steps)))
        for name, each in enumerate(placed):
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
    run(main)
