"""The pages of plans and files of wing 3: map of moves, nodes before and after, timeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placewright.io.boundary import validate
from placewright.measurement.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import (
    Data,
    Fact,
    bound_sentence,
    preformatted,
    result_facts,
    result_page,
    saved_plan_page,
    text_page,
)
from placewright.report.gantt import gantt
from placewright.report.page import facts, heading, html_fragment, scroll, section, text
from placewright.report.text import percent, plain_table, seconds, size
from placewright.samples.files import read_problem
from placewright.samples.formats.schema import SamplePlanFile
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import nothing
from placewright.samples.views.charts import node_bars, sample_map

MOST_TRACKS = 40
"""Nodes up to which a timeline can be read."""


def page(
    result: Result,
    measurement: Measurement | None = None,
    graph: Any = None,
    run: Any = None,
) -> str:
    """The page of a plan; runs have pages of their own in `placewright.samples.views.run_pages`."""
    return result_page(result, _body(result), more=_options(result))


def fragment(result: Result) -> str:
    """What a notebook shows."""
    return html_fragment(*_body(result))


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a file of nodes or of moves.

    Raises `InputError`: a field that is missing or wrong.
    """
    if kind == "samples":
        problem = read_problem(path)
        return text_page(problem.name, "nodes", path, repr(problem))
    plan = validate(SamplePlanFile, data, where=str(path)).plan
    rows = [(m.source, m.target, m.sample_class or "", str(m.samples)) for m in plan.moves]
    rows.sort(key=lambda row: -int(row[-1]))
    subtitle = f"{sum(m.samples for m in plan.moves)} samples move, the most first."
    table = plain_table(("from", "to", "class", "samples"), rows, "   r")
    return saved_plan_page(data, path, "samples plan", [preformatted("Moves", subtitle, table)])


def moves_sections(judged: SampleJudgement, still: SampleJudgement) -> str:
    """The map of moves, and every node before and after."""
    moves = "Wide arrows carry many samples; the area of a node is its samples after the move."
    bars = "Upper bar: without moving. Lower bar: moving (grey), then training; as predicted."
    return section("Map of flows", moves, scroll(sample_map(judged))) + section(
        "Nodes before and after", bars, scroll(node_bars(judged, still))
    )


def _body(result: Result) -> Iterator[str]:
    still = judge(result.problem, nothing())
    yield heading(result.problem.name, "samples plan", _verdict(result, still))
    yield facts(_facts(result))
    yield moves_sections(result.judgement, still)
    if result.problem.n <= MOST_TRACKS:
        subtitle = "Transfers one after another, as at ports that serve one at a time."
        chart = gantt(result.judgement.trace(), title="predicted timeline")
        yield section("Timeline", subtitle, scroll(chart))


def _verdict(result: Result, still: SampleJudgement) -> str:
    first = f"<b>{text(seconds(result.value))}</b> of training"
    if still.feasible and result.value > 0:
        times = still.value / result.value
        first += f", <b>{times:.2f}&times;</b> as fast as not moving ({text(seconds(still.value))})"
    return f"{first}. {bound_sentence(result)}"


def _facts(result: Result) -> Iterator[Fact]:
    problem, moved = result.problem, int(result.plan.count.sum())
    *first, _ = result_facts(result)
    yield from first
    yield "samples moved", f"{moved} ({percent(moved / int(problem.held.sum()))})", ""
    yield "bytes moved", size(moved * problem.sample_bytes), ""
    yield "if transfers wait", seconds(result.judgement.queued_value()), ""


def _options(result: Result) -> dict[str, str]:
    problem = result.problem
    return {
        "nodes, samples, epochs": f"{problem.n}, {int(problem.held.sum())}, {problem.epochs}",
        "overlap, duplex, batches": f"{problem.overlap}, {problem.duplex}, {problem.batches}",
        "gradient exchange per epoch": seconds(problem.sync_s),
    }
