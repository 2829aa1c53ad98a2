"""A fifth wing in one file, bin packing, needs no edit elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from placewright.io.boundary import FileModel, validate
from placewright.io.stored import read_data, write_data
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Planner, Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.solving import solve
from placewright.planning.wing import Document, Planning, Wing
from placewright.planning.wings import registered
from placewright.testing import PlannerConformance
from tests.cli.run_cli import run_cli


@dataclass(frozen=True, slots=True)
class Packing:
    sizes: tuple[int, ...]
    capacity: int
    name: str = "packing"
    objective: str = "packing"

    def hash(self) -> str:
        """Of all of it."""
        return str((self.sizes, self.capacity))


@dataclass(frozen=True, slots=True)
class Bins:
    of_item: tuple[int, ...]


def pack(problem: Packing, order: Any) -> Bins:
    """First fit: each item into the first bin with room."""
    free, chosen = list[int](), [0] * len(problem.sizes)
    for item in order:
        fitting = (b for b, room in enumerate(free) if room >= problem.sizes[item])
        chosen[item] = next(fitting, len(free))
        if chosen[item] == len(free):
            free.append(problem.capacity)
        free[chosen[item]] -= problem.sizes[item]
    return Bins(tuple(chosen))


@dataclass(frozen=True, slots=True)
class FirstFit:
    orders: int = 0
    name: str = "first-fit"

    def unsupported_reason(self, problem: Packing) -> str | None:
        """Always supported."""
        return None

    def __call__(self, problem: Packing, context: Context) -> Proposal[Bins]:
        """The given order, then random ones; Ctrl-C ends the search with the best so far."""
        rng, best = np.random.default_rng(context.seed), pack(problem, range(len(problem.sizes)))
        try:
            for k in range(self.orders):
                plan = pack(problem, rng.permutation(len(problem.sizes)).tolist())
                best = min(best, plan, key=lambda p: len(set(p.of_item)))
                context.progress(what=f"order {k}", value=0.0, bound=context.bound, elapsed_s=0.0)
        except KeyboardInterrupt:
            return Proposal(best, interrupted=True)
        return Proposal(best)


class PackingPlanning(Planning):
    def planners(self, problem: Packing) -> Mapping[str, Planner]:
        """A rule and a search."""
        return {p.name: p for p in (FirstFit(), FirstFit(20, "shuffled"))}

    def judge(self, problem: Packing, plan: Bins) -> Any:
        """Bins that are used; none may be too full."""
        over = max(0.0, float(np.bincount(plan.of_item, problem.sizes).max()) - problem.capacity)
        return SimpleNamespace(
            value=float(len(set(plan.of_item))),
            feasible=not over,
            violation=f"a bin is {over:g} too full" if over else "",
            violation_size=over,
            metrics={},
            trace=lambda: None,
        )

    def bounds(self, problem: Packing) -> Mapping[str, float]:
        """All volume in full bins."""
        return {"volume": float(-(-sum(problem.sizes) // problem.capacity))}


class PackingFile(FileModel):
    items: list[int]
    capacity: int


class BinsFile(ResultFile):
    plan: dict[str, list[int]]


class PackingFiles:
    problem_document = Document("packing", ("items", "capacity"), PackingFile)
    plan_document = Document("packing-plan", ("plan.bins",), BinsFile)

    def read_problem(self, path: str | Path) -> Packing:
        """Items and capacity."""
        return self.problem_from(read_data(path)[0], where=str(path), name=Path(path).stem)

    def problem_from(self, data: Any, *, where: str, name: str) -> Packing:
        """Of the data of a file."""
        entry = validate(PackingFile, data, where=where)
        return Packing(tuple(entry.items), entry.capacity, name)

    def write_problem(self, problem: Packing, path: str | Path) -> Path:
        """What `read_problem` reads."""
        return write_data({"items": list(problem.sizes), "capacity": problem.capacity}, path)

    def read_proposal(self, path: str | Path, problem: Packing) -> Proposal[Bins]:
        """The bin of every item."""
        entry = validate(BinsFile, read_data(path)[0], where=str(path))
        return Proposal(Bins(tuple(entry.plan["bins"])))

    def result_json(self, result: Result) -> dict[str, Any]:
        """The head of every result, and the plan."""
        return head_json(result) | {"plan": {"bins": list(result.plan.of_item)}}


EIGHT = Packing((2, 3, 4, 6, 5, 4, 5, 1), 10)
SIZES = st.lists(st.integers(1, 9), min_size=1).map(tuple)
KIT = SimpleNamespace(
    tiny_instances=lambda: {"eight": EIGHT},
    random_problems=lambda: st.builds(Packing, SIZES, st.just(9)),
    check_plan=lambda problem, plan: plan.of_item[len(problem.sizes) - 1],
    same_plan=lambda plan, other: plan == other,
)
WING = Wing(
    "packing",
    "items -> bins",
    lambda: Packing,
    lambda: Bins,
    PackingPlanning,
    PackingFiles,
    unit="bins",
    conformance=lambda: KIT,
)


class TestShuffled(PlannerConformance):
    named, wing = "shuffled", WING


def test_it_is_solved_shown_and_interrupted(tmp_path: Path) -> None:
    """`auto` closes the gap; pages and tables count bins; Ctrl-C keeps the best so far."""

    def press(*, what: str, **_: float) -> None:
        if "order" in what:
            raise KeyboardInterrupt

    with registered(WING):
        result = solve(EIGHT)
        assert (result.value, result.status) == (3.0, Status.OPTIMAL)
        assert "3 bins" in repr(result)
        assert "3 bins" in result.report(tmp_path / "page.html").read_text()
        stopped = solve(Packing((6, 6, 6), 10), "shuffled", progress=press)
    assert (stopped.value, stopped.status) == (3.0, Status.INTERRUPTED)


def test_its_verbs_read_and_write_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """plan, compare, simulate, show and schema."""
    problem, plan, page = (tmp_path / name for name in ("p.json", "plan.json", "page.html"))
    PackingFiles().write_problem(EIGHT, problem)
    with registered(WING):
        made = run_cli(capsys, "packing", "plan", problem, "-o", plan, "-f", "json").data
        again = run_cli(capsys, "packing", "simulate", problem, plan, "-f", "json").data
        assert (again["value"], again["plan"]) == (made["value"], made["plan"])
        assert "shuffled" in run_cli(capsys, "packing", "compare", problem).out
        for file in (problem, plan):
            assert run_cli(capsys, "show", file, "-o", page, "--no-open").code == 0
        assert "plan" in run_cli(capsys, "schema", "packing-plan").data["properties"]
        assert run_cli(capsys, "operators", "plan", plan).code == 1


def test_it_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """As the wing of another distribution."""
    (tmp_path / "toy-1.dist-info").mkdir()
    points = f"[placewright.wings]\npacking = {__name__}:WING\n"
    (tmp_path / "toy-1.dist-info" / "entry_points.txt").write_text(points)
    code = f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}; sys.argv[0] = 'placewright'"
    code += "\nfrom placewright.cli.main import main\nmain(['packing', 'plan', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "FILE" in done.stdout
