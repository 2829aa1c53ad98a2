"""Parts of pages: memory curves; facts and candidates of a plan file."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError
from placewright.graph.graph import Graph, Operator, Tensor
from placewright.measurement import Baseline, MachineLoad
from placewright.operators.views import run_table
from placewright.planning.candidates import (
    Candidate,
    Candidates,
    Outcome,
    TriedPlan,
    candidate_cells,
)
from placewright.planning.result import Result
from placewright.planning.solving import solve
from placewright.planning.views import (
    COLUMNS,
    column_peaks,
    compare_table,
    memory_charts,
    result_facts,
    saved_candidates_section,
    saved_facts,
    saved_sections,
    views_of,
)
from placewright.planning.wing import Wing
from placewright.planning.wings import families, judge
from placewright.report.text import percent, plain_table, shorten
from tests.report.examples import beside, chain, measured, result_of


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e9)), min_size=1, max_size=40))
def test_no_peak_is_lost_between_pixels(steps: list[tuple[float, float]]) -> None:
    """The highest column is the highest value; every column is a value that was held."""
    steps.sort()
    times, held = (np.array(x) for x in zip(*steps, strict=True))
    peaks = column_peaks(times, held, 10.0)
    assert len(peaks) == COLUMNS
    assert peaks.max() == held.max()
    assert set(peaks.tolist()) <= {0.0, *held.tolist()}


def test_capacity_is_drawn_where_there_is_one() -> None:
    """dev0 has a limit, dev1 has none; a limit far away is printed, not drawn."""
    charts = memory_charts(result_of(chain()).judgement.trace())
    assert charts.count("<figure") == 2
    assert charts.count('class="capacity"') == 1
    assert "no limit" in charts
    roomy = memory_charts(result_of(chain(memory_bytes=[1e9, np.inf])).judgement.trace())
    assert 'class="capacity"' not in roomy
    assert "far below its 954 MiB" in roomy


def test_the_first_candidates_are_those_of_every_page_and_the_rest_on_request() -> None:
    """The chosen one, the five best, baselines and what was measured; `short_list` says which."""
    every: list[dict[str, Any]] = [
        {"planner": f"p{k}", "value": float(k), "status": "FEASIBLE", "runtime_s": 0.1}
        for k in range(10)
    ]
    every[8]["baseline"] = True
    every[6]["measured_s"] = 6.5
    every.append({"planner": "big", "value": 0.0, "status": "INFEASIBLE", "runtime_s": 0.1})
    data: dict[str, Any] = {"planner": "p3", "value": 3.0, "candidates": every}
    shown, others = saved_candidates_section(data).split("<details>")
    assert _planners(shown) == ["p0", "p1", "p2", "p3", "p4", "p6", "p8"]
    assert _planners(others) == ["p5", "p7", "p9", "big"]
    data |= {"planner": "p9", "direction": "maximise"}
    assert _planners(saved_candidates_section(data))[0] == "p9"
    assert "style=" not in shown  # pages of the service let no element have one


def _planners(table: str) -> list[str]:
    return re.findall(r'class="who">([^<]+)<', table)


def test_facts_of_a_file_are_those_of_the_result() -> None:
    """As far as the file has them."""
    result = result_of(chain())
    saved = {name: value for name, value, _ in saved_facts(result.as_json())}
    assert saved["lower bound"] != "-"
    assert saved["planner"] == result.planner
    assert saved == {name: value for name, value, _ in result_facts(result)}
    assert [value for _, value, _ in saved_facts({"value": 1.0})] == ["1 s", "-", "-", "-", "-"]


def strange(judgement: Any) -> float:
    """A number that no judgement has, nor any time derived from one."""
    return 731.25 + 0 * float(judgement.value)


@pytest.mark.parametrize(("name", "wing"), [*families()])
def test_values_of_an_objective_of_ones_own_have_no_unit_on_any_page(
    name: str, wing: Wing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they called seconds, tokens or accuracy; the judgement stays the judge's."""
    monkeypatch.setattr("placewright.requests.views._curves", lambda *_: ())  # which take long
    assert wing.conformance is not None, name
    for problem in wing.conformance().tiny_instances().values():
        with suppress(InfeasibleError):
            result = solve(problem, objective=strange, time_limit_s=0.2)
            break
    assert result.judgement.value == judge(problem, result.plan).value != result.value
    saved = views_of(problem).saved_page("plan", result.as_json(), result.save(tmp_path / "p.json"))
    page = result.report(tmp_path / "page.html").read_text()
    for written in (page, result._repr_html_(), saved):
        assert set(re.findall(r"731\.25[^<]{0,2}", written)) <= {"731.25", "731.2500"}
        assert "12 min" not in written
    assert "Predicted strange: <b>731.25</b>" in page


def test_sections_of_a_plan_file() -> None:
    """A document without a value, such as a cluster, has no facts."""
    first, others = saved_sections({"value": 2.0, "note": "as measured"})
    assert "as measured" in first
    assert "2 s" in first
    assert others == ""
    assert [*saved_sections({"devices": []})] == [""]


def test_columns_are_aligned() -> None:
    """Left by default, right where asked for, no trailing spaces."""
    assert plain_table(("a", "n"), [("xyz", "1"), ("", "22")], " r") == "a     n\nxyz   1\n     22"


def test_a_cluster_shows_devices_and_links() -> None:
    """Unlimited is a dash, an own channel is called so."""
    lines = repr(Cluster.preset("edge-duo")).splitlines()
    assert lines[0] == "cluster edge-duo: 2 devices on 2 nodes, 2 links"
    assert lines[-1].split() == ["board-b", "->", "board-a", "125", "MB/s", "200", "us", "own"]


def test_a_graph_shows_its_kinds() -> None:
    """The kinds that compute most come first."""
    operators = (Operator("a", "view"), Operator("b", "mm", flops=2e9, phase="forward"))
    text = repr(Graph("g", operators, (Tensor("a", "a", 1024, ("b",)),)))
    assert text.startswith(
        "graph g: 2 operators (1 forward), 1 tensor, 2 GFLOP, 0 B resident, 1 KiB"
    )
    assert text.splitlines()[2].split() == ["mm", "1", "2"]


def test_a_problem_shows_each_device_alone() -> None:
    """What doing everything on one device would take; a dash where it cannot."""
    problem = chain(3).replace(compute_s=[[1.0, 2.0], [1.0, np.inf], [1.0, 2.0]])
    lines = repr(problem).splitlines()
    assert "3 operators" in lines[0]
    assert lines[2].split()[:3] == ["dev0", "3", "s"]
    assert lines[3].split()[:2] == ["dev1", "-"]


def test_a_result_marks_the_chosen_plan() -> None:
    """One line per candidate; only the chosen one has a star."""
    lines = repr(result_of(chain())).splitlines()
    assert "gap 100 %" in lines[0]
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["heft"]
    assert lines[5].startswith("device  operators")
    assert len(lines) == 10  # devices with what they have, and what crosses both ways


def test_compare_is_sorted_and_the_same_in_colour() -> None:
    """Best first, those without a plan last; a terminal gets a rich table of as many rows."""
    result = result_of(chain())
    text = compare_table(result, terminal=False)
    order = [line[1:].split()[0] for line in text.splitlines()[2:4]]
    assert order == ["heft", "only:dev1"]
    assert text.splitlines()[4:6] == ["do not apply:", "   only:dev0 (does not run 'op1')"]
    title, table, where = compare_table(result, terminal=True).renderables
    assert where.plain == "\n".join(text.splitlines()[4:])
    assert "dev0 -> dev1" in where.plain
    assert title.plain == text.splitlines()[0]
    assert table.row_count == 2


def many() -> Result:
    """The result of 28 planners, ten of which do not take the problem."""
    result = result_of(chain())
    others = [Candidate(f"p{k}", result.value + 1 + k, Outcome.FITS, 0.1) for k in range(15)]
    unfit = [Candidate(f"u{k}", math.inf, Outcome.UNSUPPORTED, 0.0, "no") for k in range(10)]
    return replace(result, candidates=Candidates((*result.candidates, *others, *unfit)))


def test_of_many_candidates_the_first_are_shown() -> None:
    """The chosen one, the baselines and the five best; compare and the page have the others too."""
    result = many()
    lines = repr(result).splitlines()
    names = [line.lstrip("* ").split()[0] for line in lines[2:8]]
    assert names == ["heft", "p0", "p1", "p2", "p3", "only:dev1"]
    assert lines[8] == "   ... and 22 more: 11 fits, 11 unsupported; compare lists all"
    words = compare_table(result, terminal=False).replace(",", " ").split()
    assert {c.planner for c in result.candidates} <= set(words)
    page = views_of(result.problem).page(result)
    shown, _, rest = page.partition("<h2>Candidates</h2>")[2].partition("<details>")
    assert ">p3<" in shown
    assert ">only:dev1<" in shown
    assert ">p4<" not in shown
    assert ">p4<" in rest
    assert rest.startswith("<summary>22 more, 11 of them fit")


def test_what_was_measured_in_trials_is_beside_what_was_predicted() -> None:
    """In tables, on the page, in the file and on its page, with the reason."""
    result = many()
    assert "measured" not in repr(result).splitlines()[1]
    rows = [TriedPlan("heft", 7.5, 9.0, False), TriedPlan("p9", 16.0, 8.0, True)]
    tried = replace(result, planner="p9").after_trials(rows)
    page = views_of(result.problem).page(tried)
    data = tried.as_json()
    saved = views_of(result.problem).saved_page("plan", data, Path("plan.json"))
    texts = [repr(tried), compare_table(tried, terminal=False), page, saved]
    for words in ("measured", "9 s", "8 s", "p9 is taken: the fastest"):
        assert all(words in shown for shown in texts)
    assert compare_table(tried, terminal=True).renderables[1].columns[3].header == "measured"
    took = {c["planner"]: c["measured_s"] for c in data["candidates"]}
    assert (took["heft"], took["p9"], took["p0"]) == (9.0, 8.0, None)
    kept = replace(result).after_trials(
        [replace(rows[1], taken=False), replace(rows[0], taken=True)]
    )
    assert kept.note.endswith("heft is taken: predicted to be the best; no other is surely faster")


def test_a_plan_that_does_not_fit_has_no_gap() -> None:
    """The bound is of plans that fit: it says nothing about others, which may be far below it."""
    for outcome, gap in ((Outcome.FITS, "100 %"), (Outcome.DOES_NOT_FIT, "-")):
        assert candidate_cells(Candidate("one", 4.0, outcome, 0.1), 2.0)[2] == gap


def test_every_view_says_why_the_chosen_plan_is_not_the_best() -> None:
    """The sentence is in the table, in the comparison, on the page and on that of the file."""
    note = "deployable is simpler, at 0.25 % more than search"
    result = replace(result_of(chain()), note=note)
    table = compare_table(result, terminal=True).renderables
    assert note in repr(result)
    assert note in compare_table(result, terminal=False)
    assert note in table[-1].plain
    page = views_of(result.problem).page(result)
    saved = views_of(result.problem).saved_page("plan", result.as_json(), Path("plan.json"))
    assert all(f"{note[1:]}." in shown for shown in (page, saved))


def test_a_run_is_set_against_the_best_single_device() -> None:
    """Predicted, measured, error and the speed-up that was measured, with its interval."""
    result = result_of(chain())
    taken = beside(result, 1.0, 1.0, 1.0)
    text = run_table(result, taken)
    assert "-9.1 %" in text
    assert "no difference beyond noise from dev1" in text
    assert "1.00 times as fast (95 % interval" in text
    faster, slower = beside(result, 1.5, 1.51, 1.49), beside(result, 0.8, 0.81, 0.79)
    assert "measured: 1.50 times as fast as dev1, the best" in run_table(result, faster)
    assert "measured: slower, 0.80 times as fast as dev1" in run_table(result, slower)
    assert "; predicted 1.00)" in run_table(result, slower)
    itself = replace(taken, baseline=Baseline("dev1"))
    assert "splitting is predicted not to pay" in run_table(result, itself)
    assert "no single device fits" in run_table(result, measured(result))


def test_a_busy_machine_is_reported() -> None:
    """Only where others took what the run needed."""
    result = result_of(chain())
    calm = MachineLoad("here", cpus=4, cores=2, other_cpus=1.0, peak_cpus=1.5)
    busy = replace(calm, other_cpus=1.9)
    assert "warning" not in repr(replace(measured(result), machine=calm))
    assert "warning: other processes kept 1.9 of 4 CPUs of here busy" in repr(
        replace(measured(result), machine=busy)
    )


def test_short_numbers() -> None:
    """No value is a dash, long texts end in dots."""
    assert [percent(v) for v in (0.034, 12.3, math.inf)] == ["3.4 %", "1230 %", "-"]
    assert shorten("a\n b " * 40).endswith("...")
