"""Planners on published graphs: contended task graphs, pipelines and calls through host memory.

    python benchmarks/published_graphs.py dag [NAME ...] [--seconds 60]
    python benchmarks/published_graphs.py throughput [NAME ...] [--seconds 120]
    python benchmarks/published_graphs.py latency [NAME ...]
    python benchmarks/published_graphs.py free FILE [FILE ...] [--seconds 60]

Prints a markdown table of the files whose names hold one of the words given, all without. `dag`:
the task graphs at CCR 1, links contended: makespans of HEFT, of the best single device and of
``auto``, its ratio to the better of the two, and the ratio that the lower bound would give, below
which no planner can come. `throughput`: contiguous and any plans for pipelines whose transfers go
through host memory; `latency`: calls of accelerators, beside the best value that was known; both in
milliseconds, as published. `free`: plans that need not be contiguous, of any files of
github.com/msr-fiddle/dnn-partitioning, ``throughput-inputs`` and ``latency-inputs``. ``--seconds``
is for each planner. What numba compiles once per machine is compiled before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Literal

from harness import DATA, Table, run
from placewright import Context, Result, judge, solve
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.neural_networks import read_expert, read_msr
from placewright.operators.readers.task_graphs import read_dag

Kind = Literal["dag", "throughput", "latency", "free"]
ROWS = (("contiguous", "dpl"), ("contiguous", "dp"), ("contiguous", "exact"), ("any", "exact"))
KNOWN = {
    "layer_bert24_inference": "100.22",
    "layer_gnmt_inference": "225.65",
    "op_bert3_inference": "408.47",
    "op_resnet50_inference": "755.80",
}
"""From mixed-integer programs with strengthened bounds, two minutes on two cores."""


def main(what: Kind, *names: str, seconds: float = 120.0) -> None:
    """Print the table."""
    tables = {"dag": dag, "throughput": throughput, "latency": latency, "free": free}
    tables[what](names, seconds)


def files(folder: str, pattern: str, names: tuple[str, ...]) -> Iterator[Path]:
    """Those whose names hold one of the words."""
    for path in sorted((DATA / folder).glob(pattern)):
        if not names or any(name in path.stem for name in names):
            yield path


def dag(names: tuple[str, ...], seconds: float) -> None:
    """Contended task graphs, and the means of the ratios."""
    head = ("HEFT", "best single", "auto", "bound", "ratio", "of the bound", "won", "seconds")
    table, ratios = Table("instance", *head), []
    for path in files("dag", "*_ccr1.0_*.json", names):
        problem = read_dag(path, links="contended")
        heft = judge(problem, HEFT(problem, Context())).value
        single = float(problem.compute_s.sum(axis=0).min())
        auto, best = solve(problem, time_limit_s=seconds), min(heft, single)
        cells = [f"{x:.1f}" for x in (heft, single, auto.value, auto.lower_bound)]
        ratios.append((auto.value / best, auto.lower_bound / best))
        took = f"{auto.runtime_s - auto.compile_s:.1f}"
        table.row(problem.name, *cells, *(f"{x:.4f}" for x in ratios[-1]), auto.planner, took)
    if ratios:
        mean, least = map(fmean, zip(*ratios, strict=True))
        print(f"\nMean ratio {mean:.4f} over {len(ratios)}; the bounds would give {least:.4f}.")


def throughput(names: tuple[str, ...], seconds: float) -> None:
    """Every planner of pipelines, and the split of people where there is one."""
    solve(read_msr(next(files("msr/throughput", "*.json", ())), contiguous=True), "dp")
    head = ("value ms", "bound ms", "gap", "status", "seconds")
    table = Table("workload", "plans", "planner", *head, left=3)
    for path in files("msr/throughput", "*.json", names):
        if (split := expert(path)) is not None:
            problem = read_msr(path)
            value = judge(problem, read_expert(split, problem)).value
            table.row(path.stem, "contiguous", "expert", f"{1e3 * value:.3f}", *[""] * 4)
        for plans, planner in ROWS:
            problem = read_msr(path, contiguous=plans == "contiguous")
            result = solve(problem, planner, time_limit_s=seconds)
            table.row(path.stem, plans, planner, *cells_of(result))


def expert(path: Path) -> Path | None:
    """The human split; one of inference is taken for training too."""
    short = path.stem.removeprefix("layer_")
    stems = (short, short.replace("training", "inference"))
    splits = [DATA / "msr" / "experts" / f"{stem}_expert.json" for stem in stems]
    return next((s for s in splits if s.exists() and short != path.stem), None)


def free(names: tuple[str, ...], seconds: float) -> None:
    """Plans that need not be contiguous, of files anywhere."""
    solve(read_msr(next(files("msr/throughput", "op_bert3*.json", ()))), "exact", time_limit_s=20)
    table = Table(
        "workload", "operators", "devices", "value ms", "bound ms", "gap", "status", "seconds"
    )
    for path in map(Path, names):
        objective = "latency" if "latency-inputs" in path.parts else "throughput"
        problem = read_msr(path, objective)
        result = solve(problem, "exact", time_limit_s=seconds)
        name = "/".join(path.parts[-2:]).removesuffix(".json")
        table.row(name, problem.n, problem.m, *cells_of(result))


def latency(names: tuple[str, ...], seconds: float) -> None:
    """One and two calls of each accelerator."""
    solve(read_msr(next(files("msr/latency", "*.json", ())), "latency"), "exact")
    table = Table(
        "workload", "calls", "known ms", "value ms", "bound ms", "gap", "status", "seconds"
    )
    for path in files("msr/latency", "*.json", names):
        for calls in (1, 2):
            problem = read_msr(path, "latency", calls=calls)
            known = KNOWN.get(path.stem, "-") if calls == 1 else "-"
            result = solve(problem, "exact", time_limit_s=seconds)
            table.row(path.stem, calls, known, *cells_of(result))


def cells_of(result: Result) -> list[str]:
    """Value and bound in milliseconds, gap, status and seconds."""
    numbers = [f"{1e3 * x:.3f}" for x in (result.value, result.lower_bound)]
    return [*numbers, f"{100 * result.gap:.2f} %", str(result.status), f"{result.runtime_s:.2f}"]


if __name__ == "__main__":
    run(main)
