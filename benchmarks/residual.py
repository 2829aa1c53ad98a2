"""Measure prediction errors before and after a residual model, on models that it was not fitted to.

    python benchmarks/residual.py [--on edge-duo] [--steps 60] [--visits 3] [--models mlp cnn]
                                   [--random 100] [--runs FOLDER]

Of each of the twelve models of `small_steps.py`, or the zoo's small ones where they are named,
single devices and plans of quick planners that use several are measured in turns, in several visits
at random times (`--visits`). Every model's runs are then corrected by what was learned from the
other models' runs; the strength of the regression is chosen without the model, too. The same steps
are also predicted from costs computed from FLOPs and bytes, as where nothing was profiled.

`--random N` measures N drawn models of mixed kinds and N of one kind (`random_models.py`) once, of
those whose computed step takes `RANDOM_S` on the fastest device. They are only learned from.

`--runs FOLDER` keeps the runs after every model, by how costs were found; models that it has are
not measured again, and with `--minutes M` no other is begun after so many.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placewright import (
    Cluster,
    ModelSource,
    OperatorProblem,
    Result,
    capture_source,
    compare,
    initial_state,
    load_cluster,
    profile,
    running,
)
from placewright.numerics.arrays import FloatArray
from placewright.operators.judge import judge
from placewright.operators.measuring import MeasuringRounds
from placewright.operators.residual import Corrected, MeasuredRun, held_out, measured_run
from placewright.operators.residual_files import read_runs, write_runs
from placewright.planning.contract import silent
from placewright.testing.small_zoo import SIZES, small
from random_models import drawn, drawn_names
from small_steps import MODELS, SPLITTING

METHODS = ("measured", "analytic")
"""How costs were found: profiled, or computed from FLOPs and bytes."""

PROFILES = 3
"""In each visit."""

RANDOM_S = (7e-4, 6e-2)
"""Computed seconds of a step of drawn models: zoo models of this benchmark take 1 to 60 ms."""


Runs = dict[str, list[MeasuredRun]]
"""By `METHODS`."""


def collected(
    scored: Sequence[str], drawn: Sequence[str], cluster: Cluster, args: argparse.Namespace
) -> Runs:
    """Runs by how costs were found: those that were kept, and of each model without.

    The machine's speed drifts, which no model can learn: those that are scored are visited several
    times, and all visits are in one random order.
    """
    end_s = time.monotonic() + 60 * args.minutes
    files = {method: args.runs / f"{method}.json" for method in METHODS} if args.runs else {}
    found: Runs = {method: [] for method in METHODS}
    for method, file in files.items():
        found[method] = list(read_runs(file)) if file.exists() else []
    known = {run.model for run in found[METHODS[-1]]}
    due = [*list(scored) * args.visits, *drawn]
    np.random.default_rng(args.seed).shuffle(due)
    models: dict[str, Visited] = {}
    for k, name in enumerate(due):
        if name in known:
            continue
        if time.monotonic() > end_s:
            print(f"{name} is not measured yet: run the same command again.")
            continue
        visited = models.setdefault(name, Visited(name, cluster))
        if name in drawn and not visited.of_this_size:
            continue
        visited.measure(args.steps)
        if name not in due[k + 1 :]:
            for method, runs in models.pop(name).runs().items():
                found[method] += runs
            for method, file in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_runs(found[method], file)
    return found


class Visited:
    """A model, the plans of its first visit, and what all visits have measured."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self.cluster = name, cluster
        source, training = model(name)
        self.graph = capture_source(source, training=training)
        self.computed = profile(self.graph, cluster, method="analytic")
        self.state = initial_state(source, self.graph.program)
        self.results: list[Result] = []
        self.profiles_s: list[FloatArray] = []
        self.taken_s: list[list[float]] = []

    @property
    def of_this_size(self) -> bool:
        """Whether a computed step on the fastest device takes `RANDOM_S`."""
        return RANDOM_S[0] < float(self.computed.compute_s.sum(axis=0).min()) < RANDOM_S[1]

    def measure(self, steps: int) -> None:
        """Measure the plans in turns, and profile the model before, between and after."""
        problem = self._profiled()
        self.results = self.results or plans(problem)
        with running(self.graph, self.cluster, self.state) as runner:
            turns = MeasuringRounds(runner.session, self.results, 0)
            for part in np.array_split(np.arange(steps), PROFILES - 1):
                turns.measure(len(part), 5, silent)
                self._profiled()
            count = range(len(self.results))
            self.taken_s.append([turns.measurement(k).measured_s for k in count])

    def _profiled(self) -> OperatorProblem:
        problem = profile(self.graph, self.cluster, state=self.state)
        self.profiles_s.append(problem.compute_s)
        return problem

    def runs(self) -> Runs:
        """Geometric means: of steps over visits, and of the profiles that are judged."""
        taken_s = np.exp(np.log(self.taken_s).mean(axis=0)).tolist()
        profiled = self.computed.replace(compute_s=np.exp(np.log(self.profiles_s).mean(axis=0)))
        problems = {"measured": profiled, "analytic": self.computed}
        return {
            method: [
                measured_run(judge(problem, r.plan), seconds, self.name)
                for r, seconds in zip(self.results, taken_s, strict=True)
            ]
            for method, problem in problems.items()
        }


def model(name: str) -> tuple[ModelSource, bool]:
    """A model, and whether it is trained."""
    if name in MODELS:
        return MODELS[name].source(name), MODELS[name].training
    return drawn(name) if "-" in name else (small(name), True)


def plans(problem: OperatorProblem) -> list[Result]:
    """Every device alone, and the plans of `SPLITTING` that use several and differ."""
    found: dict[tuple[int, ...], Result] = {}
    for planner in (*(f"only:{device}" for device in problem.device_names), *SPLITTING):
        result = compare(problem, [planner])
        found.setdefault(tuple(result.plan.placement.tolist()), result)
    return list(found.values())


def error(seconds: float, run: MeasuredRun) -> float:
    """Signed, relative to what was measured."""
    return seconds / run.measured_s - 1


def summary(runs: Sequence[MeasuredRun], held: Sequence[Corrected]) -> str:
    """Errors before and after, and how many intervals held."""
    before = np.abs([error(run.predicted_s, run) for run in runs])
    after = np.abs([error(c.seconds, run) for c, run in zip(held, runs, strict=True)])
    inside = [c.low_s <= run.measured_s <= c.high_s for c, run in zip(held, runs, strict=True)]
    lines = [
        f"{kind}: median |error| {np.median(errors):.1%}, mean {errors.mean():.1%}, largest "
        f"{errors.max():.1%}"
        for kind, errors in (("judge", before), ("held out, corrected", after))
    ]
    return "\n".join(
        [
            *lines,
            f"after / before: median {np.median(after) / np.median(before):.2f}, mean "
            f"{after.mean() / before.mean():.2f}; 95 % "
            f"intervals that held: {sum(inside)} of {len(runs)}",
        ]
    )


def main() -> None:
    """Print the table and its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=[*MODELS, *SIZES])
    parser.add_argument("--on", default="edge-duo")
    parser.add_argument("--steps", type=int, default=60, help="of every plan in each visit")
    parser.add_argument("--visits", type=int, default=3, help="of each model that is scored")
    parser.add_argument("--seed", type=int, default=0, help="of the order of visits")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--runs", type=Path, help="a folder")
    parser.add_argument("--minutes", type=float, default=1e6)
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    cluster = load_cluster(args.on)
    drawn = drawn_names(args.random)
    names = {*args.models, *drawn}
    for method, runs in collected(args.models, drawn, cluster, args).items():
        print(f"\n## Costs: {method}\n")
        print_table([run for run in runs if run.model in names], args.models)


def print_table(learned: Sequence[MeasuredRun], scored: Sequence[str]) -> None:
    """A row per run of the models that are scored, and the summary."""
    runs = [run for run in learned if run.model in scored]
    others = {run.model for run in learned} - set(scored)
    if len({run.model for run in runs}) + min(len(others), 2) < 3:
        print("Runs of three models are needed to hold one out.")
        return
    print(f"Learned from {len(others)} drawn models, too.\n")
    held = held_out(learned, {run.model for run in runs})
    print("| model | predicted ms | corrected ms | measured ms | before | after |")
    print("|---|---|---|---|---|---|")
    for run, found in zip(runs, held, strict=True):
        print(
            f"| {run.model} | {run.predicted_s * 1e3:.2f} | {found.seconds * 1e3:.2f} | "
            f"{run.measured_s * 1e3:.2f} | {error(run.predicted_s, run):+.1%} | "
            f"{error(found.seconds, run):+.1%} |"
        )
    print(f"\n{summary(runs, held)}")


if __name__ == "__main__":
    main()
