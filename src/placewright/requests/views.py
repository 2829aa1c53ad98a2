"""Table and page of wing 4: success and accuracy over load, the price knob, servers, regret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import MissingDependencyError, UnknownNameError
from placewright.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import (
    bound_sentence,
    plain_saved_page,
    result_facts,
    result_page,
    value_sentence,
)
from placewright.report.gantt import timeline
from placewright.report.page import (
    Line,
    facts,
    heading,
    html_fragment,
    line_chart,
    scroll,
    section,
    text,
)
from placewright.report.text import amount, plain_table, seconds
from placewright.report.trace import Trace
from placewright.requests.bounds import fluid
from placewright.requests.capacity import at_load
from placewright.requests.judge import RequestJudgement, judge
from placewright.requests.plan import RequestPlan
from placewright.requests.problem import SHOWN, RequestProblem, first_requests
from placewright.requests.replay import candidates, compared, plan_text

LOADS = (0.5, 0.8, 1.0, 1.25, 1.5)
PRICES = (0.1, 0.3, 1.0, 3.0, 10.0)
SHOWN_REQUESTS = 4000
"""Requests on which the curves of a page are drawn: the first ones of the stream."""

SHOWN_S = 2.0
"""Seconds of the timeline."""


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """Success, accuracy, latency and use of each server."""
    judged: RequestJudgement = result.judgement
    lines = [f"{name}: {amount(v, unit)}" for name, (v, unit) in judged.metrics.items()]
    names, busy = result.problem.service.server_names, judged.busy_s
    counts = np.bincount(judged.answers.server[judged.answers.server >= 0], minlength=len(names))
    shown = min(SHOWN, len(names))
    rows = [(names[i], f"{counts[i]}", f"{busy[i]:.2f} s") for i in range(shown)]
    more = f"\n... and {len(names) - shown} more servers" if len(names) > shown else ""
    return "\n".join(lines) + "\n" + plain_table(("server", "answers", "busy"), rows, " rr") + more


def page(
    result: Result, measurement: Measurement | None = None, graph: Any = None, run: Any = None
) -> str:
    """The self-contained page of a result."""
    parts = [*_body(result), *_curves(result.problem, result.plan)]
    return result_page(result, parts, headline=f"{result.objective} {result.value:.4f}")


def fragment(result: Result) -> str:
    """What a notebook shows: value, bound, timeline."""
    return html_fragment(*_body(result))


def saved_page(kind: str, data: dict[str, Any], path: Path) -> str:
    """The page of a problem or a plan file."""
    return plain_saved_page(kind, data, path, title="Policy", most=20_000)


def _body(result: Result) -> Iterator[str]:
    judged: RequestJudgement = result.judgement
    verdict = (
        f"The policy {text(result.planner)} answers <b>{judged.success_rate:.2%}</b> of the "
        f"requests in time and reaches an effective accuracy of <b>{judged.value:.4f}</b>. "
        f"{value_sentence(result) if result.own_objective else bound_sentence(result)}"
    )
    yield heading(result.problem.name, "requests on servers and variants", verdict)
    yield facts([*result_facts(result), *_facts(judged)])
    trace = _first_seconds(judged.trace())
    subtitle = f"The first {SHOWN_S:g} s; each bar is a batch of one variant."
    yield section("Servers", subtitle, timeline(trace, title="simulated batches"))
    yield section(
        "Regret to the bound",
        "Effective accuracy by tenths of the stream, and what each request could get alone.",
        _chart(regret(result.problem, judged), "share of the stream", "effective accuracy"),
    )


def _facts(judged: RequestJudgement) -> Iterator[tuple[str, str, str]]:
    for name, (value, unit) in judged.metrics.items():
        yield name, amount(value, unit), ""


def regret(problem: RequestProblem, judged: RequestJudgement) -> list[Line]:
    """What was earned in each tenth of the stream, beside the bound of each request alone."""
    from placewright.requests.bounds import alone_each

    best, parts = alone_each(problem), np.array_split(np.arange(len(problem.stream)), 10)
    parts = [part for part in parts if len(part)]
    at = [(k + 0.5) / len(parts) for k in range(len(parts))]
    reached = [float(judged.earned[part].mean()) for part in parts]
    could = [float(best[part].mean()) for part in parts]
    return [
        Line("reached", list(zip(at, reached, strict=True))),
        Line("alone on an idle server", list(zip(at, could, strict=True))),
    ]


def _curves(problem: RequestProblem, plan: RequestPlan) -> Iterator[str]:
    """Simulated on the first requests of the stream."""
    short = _short(problem)
    success, effective, bound = [], [], []
    for factor in LOADS:
        tried = at_load(short, factor)
        judged = judge(tried, plan)
        success.append((factor, judged.success_rate))
        effective.append((factor, judged.value))
        with suppress(MissingDependencyError):
            bound.append((factor, fluid(tried)))
    lines = [Line("success", success), Line("effective accuracy", effective)]
    lines += [Line("fluid bound", bound)] if bound else []
    note = f"The first {len(short.stream)} requests, sped up; 1 is the stream's own rate. "
    note += "`requests simulate --bound` computes a tighter bound for one load."
    yield section("Over load", note, _chart(lines, "load", "share"))
    priced = plan if plan.policy == "rolling" else RequestPlan("rolling")
    points = [_priced(short, priced, price) for price in PRICES]
    tips = [
        f"price {price:g}\nsuccess {x:.2%}, effective accuracy {y:.4f}"
        for price, (x, y) in zip(PRICES, points, strict=True)
    ]
    note = "Policy rolling, from cheap machine time (accurate, late) to dear: prices "
    note += ", ".join(f"{p:g}" for p in PRICES)
    knob = [Line("price of machine time", points, tips)]
    yield section("Price of machine time", note, _chart(knob, "success", "effective accuracy"))


def _chart(lines: Sequence[Line], across: str, up: str) -> str:
    return scroll(line_chart(lines, across, up))


def _priced(problem: RequestProblem, plan: RequestPlan, price: float) -> tuple[float, float]:
    known = dict(plan.parameters) | {"price": price}
    judged = judge(problem, RequestPlan(plan.policy, tuple(known.items()), plan.seed))
    return judged.success_rate, judged.value


def _short(problem: RequestProblem) -> RequestProblem:
    return first_requests(problem, SHOWN_REQUESTS)


def _first_seconds(trace: Trace) -> Trace:
    early = trace.start_s < SHOWN_S
    return Trace(
        trace.tracks,
        trace.devices,
        trace.labels,
        trace.track[early],
        trace.label[early],
        trace.start_s[early],
        trace.end_s[early],
        title=trace.title,
    )


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """One request of a simulated stream; ``str()`` of it is for a terminal."""

    facts: dict[str, Any]
    options: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.facts | {"options": list(self.options)}

    def __str__(self) -> str:
        f = self.facts
        what = (
            f"request {f['request']} ({f['family']}): arrived at {f['arrival_s']:.6f} s, "
            f"deadline {seconds(f['deadline_s'])} later, minimum accuracy {f['min_accuracy']:g}\n"
        )
        if f["server"] is None:
            what += "refused or never answered"
        else:
            what += (
                f"{f['variant']} on {f['server']} in a batch of {f['batch']}: waited "
                f"{seconds(f['waited_s'])}, took {seconds(f['took_s'])}, "
                f"slack {seconds(f['slack_s']) if f['slack_s'] >= 0 else 'none, late'}"
            )
        rows = [
            (o["server"], o["variant"], f"{o['accuracy']:.4f}", seconds(o["alone_s"]), o["verdict"])
            for o in self.options
        ]
        table = plain_table(("server", "variant", "accuracy", "alone", ""), rows, "  rr ")
        return f"{what}\nwhat it could have had, alone on an idle server:\n{table}"


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """A plan's policy beside the others on the same requests; ``str()`` of it is for a terminal."""

    facts: dict[str, Any]
    policies: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.facts | {"policies": list(self.policies)}

    def __str__(self) -> str:
        f, better = self.facts, [each for each in self.policies if each["verdict"] == BETTER]
        own = f"{f['policy']} has {f['effective_accuracy']:.4f} of effective accuracy"
        found = f"{better[0]['policy']} has more" if better else "no other has clearly more"
        rows = [
            (
                p["policy"],
                f"{100 * p['success_rate']:.2f} %",
                f"{p['effective_accuracy']:.4f}",
                f"{p['gain']:+.4f}",
                f"{p['noise']:.4f}",
                p["verdict"],
            )
            for p in self.policies[:MOST_OPTIONS]
        ]
        head = ("policy", "success", "effective accuracy", "beside it", "noise", "")
        return (
            f"{own} on {f['requests']} requests; {found}, of {len(self.policies)} that were "
            f"simulated:\n{plain_table(head, rows, ' rrrr ')}"
        )


POLICY = "policy"
"""What `explain` takes in place of a request's number."""

BETTER = "better by more than the noise"

MOST_OPTIONS = 24

MOST_DIGITS = 18
"""Of a request's number: Python refuses to read some thousands."""


def explain(
    problem: RequestProblem, plan: RequestPlan, name: str
) -> RequestExplanation | PolicyExplanation:
    """Explain a request by its number, or ``policy``: the choice of the policy.

    Raises `UnknownNameError`: there is no such request.
    """
    if name == POLICY:
        return _explain_policy(problem, plan)
    p, s = problem, problem.service
    if not name.isdecimal() or len(name) > MOST_DIGITS or int(name) >= len(p.stream):
        known = [f"0 to {len(p.stream) - 1}", POLICY]
        raise UnknownNameError("request", name, known, where=p.name)
    k, a = int(name), judge(problem, plan).answers
    answered, i, v = a.server[k] >= 0, int(a.server[k]), int(a.variant[k])
    facts: dict[str, Any] = {
        "request": k,
        "family": s.family_names[int(p.stream.family[k])],
        "arrival_s": float(p.stream.arrival_s[k]),
        "deadline_s": float(p.stream.deadline_s[k]),
        "min_accuracy": float(p.stream.min_accuracy[k]),
        "server": s.server_names[i] if answered else None,
        "variant": s.variant_names[v] if answered else None,
        "batch": int(a.batch[k]),
    }
    if answered:
        facts |= {
            "waited_s": float(a.start_s[k] - p.stream.arrival_s[k]),
            "took_s": float(a.end_s[k] - a.start_s[k]),
            "slack_s": float(p.stream.due_s[k] - a.end_s[k]),
        }
    return RequestExplanation(facts, tuple(_options(p, k))[:MOST_OPTIONS])


def _explain_policy(problem: RequestProblem, plan: RequestPlan) -> PolicyExplanation:
    """The plan's policy beside those that ``auto`` of a server tries."""
    short = _short(problem)
    others = [each for each in candidates(short) if each != plan]
    own, *rest = found = list(compared(short, [plan, *others]))
    facts = {
        "policy": plan_text(plan),
        "requests": len(short.stream),
        "effective_accuracy": own.value,
        "success_rate": own.judged.success_rate,
    }
    verdicts = {id(each): BETTER if each.clear else "" for each in rest} | {id(own): "the plan"}
    policies = [
        {
            "policy": plan_text(each.judged.plan),
            "success_rate": each.judged.success_rate,
            "effective_accuracy": each.judged.value,
            "gain": each.gain,
            "noise": each.noise,
            "verdict": verdicts[id(each)],
        }
        for each in sorted(found, key=lambda each: -each.value)
    ]
    return PolicyExplanation(facts, tuple(policies))


def _options(p: RequestProblem, k: int) -> list[dict[str, Any]]:
    s = p.service
    found = []
    for i in s.kinds().tolist():
        for v in np.flatnonzero(s.family == p.stream.family[k]).tolist():
            alone_s = float(s.latency_s[i, v, 1] + s.round_trip_s[i])
            verdict = "fits"
            if s.accuracy[v] < p.stream.min_accuracy[k]:
                verdict = "below its minimum accuracy"
            elif alone_s > p.stream.deadline_s[k]:
                verdict = "too slow"
            entry = {"server": s.server_names[i], "variant": s.variant_names[v], "verdict": verdict}
            found.append(entry | {"accuracy": float(s.accuracy[v]), "alone_s": alone_s})
    return sorted(found, key=lambda o: (o["verdict"] != "fits", -o["accuracy"], o["alone_s"]))
