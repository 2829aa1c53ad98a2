"""Layer ranges on machines: judge, bounds, planners and files against oracles."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from placewright.errors import InfeasibleError, InputError
from placewright.files import read, write
from placewright.layers.conformance import all_linked, flow_instances, random_flow, tiny_flow
from placewright.layers.flow import FLOW, bounds
from placewright.layers.flow.files import problem_json, read_problem
from placewright.layers.flow.problem import FlowProblem, LayerRanges, judge, ranges_of
from placewright.planning.candidates import Status
from placewright.planning.solving import compare, solve
from placewright.testing import PlannerConformance, WingConformance
from tests.cli.run_cli import run_cli
from tests.published import published

HELIX = {
    "llama30b_8_l4_single": (214.98, 252.65, True),
    "llama30b_10": (286.587, 286.587, True),
    "llama30b_12_t4_dist": (397.685, 397.685, True),
    "llama70b_24_single": (1289.55, 2045.64, True),
}
"""Published value, ours, and whether it is proved; the others take minutes: see the benchmark."""


def plans(p: FlowProblem) -> Any:
    """Every placement of a tiny problem."""
    ranges = [
        [(0, 0), *((s, s + k) for k in range(1, most + 1) for s in range(p.layers - k + 1))]
        for most in p.most.tolist()
    ]
    for chosen in itertools.product(*ranges):
        yield ranges_of([s for s, _ in chosen], [e for _, e in chosen])


def open_arcs(p: FlowProblem, plan: LayerRanges) -> list[tuple[int, int, float]]:
    """Arcs as the format's description states them."""
    n, arcs = p.n, list[tuple[int, int, float]]()
    held = [i for i in range(n) if plan.end[i] > 0]
    arcs += [(n, i, p.links[n, i]) for i in held if plan.start[i] == 0]
    arcs += [(i, n + 1, p.links[i, n + 1]) for i in held if plan.end[i] == p.layers]
    for i, j in itertools.permutations(held, 2):
        joins = plan.end[i] == plan.start[j]
        if p.partial_inference:
            joins = plan.start[j] <= plan.end[i] < plan.end[j]
        arcs += [(i, j, p.links[i, j])] * joins
    return arcs


def flow_by_program(p: FlowProblem, plan: LayerRanges) -> float:
    """The maximum flow as a linear program."""
    n, arcs = p.n, open_arcs(p, plan)
    if not arcs:
        return 0.0
    kept, limits = np.zeros((n, len(arcs))), np.zeros((n, len(arcs)))
    for a, (tail, head, _) in enumerate(arcs):
        if tail < n:
            kept[tail, a] -= 1
        if head < n:
            kept[head, a] += 1
            limits[head, a] = 1
    rates = [p.rates[i, plan.end[i] - plan.start[i]] for i in range(n)]
    gain = [-1.0 if tail == n else 0.0 for tail, _, _ in arcs]
    found = linprog(gain, limits, rates, kept, np.zeros(n), [(0, rate) for *_, rate in arcs])
    return float(-found.fun)


@pytest.mark.parametrize("seed", range(30))
def test_the_value_is_the_maximum_flow(seed: int) -> None:
    """Random placements, both kinds of inference; what machines carry adds up."""
    p, rng = random_flow(seed), np.random.default_rng(seed)
    every = list(plans(p))
    for k in rng.integers(0, len(every), 8).tolist():
        judged = judge(p, every[k])
        assert judged.value == pytest.approx(flow_by_program(p, every[k]), abs=1e-9)
        assert judged.feasible == (judged.value > 0)
        ends = [i for i in range(p.n) if every[k].end[i] == p.layers]
        if not p.partial_inference:
            assert judged.carried[ends].sum() == pytest.approx(judged.value)


@pytest.mark.parametrize("seed", range(12))
def test_no_placement_beats_a_bound_and_annealing_finds_the_best(seed: int) -> None:
    """Every placement of problems of up to four machines."""
    p = random_flow(seed)
    best = max(judge(p, plan).value for plan in plans(p))
    assert all(best <= bound for bound in bounds.bounds(p).values())
    if best == 0:
        with pytest.raises(InfeasibleError):
            solve(p, "annealing(runs=1, steps=2000)", time_limit_s=math.inf)
        return
    found = solve(p, "annealing(runs=2, steps=3000)", time_limit_s=math.inf)
    assert found.value == pytest.approx(best)
    assert found.bound >= best


def test_covers_are_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all multisets; a search that takes too long proves nothing."""
    p = tiny_flow(6, [[9, 5, 4], [9, 5, 4], [7, 3], [7, 3]])
    covers = bounds.Covers(p)
    items = list(zip(covers.item_class, covers.item_size, covers.item_rate, strict=True))
    rng = np.random.default_rng(0)
    for flow in (3.0, 8.0, 12.5, 20.0, 31.9):
        price = rng.uniform(0.5, 2.0, 2)
        least = math.inf
        for size in range(1, 5):
            for chosen in itertools.combinations_with_replacement(items, size):
                count = np.bincount([t for t, _, _ in chosen], minlength=2)
                if sum(rate for *_, rate in chosen) >= flow and (count <= covers.count).all():
                    least = min(least, sum(price[t] / k for t, k, _ in chosen))
        assert covers.cheapest(flow, price)[0] == pytest.approx(least)
    assert bounds.bounds(flow_instances()["too-few"])["holders"] < 1e-4
    assert covers.impossible(33.0)  # more than all four together
    assert not covers.impossible(4.0)


def test_the_bound_on_holders_by_hand() -> None:
    """Two machines, 4 layers: at most 5 tokens/s each holding 2, though 2 x 9 pass one layer."""
    found = bounds.bounds(tiny_flow(4, [[9, 5], [9, 5]]))
    assert found["holders"] == pytest.approx(5.0)
    assert found["compute"] == pytest.approx(5.0)
    wide = bounds.bounds(tiny_flow(4, [[9, 5, 4]] * 2))
    assert wide["compute"] == pytest.approx(6.0)  # 4 x 3 passes of each
    assert wide["holders"] == pytest.approx(5.0)  # layers of one holder are 4 at 5 tokens/s


def test_a_plan_by_hand() -> None:
    """Two machines in a row, or side by side; what is held where no tokens pass does no harm."""
    p = tiny_flow(2, [[9, 5], [7, 4]])
    assert judge(p, LayerRanges((0, 1), (1, 2))).value == 7
    assert judge(p, LayerRanges((0, 0), (2, 2))).value == 9
    assert judge(p, LayerRanges((0, 1), (2, 2))).value == 5
    slow = tiny_flow(2, [[9, 5], [7, 4]], all_linked(2, 3.0))
    assert judge(slow, LayerRanges((0, 0), (2, 2))).value == 6
    lacking = judge(p, LayerRanges((0, 0), (1, 0)))
    assert lacking.violation == "no token passes all 2 layers: no machine holds layer 1"
    assert lacking.violation_size == 1
    apart = judge(flow_instances()["no-link-between"], LayerRanges((0, 2), (2, 4)))
    assert apart.violation_size == 1
    assert apart.violation.endswith("no links join them")
    # The second holds both layers, and with partial inference serves the last one alone.
    partial = tiny_flow(2, [[9], [7, 4]], partial_inference=True)
    assert judge(partial, LayerRanges((0, 0), (1, 2))).value == 4
    for wrong, match in (
        (LayerRanges((0,), (1,)), "a range for each machine"),
        (LayerRanges((0, 0), (3, 1)), "no range of layers"),
        (LayerRanges((1, 0), (1, 1)), "no range of layers"),
    ):
        with pytest.raises(InputError, match=match):
            judge(p, wrong)
    with pytest.raises(InputError, match="cannot hold these"):
        judge(partial, LayerRanges((0, 0), (2, 2)))


class TestWing(WingConformance):
    wing = FLOW


class TestAnnealing(PlannerConformance):
    named, wing = "annealing(runs=1, steps=1000)", FLOW

    def planner(self, problem: Any) -> Any:
        """Short runs."""
        from placewright.layers.flow.planners import Annealing

        return Annealing(runs=1, steps=1000)


def test_baselines_do_as_they_say() -> None:
    """Parts by count and by memory; equal stages; ranges where the least is held."""
    p = tiny_flow(6, [[9, 8, 7, 6], [9, 8], [9, 8]])
    found = compare(p, ["equal", "memory", "swarm", "petals", "chain"])
    plan = {c.planner: c.plan for c in found.candidates if c.plan is not None}
    assert plan["equal"] == LayerRanges((0, 2, 4), (2, 4, 6))
    assert plan["memory"] == LayerRanges((0, 3, 4), (3, 4, 6))
    assert plan["swarm"] == LayerRanges((0, 2, 4), (2, 4, 6))
    assert plan["petals"] == LayerRanges((0, 4, 0), (4, 6, 2))
    assert found.candidates["chain"].value == 8
    assert found.status is Status.OPTIMAL


def test_ctrl_c_keeps_the_best_so_far() -> None:
    """The first plan stands where the search is interrupted at once."""

    def press(*, what: str, **_: float) -> None:
        if "run" in what:
            raise KeyboardInterrupt

    p = tiny_flow(6, [[9, 5, 4]] * 4)
    found = solve(p, "annealing", progress=press, incumbent=LayerRanges((0, 3, 0, 0), (3, 6, 0, 0)))
    assert found.interrupted
    assert found.value >= 4


def entry(**changes: Any) -> dict[str, Any]:
    """A file of two machines."""
    node = {"name": "a", "type": "T4", "max_layers": 2, "throughput_tokens_per_s": [9.0, 5.0]}
    ends = [("source", "a"), ("a", "b"), ("b", "sink"), ("source", "b"), ("a", "sink")]
    usual = {
        "format": "llmflow/1",
        "name": "two",
        "model": {"num_layers": 4},
        "nodes": [node, node | {"name": "b"}],
        "links": [{"source": s, "target": t, "tokens_per_s": 50.0} for s, t in ends],
    }
    return usual | changes


def test_files_are_read_planned_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A problem, written, is equal; a plan can be simulated; the command prints what was asked."""
    path = tmp_path / "two.json"
    path.write_text(json.dumps(entry()))
    p = read(f"flow:{path}")
    assert (p.name, p.layers, p.most.tolist()) == ("two", 4, [2, 2])
    write(p, tmp_path / "again.json")
    assert read(tmp_path / "again.json").hash() == p.hash()
    assert problem_json(read(problem_json(p))) == problem_json(p)
    plan = tmp_path / "plan.json"
    ran = run_cli(capsys, "layers", "plan", f"flow:{path}", "-o", plan, "-f", "json")
    found = ran.data
    assert ran.code == 0
    assert found["value"] == 5.0
    assert found["upper_bound"] == pytest.approx(5.0)
    assert found["plan"]["placement"] == {"a": [0, 2], "b": [2, 4]}
    ran = run_cli(capsys, "layers", "simulate", path, plan)
    assert ran.code == 0
    assert "5 tokens/s" in ran.out
    result = solve(p)
    assert "0 .. 1" in repr(result)
    result.report(tmp_path / "page.html")
    assert "Layer ranges" in (tmp_path / "page.html").read_text()


NODE = entry()["nodes"][0]
LINK = entry()["links"][0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"nodes": [NODE | {"throughput_tokens_per_s": [9.0]}]}, "1 numbers, max_layers is 2"),
        ({"nodes": [NODE | {"throughput_tokens_per_s": [9.0, -1.0]}]}, "greater than or equal"),
        ({"nodes": [NODE | {"throughput_tokens_per_s": [9.0, 1e300]}]}, "less than or equal"),
        ({"nodes": [NODE | {"throughput_tokens_per_s": [9.0, math.nan]}]}, "throughput"),
        ({"nodes": [NODE | {"name": "sink"}]}, "coordinator's name"),
        ({"nodes": [NODE, NODE], "links": []}, "machine 'a' is there twice"),
        ({"nodes": []}, "at least 1 item"),
        ({"links": [LINK | {"target": "c"}]}, "unknown machine 'c'"),
        ({"links": [LINK, LINK]}, "is there twice"),
        ({"links": [LINK | {"source": "a"}]}, "joins nothing"),
        ({"links": [LINK | {"speed": 3}]}, "speed"),
        ({"model": {"num_layers": 10**9}}, "num_layers"),
        ({"format": "llmflow/2"}, "format"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    """With the file and the field."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(entry(**changes)))
    with pytest.raises(InputError, match=match) as raised:
        read_problem(path)
    assert str(path) in str(raised.value)


def test_what_no_token_passes_has_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No link of the source: exit code 3, and why."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(entry(links=[LINK | {"source": "a", "target": "b"}])))
    ran = run_cli(capsys, "layers", "plan", f"flow:{path}", "--time-limit", "0.2")
    assert ran.code == 3
    assert "no token passes all 4 layers" in ran.err


@pytest.mark.parametrize("name", HELIX)
def test_published_problems(name: str) -> None:
    """Published placements have their published value; ours is proved, and no worse."""
    path = published(f"llm/helix/{name}.json")
    p, data = read_problem(path), json.loads(path.read_text())
    for run in data["published"]["runs"]:
        ranges = [run["placement"].get(node, (0, 0)) for node in p.node_names]
        plan = ranges_of([s for s, _ in ranges], [e for _, e in ranges])
        assert judge(p, plan).value == pytest.approx(run["objective"], rel=1e-7)
    known, ours, proved = HELIX[name]
    found = solve(p, time_limit_s=30)
    assert found.value >= known
    assert found.value == pytest.approx(ours, rel=1e-5)
    assert (found.status is Status.OPTIMAL) == proved
