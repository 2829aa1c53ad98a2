"""Compare the speed of this tree with an older one.

    python benchmarks/side_by_side.py OLD/src

Both trees run in processes of their own, in turns: the judge on random placements, and on HEFT's
plan with all that it says of it, HEFT, `search` with a fixed amount of work, and the executor (a
training step on one device). Of the executor the time of its steps counts, of the others the
process's CPU time. The ratio is the older tree's time over this one's, so more than 1 is faster;
the interval holds 95 % of resampled medians.

``git archive COMMIT src | tar -x -C OLD`` makes an older tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("judge", "one plan", "heft", "search", "executor")
SOURCE = Path(__file__).resolve().parents[1] / "src"


def first_of(name: str, *modules: str) -> Any:
    """`name` from the first of the modules that this tree has: some have been renamed."""
    for module in modules:
        try:
            return getattr(import_module(f"placewright.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"{name} is in none of {', '.join(modules)}")


def cpu_s(run: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def parts(file: Path) -> dict[str, Callable[[], float]]:
    """What is timed, by name; one call is one round."""
    import placewright

    read_problem = first_of("read_problem", "operators.files")
    rules = import_module("placewright.operators.judge")
    judge_type = getattr(rules, "OperatorJudge", None) or rules.Judge  # its name before
    planners = first_of("planners", "operators.planners")
    context = first_of("Context", "planning.contract", "planning")()
    problem = read_problem(file)
    judge, rng = judge_type(problem), np.random.default_rng(1)
    rows = rng.integers(0, problem.m, (400, problem.n))
    heft = planners(problem)["heft"]
    search = replace(planners(problem)["search"], effort=1.5e6)

    def searched() -> object:
        return placewright.solve(problem, search, time_limit_s=float("inf"))

    session, plan = executor_session(), heft(problem, context)
    return {
        "judge": lambda: cpu_s(lambda: judge.many(rows)),
        "one plan": lambda: cpu_s(lambda: [judge(plan) for _ in range(200)]),
        "heft": lambda: cpu_s(lambda: [heft(problem, context) for _ in range(400)]),
        "search": lambda: cpu_s(searched),
        "executor": lambda: float(np.median([r.duration_s for r in session.run(10)])),
    }


def executor_session() -> Any:
    """Workers that execute a training step of AlexNet on one device."""
    import placewright

    load = first_of("load_model", "capturing.source", "capture.source")
    capture = first_of("capture_source", "capturing.model", "capture.model")
    state = first_of("initial_state", "capturing.state", "capture.state")
    session_type = first_of("Session", "runtime.session", "execute.session")
    source = load("zoo:alexnet", batch=2, training=True)
    graph = capture(source, training=True)
    here = placewright.Cluster((placewright.Device("here"),))
    session = session_type(graph, here, state(source, graph.program))
    session.__enter__()
    session.load([0] * len(graph.operators), range(len(graph.operators)))
    session.run(3)
    return session


def answer_rounds(file: Path) -> None:
    """Time what stdin names, one round per line; ends with stdin."""
    timed = parts(file)
    for name in PARTS[:-1]:
        timed[name]()  # compiles
    print("ready", flush=True)
    for line in sys.stdin:
        print(timed[line.strip()](), flush=True)
    os._exit(0)


class Tree:
    """A process that runs one tree's code; it is ready when everything is compiled."""

    def __init__(self, source: Path, file: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(file)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self, name: str = "") -> str:
        """The next line; of a part's `name` the seconds of one round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if name:
            print(name, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process ended with code {self.process.wait()}")
        return line

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main(old: Path, *, rounds: int = 15, limit: float = 0.97) -> int:
    """Print a markdown table; 1 where the ratio's interval is below the limit."""
    from judge_speed import layered
    from placewright.operators.files import write_problem

    with tempfile.TemporaryDirectory() as folder:
        file = write_problem(layered(500, 4), Path(folder) / "problem.json")
        trees = [Tree(source.resolve(), file) for source in (old, SOURCE)]
        try:
            return int(compared(trees, rounds, limit) > 0)
        finally:
            for tree in trees:
                tree.close()


def compared(trees: list[Tree], rounds: int, limit: float) -> int:
    """Print a row per part; how many are slower than the limit for certain."""
    from harness import Table

    for tree in trees:
        tree.line()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}\n")
    table = Table("part", "before, ms", "now, ms", "before / now", "95 %")
    slower, rng = 0, np.random.default_rng(0)
    for name in PARTS:
        took = np.array(
            [[float(tree.line(name)) for tree in (trees, trees[::-1])[k % 2]][:: (1, -1)[k % 2]]
             for k in range(rounds)]
        )  # fmt: skip
        ratio = took[:, 0] / took[:, 1]
        picked = np.median(rng.choice(ratio, (2000, len(ratio))), axis=1)
        low, high = np.quantile(picked, [0.025, 0.975])
        times = [f"{ms:.2f}" for ms in np.median(took, axis=0) * 1e3]
        slower += bool(high < limit)
        table.row(name, *times, f"{np.median(ratio):.3f}", f"{low:.3f} to {high:.3f}")
    return slower


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:  # an older tree may lack what the harness imports
        answer_rounds(Path(sys.argv[2]))
    from harness import run

    run(main)
