"""Why a node keeps, sends or receives samples: its times, what binds, and neighbouring plans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewright.errors import UnknownNameError
from placewright.planning.wing import PartExplanation
from placewright.report.text import seconds
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem

PART = 20
"""A neighbouring plan moves this part of a node's samples more."""

MOST_CHANGES = 12


def explain(problem: SampleProblem, plan: SamplePlan, name: str) -> PartExplanation:
    """Explain the node called `name`.

    Raises `UnknownNameError`: no node is called so; offers the nearest.
    """
    if name not in problem.node_names:
        raise UnknownNameError("node", name, problem.node_names, where=problem.name)
    i, found = problem.node_names.index(name), judge(problem, plan)
    priced = []
    for what, other in _changes(problem, plan, i):
        changed = judge(problem, other)
        text = seconds(changed.value) + (f", {changed.violation}" if changed.violation else "")
        priced.append((not changed.feasible, changed.value, what, text))
    changes = {what: text for _, _, what, text in sorted(priced)[:MOST_CHANGES]}
    return PartExplanation(name, _facts(found, i), changes, problem.objective)


def _facts(found: SampleJudgement, i: int) -> dict[str, str]:
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
