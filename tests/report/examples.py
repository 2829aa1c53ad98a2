"""Results and traces for the tests of the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.measurement import Baseline, Measurement
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.planning.candidates import Candidate, Candidates, Outcome, Status
from placewright.planning.result import Provenance, Result
from placewright.report.trace import Trace

HOSTILE = "</script><script>alert('x')</script>\"'&"
"""A name that must stay a name."""


@contextmanager
def in_chromium(file: Path) -> Iterator[Any]:
    """A page in Chromium; fails where a script of it does."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    arguments, failed = ["--no-sandbox", "--disable-background-networking"], list[Any]()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        opened = browser.new_page(reduced_motion="reduce", viewport={"width": 1200, "height": 900})
        opened.on("pageerror", lambda error: failed.append(error))
        opened.goto(file.as_uri())
        yield opened
        browser.close()
    assert failed == []


def chain(count: int = 6, **changes: Any) -> OperatorProblem:
    """Operators in a row on two devices."""
    tensors = [(k, 1.0, [k + 1]) for k in range(count - 1)]
    times = [[1.0 + k % 3, 2.0] for k in range(count)]
    return tiny(times, tensors, **{"memory_bytes": [5.0, np.inf], **changes})


def result_of(problem: OperatorProblem, **changes: Any) -> Result:
    """A plan that alternates between the devices, with three candidates."""
    plan = OperatorPlan(np.arange(problem.n) % problem.m)
    judgement = judge(problem, plan)
    result = Result(
        problem=problem,
        plan=plan,
        judgement=judgement,
        planner="heft",
        objective="latency",
        value=judgement.value,
        bound=judgement.value / 2,
        status=Status.FEASIBLE,
        runtime_s=0.01,
        candidates=Candidates(
            (
                Candidate("only:dev0", np.inf, Outcome.UNSUPPORTED, 1e-4, "does not run 'op1'"),
                Candidate("only:dev1", judgement.value * 1.5, Outcome.FITS, 1e-4),
                Candidate("heft", judgement.value, Outcome.FITS, 1e-3),
            )
        ),
        provenance=Provenance(problem.hash(), 7),
        bound_names={"ceft": judgement.value / 2},
    )
    return replace(result, **changes)


def measured(result: Result) -> Measurement:
    """A run that took a tenth longer than was predicted."""
    trace = result.judgement.trace()
    slower = replace(trace, start_s=trace.start_s * 1.1, end_s=trace.end_s * 1.1, memory=())
    step = result.value * 1.1
    return Measurement((step, step * 1.2, step), result.value, slower, "gloo", "dev1 at half speed")


def beside(result: Result, *times: float) -> Measurement:
    """A run in rounds beside dev1, which took so many times as long in each."""
    plan, rounds = measured(result), len(times)
    steps = [plan.measured_s * 0.99, plan.measured_s * 1.01]
    own = replace(plan, step_s=tuple(steps * rounds), rounds=(2,) * rounds)
    other = replace(own, step_s=tuple(s * factor for factor in times for s in steps), trace=None)
    return replace(own, baseline=Baseline("dev1", other))


def many_spans(count: int, seed: int = 0) -> Trace:
    """One busy device track and one link track."""
    rng = np.random.default_rng(seed)
    edges = np.cumsum(rng.exponential(1.0, 2 * count))
    return Trace(
        tracks=("dev", "link"),
        devices=1,
        labels=tuple(f"s{k}" for k in range(count)),
        track=np.arange(count) % 2,
        label=np.arange(count),
        start_s=edges[::2],
        end_s=edges[1::2],
    )
