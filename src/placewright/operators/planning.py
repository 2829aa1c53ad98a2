"""Planners, judge and bounds of wing 1, for `solve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from placewright.operators.bounds import bounds as quick_bounds
from placewright.operators.bounds import check_fits, refined_s
from placewright.operators.bounds import refined_bounds as relaxed_bounds
from placewright.operators.judge import PreparedJudge, judge, plan_of
from placewright.operators.plan import SINGLE
from placewright.operators.planners import LISTS, planners, portfolio
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import BoundContext, Context, proposal_of

__all__ = [
    "baselines",
    "bounds",
    "judge",
    "objective",
    "plan_of",
    "planners",
    "portfolio",
    "prepared_judge",
    "refined_bounds",
    "refined_s",
    "rehearsals",
]


def prepared_judge(problem: OperatorProblem) -> PreparedJudge:
    """The judge, laid out for many plans."""
    return PreparedJudge(problem)


BOUNDS_S = 1e-6
"""Seconds that bounds take per operator and device."""

LARGE = 2_000_000
"""Operators times devices from which on bounds are computed after the planners: they take longer
than a list schedule."""


def bounds(problem: OperatorProblem) -> dict[str, float]:
    """Quick bounds; none yet for `LARGE` problems. Raises as `bounds.bounds`."""
    if problem.n * problem.m < LARGE:
        return quick_bounds(problem)
    check_fits(problem)
    return {}


def refined_bounds(problem: OperatorProblem, known: BoundContext) -> Iterator[tuple[str, float]]:
    """Those of `LARGE` problems, where there is time, and the relaxed one of small problems."""
    size, left_s = problem.n * problem.m, known.deadline_s - time.perf_counter()
    if size >= LARGE and left_s > BOUNDS_S * size:
        yield from quick_bounds(problem).items()
    yield from relaxed_bounds(problem, known)


def objective(problem: OperatorProblem) -> str:
    """The objective, and the options of the pipeline."""
    return ", ".join(x for x in (str(problem.objective), problem.pipeline.described()) if x)


def baselines(problem: OperatorProblem) -> Sequence[str]:
    """Everything on one device."""
    return [f"{SINGLE}{device}" for device in problem.device_names]


def rehearsals() -> Sequence[Callable[[], object]]:
    """Planners on a small problem: those with the largest kernels, then those that run last."""
    names = ("search", "ceft+pbqp", "lns", "pbqp", "m-etf", *reversed(LISTS))
    # Built by the calls: this is asked for while a kernel is compiled, and building compiles some.
    return [*(partial(_rehearse, name) for name in names), lambda: bounds(_small_problem())]


def _rehearse(name: str) -> None:
    problem = _small_problem()
    judge(problem, proposal_of(planners(problem)[name](problem, Context(judge=judge))).plan)


def _small_problem() -> OperatorProblem:
    """A problem that is planned in a moment; for most kernels it is enough."""
    builder = OperatorProblem.builder({"a": 1e9, "b": 1e9}, "rehearsal")
    operators = [
        builder.add_operator(f"op{k}", {"a": 1 + 7 * k % 5, "b": 1 + 11 * k % 7}) for k in range(12)
    ]
    for k, producer in enumerate(operators[:-1]):
        readers = {operators[min(11, k + 1 + step)] for step in (0, k % 3, k % 11)}
        builder.add_tensor(producer, sorted(readers), nbytes=1000 * (1 + k % 4))
    builder.add_link("a", "b", bandwidth=3e3, latency_s=0.1)
    return builder.build()
