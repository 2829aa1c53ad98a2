"""A plan of wing 3 as a page: map of flows, every node before and after, timeline, candidates."""

from __future__ import annotations

from collections.abc import Iterator

from placewright.planning.result import Result
from placewright.report.candidates import Contest
from placewright.report.gantt import gantt
from placewright.report.node_bars import node_bars
from placewright.report.sample_map import sample_map
from placewright.report.sheet import definitions, facts, fragment, heading, section, sheet
from placewright.report.svg import tag, text
from placewright.report.text import percent, seconds, size
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import nothing

MOST_TRACKS = 40
"""Nodes up to which a timeline can be read."""


def samples_page(result: Result) -> str:
    """The page as text."""
    body = [*_body(result), _candidates(result), _provenance(result)]
    return sheet(f"{result.problem.name}: {seconds(result.value)}", *body)


def samples_fragment(result: Result) -> str:
    """What a notebook shows."""
    return fragment(*_body(result))


def _body(result: Result) -> Iterator[str]:
    still = judge(result.problem, nothing())
    yield heading(result.problem.name, "samples plan", _verdict(result, still))
    yield facts(_facts(result))
    told = "Wide arrows carry many samples. Nodes that give are above the balance, those that take"
    told += " below; the area of a node is what it holds after the move."
    yield section("Map of flows", told, tag("div", sample_map(result.judgement), class_="scroll"))
    told = "Upper bar: if nothing moved. Lower bar: moving (grey), then training."
    bars = node_bars(result.judgement, still)
    yield section("Nodes before and after", told, tag("div", bars, class_="scroll"))
    if result.problem.n <= MOST_TRACKS:
        told = "Transfers played one after another, as ports do that wait for each other."
        chart = gantt(result.judgement.trace(), title="predicted timeline")
        yield section("Timeline", told, tag("div", chart, class_="scroll"))


def _verdict(result: Result, still: SampleJudgement) -> str:
    first = f"<b>{text(seconds(result.value))}</b> of training"
    if still.feasible and result.value > 0:
        times = still.value / result.value
        first += f", <b>{times:.2f}&times;</b> as fast as not moving ({text(seconds(still.value))})"
    if result.gap <= 1e-6:
        return f"{first}. This is proved to be the best possible."
    return f"{first}. No plan can be faster than {text(seconds(result.lower_bound))}."


def _facts(result: Result) -> Iterator[tuple[str, str, str]]:
    problem, moved = result.problem, int(result.plan.count.sum())
    yield "predicted", seconds(result.value), "lead"
    yield "lower bound", seconds(result.lower_bound), ""
    yield "gap", percent(result.gap), ""
    yield "status", str(result.status), "good" if result.status == "OPTIMAL" else ""
    yield "planner", result.planner, ""
    yield "samples moved", f"{moved} ({percent(moved / int(problem.held.sum()))})", ""
    yield "bytes moved", size(moved * problem.sample_bytes), ""
    yield "if transfers wait", seconds(result.judgement.played_value()), ""


def _candidates(result: Result) -> str:
    if len(result.candidates) < 2:
        return ""
    told = "Every plan that was tried, as the same judge saw it. The line is the lower bound."
    contest = Contest(result.candidates, result.planner, result.value, result.lower_bound)
    return section("Candidates", told, contest.table())


def _provenance(result: Result) -> str:
    origin, problem = result.provenance, result.problem
    entries = {
        "problem": problem.name,
        "problem hash": origin.problem_hash,
        "nodes, samples, epochs": f"{problem.n}, {int(problem.held.sum())}, {problem.epochs}",
        "overlap, duplex, batches": f"{problem.overlap}, {problem.duplex}, {problem.batches}",
        "gradient exchange per epoch": seconds(problem.sync_s),
        "seed": str(origin.seed),
        "placewright": origin.placewright,
        "python": origin.python,
        **{f"bound: {name}": seconds(value) for name, value in result.bound_names.items()},
    }
    return section(
        "Provenance", "What is needed to get the same answer again.", definitions(entries)
    )
