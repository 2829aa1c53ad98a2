"""Each kind of addition is one file, and at most one line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import placewright
from placewright import solve
from placewright.cluster.cluster import Cluster, Device
from placewright.operators import files
from placewright.operators.conformance import named_instances
from placewright.planning import views
from placewright.planning.wing import Format
from placewright.requests import policies
from placewright.requests.conformance import two_servers
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.problem import RequestProblem
from placewright.requests.stream import stream_of
from placewright.runtime.engines import engine as engines

Write = Callable[[str], Any]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the one file, and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> Any:
        (tmp_path / "addition.py").write_text(dedent(source), encoding="utf-8")
        return __import__("addition")

    yield write
    sys.modules.pop("addition", None)


def one_request() -> RequestProblem:
    """Which has all the time that it needs."""
    return RequestProblem(two_servers(), stream_of(np.array([0.0]), np.array([5.0])), 1.0)


def test_a_planner(module: Write) -> None:
    """No line elsewhere; an entry point puts it beside the others."""
    mine = module("""
        from placewright.operators.plan import OperatorPlan

        class Last:
            name = "last"
            def unsupported_reason(self, problem):
                return None
            def __call__(self, problem, context):
                return OperatorPlan([problem.m - 1] * problem.n)
    """)
    assert solve(named_instances()["diamond"], mine.Last()).planner == "last"


def test_a_policy(module: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in the list of policies."""
    mine = module("""
        from dataclasses import dataclass
        from typing import ClassVar
        from placewright.requests.policy import Decision, Dispatch, Specification

        class First:
            eager = False
            def revise(self, service):
                pass
            def decide(self, now_s, queue, servers):
                return Decision((Dispatch(0, 0, queue.by_deadline[:1]),))

        @dataclass(frozen=True)
        class FirstServer(Specification):
            policy: ClassVar[str] = "first-server"
            def start(self, service, seed=0):
                return First()
    """)
    monkeypatch.setitem(policies.POLICIES, "first-server", mine.FirstServer)
    problem = one_request()
    assert judge(problem, RequestPlan("first-server")).success_rate == 1.0
    assert "first-server" in placewright.planners(problem)


def test_a_file_format(module: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line in the wing's list of formats."""
    mine = module("""
        from pathlib import Path
        from placewright import OperatorProblem

        def read_chain(path):
            builder = OperatorProblem.builder(["a"])
            for name in Path(path).read_text().split():
                builder.add_operator(name, {"a": 1.0})
            return builder.build()
    """)
    added = Format("chain", "names of operators", mine.read_chain)
    monkeypatch.setattr(files, "formats", (*files.formats, added))
    (tmp_path / "two.txt").write_text("x y")
    assert placewright.read(f"chain:{tmp_path / 'two.txt'}").operator_names == ("x", "y")


def test_an_engine_and_a_program(module: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in the list of engines; a program is named by where it is."""
    module("""
        from contextlib import nullcontext
        from placewright.runtime.engines.local import Local
        from placewright.runtime.program import WorkerProgram, order

        class Mine(Local):
            name = "mine"

        def opened(cluster, *, emulate=True):
            return nullcontext(Mine())

        class Adder(WorkerProgram):
            @order("adding")
            def add(self, a, b):
                return a + b
    """)
    monkeypatch.setitem(engines.ENGINES, "mine", "addition:opened")
    cluster = Cluster((Device("a"), Device("b")))
    with (
        engines.open_engine("mine", cluster) as engine,
        engine.group(cluster, "addition:Adder") as group,
    ):
        assert engine.name == "mine"
        assert group.order("add", [(1, 2), (3, 4)]) == [3, 7]


@pytest.mark.parametrize("wing", ["operators", "requests"])
def test_a_section_of_pages(
    module: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wing: str
) -> None:
    """One line in the list of sections, for the pages of every wing."""
    mine = module("""
        from placewright.planning.views import preformatted

        def note(result):
            return preformatted("Note", "", f"by {result.planner} in {result.unit or 'no unit'}")
    """)
    monkeypatch.setattr(views, "SECTIONS", (*views.SECTIONS, mine.note))
    problem = named_instances()["diamond"] if wing == "operators" else one_request()
    result = solve(problem)
    assert f"by {result.planner}" in result.report(tmp_path / "page.html").read_text()
