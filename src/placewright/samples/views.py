"""The pages of plans and files of wing 3: map of moves, nodes before and after, timeline.

Their drawings, and those of runs: the map of moves, bars of the nodes, loss against time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import check_known
from placewright.io.boundary import validate
from placewright.measurement import Measurement
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
    value_sentence,
)
from placewright.planning.wing import PartExplanation
from placewright.report.gantt import timeline
from placewright.report.page import (
    Line,
    device_class,
    drawing,
    facts,
    heading,
    html_fragment,
    label,
    line_chart,
    scroll,
    section,
    tag,
    text,
    ticks,
)
from placewright.report.text import percent, plain_table, seconds, size
from placewright.samples.files import read_problem
from placewright.samples.judge import SampleJudgement, judge, waits_for_all
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import Overlap, SampleProblem
from placewright.samples.schema import SamplePlanFile

if TYPE_CHECKING:
    from placewright.samples.adaptive import AdaptiveEpoch
    from placewright.samples.run import SampleRun

if TYPE_CHECKING:
    from placewright.samples.training.node_training import Epoch


WIDTH, MAP_HEIGHT, RADIUS = 1120.0, 560.0, 220.0
MOST_ARROWS, MOST_NAMES = 150, 48
WIDEST = 12.0
LARGEST_NODE = 17.0


def sample_map(judgement: SampleJudgement) -> str:
    """The map as SVG; of many flows the largest, with a note on how many are left out."""
    plan, n = judgement.plan, judgement.problem.n
    place = [_place(i, n) for i in range(n)]
    order = np.argsort(-plan.count, kind="stable")[:MOST_ARROWS].tolist()
    top = float(plan.count.max(initial=1))
    arrows = [_arrow(judgement, m, place, top) for m in reversed(order)]
    nodes = [_map_node(judgement, i, place[i]) for i in range(n)]
    left_out = len(plan.count) - len(order)
    note = label(12.0, MAP_HEIGHT - 10, f"and {left_out} smaller moves", "tick") if left_out else ""
    return drawing(WIDTH, MAP_HEIGHT, *arrows, *nodes, note, title="map of flows")


def _place(i: int, n: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / n - math.pi / 2
    return WIDTH / 2 + 1.9 * RADIUS * math.cos(angle), MAP_HEIGHT / 2 + RADIUS * math.sin(angle)


def _arrow(judgement: SampleJudgement, m: int, place: list[tuple[float, float]], top: float) -> str:
    """A bow towards the middle that gets wider with the samples, and a dot where it ends."""
    plan, names = judgement.plan, judgement.problem.node_names
    i, j, count = int(plan.source[m]), int(plan.target[m]), int(plan.count[m])
    (x0, y0), (x1, y1) = place[i], place[j]
    mx, my = (x0 + x1) / 4 + WIDTH / 4, (y0 + y1) / 4 + MAP_HEIGHT / 4
    width = 0.6 + (WIDEST - 0.6) * math.sqrt(count / top)
    path = f"M{x0:.1f} {y0:.1f}Q{mx:.1f} {my:.1f} {x1:.1f} {y1:.1f}"
    style = f"fill:none;stroke:var(--c);stroke-width:{width:.1f};stroke-opacity:.45"
    tip = f"{names[i]} to {names[j]}\n{count} samples"
    return tag("path", d=path, style=style, class_=device_class(i), data_device=i, data_tip=tip)


def _map_node(judgement: SampleJudgement, i: int, at: tuple[float, float]) -> str:
    problem, (x, y) = judgement.problem, at
    held, before = int(judgement.held[i].sum()), int(problem.held[i])
    share = held / max(int(judgement.held.sum(axis=1).max()), 1)
    name = problem.node_names[i]
    radius = 2.5 + (LARGEST_NODE - 2.5) * math.sqrt(share)
    left = x < WIDTH / 2
    beside = x + (-radius - 5 if left else radius + 5)
    parts = [
        tag(
            "circle",
            cx=x,
            cy=y,
            r=radius,
            class_="node",
            data_tip=f"{name}\n{before} samples before, {held} after",
        )
    ]
    if problem.n <= MOST_NAMES:
        sign = held - before
        parts.append(label(beside, y + 4, f"{name} {sign:+d}", "tick", "end" if left else "start"))
    return tag("g", *parts, class_=device_class(i), data_device=i)


BARS_LEFT, BARS_RIGHT = 132.0, 150.0
BAR, GAP = 9.0, 7.0
MOST_BARS = 60


def node_bars(judgement: SampleJudgement, still: SampleJudgement) -> str:
    """The bars as SVG; of many nodes those that end last in either case."""
    top = max(float(judgement.end_s.max()), float(still.end_s.max())) or 1.0
    last = np.argsort(-np.maximum(judgement.end_s, still.end_s), kind="stable")
    drawn = sorted(last[:MOST_BARS].tolist())
    parts, y = [], 4.0
    for i in drawn:
        parts.append(_node_bars(judgement, still, i, y, top))
        y += 2 * BAR + GAP
    lines = [
        tag("line", x1=_x(t, top), x2=_x(t, top), y1=2.0, y2=y, class_="grid")
        + label(_x(t, top), y + 14, seconds(t), "tick", "middle")
        for t in ticks(top, 8)
    ]
    end = _x(float(judgement.end_s.max()), top)
    mark = tag("line", x1=end, x2=end, y1=2.0, y2=y, class_="end")
    left_out = judgement.problem.n - len(drawn)
    note = (
        label(BARS_LEFT - 10, y + 14, f"and {left_out} earlier", "tick", "end") if left_out else ""
    )
    return drawing(WIDTH, y + 22, *lines, *parts, mark, note, title="nodes before and after")


def _node_bars(j: SampleJudgement, still: SampleJudgement, i: int, y: float, top: float) -> str:
    name, before, after = j.problem.node_names[i], int(j.problem.held[i]), int(j.held[i].sum())
    hidden = j.problem.overlap is Overlap.HIDDEN
    moved = float(j.moved_s.max() if waits_for_all(j.problem) else j.moved_s[i])
    began = 0.0 if hidden else moved
    tip = f"{name}\nwithout moving {seconds(float(still.end_s[i]))}"
    tip += f"\nmoving {seconds(moved)}, training {seconds(float(j.trained_s[i]))}"
    bars = [
        _bar(0.0, float(still.end_s[i]), y, top, "span", ".35"),
        tag("g", _bar(0.0, moved, y + BAR, top, "span", None), class_="link"),
        _bar(began, began + float(j.trained_s[i]), y + BAR, top, "span", ".6" if hidden else None),
    ]
    return tag(
        "g",
        label(
            BARS_LEFT - 10, y + BAR + 4, name if len(name) <= 18 else name[:17] + "…", "name", "end"
        ),
        tag("g", *bars, data_tip=tip),
        label(WIDTH - BARS_RIGHT + 10, y + BAR + 4, f"{before} to {after} samples", "busy"),
        class_=device_class(i),
        data_device=i,
    )


def _bar(start: float, end: float, y: float, top: float, class_: str, opacity: str | None) -> str:
    x, width = _x(start, top), max(_x(end, top) - _x(start, top), 0.4)
    return tag(
        "rect", x=x, y=y, width=width, height=BAR - 1, class_=class_, opacity=opacity, rx=1.5
    )


def _x(time_s: float, top: float) -> float:
    return BARS_LEFT + time_s / top * (WIDTH - BARS_LEFT - BARS_RIGHT)


@dataclass(frozen=True, slots=True)
class Curve:
    """When each epoch ended, moving included, and how good the parameters were then.

    `first`: number of the first one.
    """

    name: str
    ends_s: tuple[float, ...]
    epochs: tuple[Epoch, ...]
    first: int = 1


def loss_curves(curves: Sequence[Curve], aim: float | None = None) -> str:
    """The curves as SVG; with a line at the loss that is aimed at."""
    return line_chart(
        [_line(curve) for curve in curves],
        "time",
        "test loss",
        from_zero=True,
        across_text=seconds,
        aim=None if aim is None else (aim, f"to reach: {aim:.3f}"),
    )


def _line(curve: Curve) -> Line:
    ends = list(zip(curve.ends_s, curve.epochs, strict=True))
    tips = [
        f"{curve.name}, epoch {k}, after {seconds(end_s)}\n"
        f"test loss {epoch.test_loss:.3f}, loss {epoch.loss:.3f}, "
        f"accuracy {percent(epoch.accuracy)}"
        for k, (end_s, epoch) in enumerate(ends, curve.first)
    ]
    return Line(curve.name, [(end_s, epoch.test_loss) for end_s, epoch in ends], tips)


MOST_TRACKS = 40
"""Nodes up to which a timeline can be read."""


def page(
    result: Result,
    measurement: Measurement | None = None,
    graph: Any = None,
    run: Any = None,
) -> str:
    """The page of a plan; runs have pages of their own in `placewright.samples.run_pages`."""
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


def parts(data: Data) -> dict[str, str]:
    """Samples of every move in a saved plan, and of every node after it."""
    found: dict[str, int] = {}
    for move in data["plan"]["moves"]:
        way = " ".join(filter(None, (f"{move['from']} to {move['to']}", move.get("class"))))
        found[way] = found.get(way, 0) + move["samples"]
    held = {
        f"{node['name']} holds": node["samples_after"] for node in data["plan"].get("nodes", ())
    }
    return {name: f"{count} samples" for name, count in (found | held).items()}


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
        chart = timeline(result.judgement.trace(), title="predicted timeline")
        yield section("Timeline", subtitle, chart)


def _verdict(result: Result, still: SampleJudgement) -> str:
    if result.own_objective:
        return value_sentence(result)
    first = f"<b>{text(seconds(result.value))}</b> of training"
    if still.feasible and result.value > 0:
        times = still.value / result.value
        first += f", <b>{times:.2f}&times;</b> as fast as not moving ({text(seconds(still.value))})"
    return f"{first}. {bound_sentence(result)}"


def _facts(result: Result) -> Iterator[Fact]:
    problem, moved = result.problem, int(result.plan.count.sum())
    yield from result_facts(result)
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


ENGINE = "torch.distributed gloo, one process per node"
MOST_ROWS = 20


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """What a plan gains over not moving, its largest moves, and the nodes before and after."""
    parts = filter(None, (_gain(result), _moves(result), _nodes(result)))
    return "\n" + "\n\n".join(parts)


def _gain(result: Result) -> str:
    judged, problem = result.judgement, result.problem
    still = judge(problem, nothing())
    count = int(result.plan.count.sum())
    compared = _compared(still.value, judged.value) if still.feasible else "nothing could stay"
    share = percent(count / int(problem.held.sum()))
    return (
        f"{compared}; {count} samples move ({share}, {size(count * problem.sample_bytes)}); "
        f"{seconds(judged.queued_value())} if transfers wait for each other"
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


def runs_json(runs: Sequence[SampleRun]) -> dict[str, Any]:
    """All runs as data; the loss to reach is the one that the plan and not moving both reach."""
    loss = loss_to_reach(runs)
    return {
        "engine": ENGINE,
        "emulated": emulated(real=runs[0].real),
        "speed": runs[0].speed,
        "loss_to_reach": loss,
        "runs": [run.as_json(loss) for run in runs],
    }


def runs_table(runs: Sequence[SampleRun]) -> str:
    """One line each, the plan first."""
    loss = loss_to_reach(runs)
    rows = [_run_row(run, loss) for run in runs]
    header = (
        "",
        "predicted",
        "measured",
        "error",
        "moving",
        "to same loss",
        "best loss",
        "accuracy",
    )
    lines = [
        f"{ENGINE}; emulated: {emulated(real=runs[0].real)}",
        plain_table(header, rows, " rrrrrrr"),
    ]
    return "\n".join(lines + beside_others(runs, loss))


def beside_others(runs: Sequence[SampleRun], loss: float) -> list[str]:
    """How much faster the plan has reached the loss than every alternative that was run."""
    reached = runs[0].seconds_to(loss)
    others = {run.name: run.seconds_to(loss) for run in runs[1:]}
    if reached is None or not others:
        return []
    words = [
        f"{other / reached:.2f} times as fast as {name}" + " (which is faster)" * (other < reached)
        for name, other in others.items()
        if other is not None
    ]
    never = ", ".join(name for name, other in others.items() if other is None)
    if not words:
        return [f"{never} did not reach the loss of the plan"]
    words += [f"{never} did not reach it"] if never else []
    return [f"to the same loss the plan is {'; '.join(words)}"]


def loss_to_reach(runs: Sequence[SampleRun]) -> float:
    """The loss on the test samples that the plan and not moving both reach; baselines may not."""
    ours = [run for run in (runs[0], *runs) if run.name == "none" or run is runs[0]]
    return max(run.best_loss for run in ours)


def _run_row(run: SampleRun, loss: float) -> tuple[str, ...]:
    predicted, reached = run.predicted_s, run.seconds_to(loss)
    last = run.trained.epochs[-1]
    return (
        run.name,
        "-" if predicted is None else seconds(predicted),
        seconds(run.measured_s),
        "-" if predicted is None else percent(predicted / run.measured_s - 1),
        seconds(run.move_s),
        "-" if reached is None else seconds(reached),
        f"{run.best_loss:.3f}",
        percent(last.accuracy),
    )


def epochs_json(steps: Sequence[AdaptiveEpoch], *, real: bool) -> dict[str, Any]:
    """Every epoch as data."""
    return {
        "engine": ENGINE,
        "emulated": emulated(real=real),
        "measured_s": total_s(steps),
        "epochs": [
            {
                "epoch": step.number,
                "measured_s": step.epoch.seconds,
                "planned": step.planned,
                "unplanned": step.unplanned,
                "moved_samples": step.moved,
                "move_s": step.move_s,
                "left": list(step.left),
                "held": dict(step.held),
                "lost_samples": step.lost,
                "loss": step.epoch.loss,
                "test_loss": step.epoch.test_loss,
                "accuracy": step.epoch.accuracy,
            }
            for step in steps
        ],
    }


def epochs_table(steps: Sequence[AdaptiveEpoch], *, real: bool) -> str:
    """One line each, and the sum."""
    header = (
        "epoch",
        "measured",
        "moved before",
        "moving",
        "left",
        "lost",
        "test loss",
        "accuracy",
    )
    rows = [
        (
            str(step.number),
            seconds(step.epoch.seconds),
            _moved_before(step),
            seconds(step.move_s) if step.moved else "",
            ", ".join(step.left),
            f"{step.lost} samples" if step.lost else "",
            f"{step.epoch.test_loss:.3f}",
            percent(step.epoch.accuracy),
        )
        for step in steps
    ]
    lines = [
        f"{ENGINE}; emulated: {emulated(real=real)}",
        plain_table(header, rows, "rrrrlrrr"),
        f"{seconds(total_s(steps))} in all; starting processes is not counted",
    ]
    return "\n".join(lines)


def _moved_before(step: AdaptiveEpoch) -> str:
    if step.unplanned:
        return "no plan"
    return f"{step.moved} samples" if step.planned else ""


def total_s(steps: Sequence[AdaptiveEpoch]) -> float:
    """Moving and training of all epochs."""
    return sum(step.epoch.seconds + step.move_s for step in steps)


def emulated(*, real: bool) -> str:
    """Which parts of a run were emulated."""
    from placewright.samples.run import EMULATED, REAL

    return REAL if real else EMULATED


PART = 20
"""A neighbouring plan moves this part of a node's samples more."""

MOST_CHANGES = 12


def explain(problem: SampleProblem, plan: SamplePlan, name: str) -> PartExplanation:
    """Explain the node called `name`.

    Raises `UnknownNameError`: no node is called so; offers the nearest.
    """
    check_known("node", name, problem.node_names, where=problem.name)
    i, found = problem.node_names.index(name), judge(problem, plan)
    priced = []
    for what, other in _changes(problem, plan, i):
        changed = judge(problem, other)
        text = seconds(changed.value) + (f", {changed.violation}" if changed.violation else "")
        priced.append((not changed.feasible, changed.value, what, text))
    changes = {what: text for _, _, what, text in sorted(priced)[:MOST_CHANGES]}
    return PartExplanation(name, _node_facts(found, i), changes, problem.objective)


def _node_facts(found: SampleJudgement, i: int) -> dict[str, str]:
    p, plan = found.problem, found.plan
    facts = {"samples": f"{p.held[i]} before, {found.held[i].sum()} after"}
    for word, ours, others in (
        ("sends", plan.source, plan.target),
        ("receives", plan.target, plan.source),
    ):
        mine = np.flatnonzero(ours == i)
        if len(mine):
            peers = ", ".join(dict.fromkeys(p.node_names[j] for j in others[mine][:8]))
            side = "to" if word == "sends" else "from"
            time_s = found.out_s[i] if word == "sends" else found.in_s[i]
            text = f"{plan.count[mine].sum()} {side} {peers}, {seconds(float(time_s))}"
            facts[word] = text + (", ..." if len(mine) > 8 else "")
    facts |= {
        "transfers end at": seconds(float(found.moved_s[i])),
        "trains for": seconds(float(found.trained_s[i])),
        "ends at": seconds(float(found.end_s[i])),
        "limits": "; ".join(_binding(found, i)),
    }
    return facts


def _binding(found: SampleJudgement, i: int) -> Iterator[str]:
    """What keeps the node, or the plan because of it, from being better."""
    p, last = found.problem, int(found.end_s.argmax())
    early_s = float(found.end_s[last] - found.end_s[i])
    if early_s > 0:
        yield f"{p.node_names[last]} ends last, {seconds(early_s)} later"
    else:
        yield "no node ends later"
    if found.held[i].sum() >= p.storage[i]:
        yield "its storage is full"
    if p.keep[i].any() and (found.held[i] <= p.keep[i]).all():
        yield "it has only what it must keep"


def _changes(p: SampleProblem, plan: SamplePlan, i: int) -> Iterator[tuple[str, SamplePlan]]:
    """Plans without one of the node's moves, and with some more samples to another node."""
    columns = (plan.source, plan.target, plan.count, plan.sample_class)
    for m in np.flatnonzero((plan.source == i) | (plan.target == i)).tolist():
        a, b, kind = plan.source[m], plan.target[m], plan.sample_class[m]
        what = f"without {plan.count[m]} from {p.node_names[a]} to {p.node_names[b]}"
        rest = (np.delete(column, m) for column in columns)
        yield what + (f" of class {p.class_names[kind]}" if p.k > 1 else ""), SamplePlan(*rest)
    kind = int(p.samples[i].argmax())
    more = max(1, int(p.held[i]) // PART)
    for j in np.flatnonzero(np.isfinite(p.send_s[i] + p.receive_s[i])).tolist():
        added = (np.append(c, x) for c, x in zip(columns, (i, j, more, kind), strict=True))
        yield f"{more} more to {p.node_names[j]}", SamplePlan(*added)
