"""A plan of wing 3 as text: how fast, who moves what, every node before and after."""

from __future__ import annotations

from placewright.planning.result import Result
from placewright.report.text import percent, plain_table, result_table, seconds, size
from placewright.samples.judge import judge
from placewright.samples.plan import nothing

MOST_ROWS = 20


def moves_table(result: Result) -> str:
    """The result, what it gains over not moving, its largest moves, and the nodes."""
    parts = [result_table(result), _gain(result), _moves(result), _nodes(result)]
    return "\n\n".join(part for part in parts if part)


def _gain(result: Result) -> str:
    judged, problem = result.judgement, result.problem
    still = judge(problem, nothing())
    count = int(result.plan.count.sum())
    compared = _compared(still.value, result.value) if still.feasible else "nothing could stay"
    share = percent(count / int(problem.held.sum()))
    return (
        f"{compared}; {count} samples move ({share}, {size(count * problem.sample_bytes)}); "
        f"{seconds(judged.played_value())} if transfers wait for each other"
    )


def _compared(still_s: float, value_s: float) -> str:
    """What moving gains; where nothing takes any time there is no ratio."""
    if value_s > 0:
        return f"{still_s / value_s:.2f} times as fast as not moving ({seconds(still_s)})"
    return f"no time at all; not moving takes {seconds(still_s)}"


def _moves(result: Result) -> str:
    plan, names = result.plan, result.problem.node_names
    order = sorted(range(len(plan.count)), key=lambda m: -int(plan.count[m]))
    rows = [
        (names[plan.source[m]], names[plan.target[m]], str(int(plan.count[m])))
        for m in order[:MOST_ROWS]
    ]
    more = f"\n... and {len(order) - MOST_ROWS} smaller moves" if len(order) > MOST_ROWS else ""
    return plain_table(("from", "to", "samples"), rows, "  r") + more if rows else ""


def _nodes(result: Result) -> str:
    judged, p = result.judgement, result.problem
    rows = [
        (
            p.node_names[i],
            str(int(p.held[i])),
            str(int(judged.held[i].sum())),
            seconds(float(judged.moved_s[i])),
            seconds(float(judged.trained_s[i])),
            seconds(float(judged.end_s[i])),
        )
        for i in range(min(p.n, MOST_ROWS))
    ]
    more = f"\n... and {p.n - MOST_ROWS} more nodes" if p.n > MOST_ROWS else ""
    header = ("node", "before", "after", "moves for", "trains for", "ends at")
    return plain_table(header, rows, " rrrrr") + more
