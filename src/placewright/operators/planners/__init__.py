"""What `solve` needs of wing 1: planners, judge and bounds. `planners` is the list of planners."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from placewright.operators.bounds import bounds as quick_bounds
from placewright.operators.bounds import check_fits, refined_s
from placewright.operators.bounds import refined_bounds as relaxed_bounds
from placewright.operators.judge import PreparedJudge, judge, plan_of
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.planners.baselines import AccelerateAuto, Metis
from placewright.operators.planners.chain_dp import ChainDp, MicroBatches
from placewright.operators.planners.contiguous_dp import IdealDp, LinearisedDp
from placewright.operators.planners.copied_stages import CopiedStages, WholeCopies
from placewright.operators.planners.exact import Exact
from placewright.operators.planners.learned.doppler import Doppler
from placewright.operators.planners.learned.edits import LocalSearch, RandomSearch
from placewright.operators.planners.learned.hp3c import Hp3c
from placewright.operators.planners.learned.hsdag import Hsdag
from placewright.operators.planners.learned.placers import Placeto, RnnPlacer
from placewright.operators.planners.learned.post import Post
from placewright.operators.planners.learned.transfer import Transfer
from placewright.operators.planners.lists.planners import (
    CEFT,
    CEFT_CPOP,
    CPOP,
    HEFT,
    HEFT_CONTENDED,
    PEFT,
)
from placewright.operators.planners.lists.ready import M_ETF, M_SCT, READY_LISTS
from placewright.operators.planners.lns import Lns
from placewright.operators.planners.min_cut import MinCut
from placewright.operators.planners.pbqp import CeftPbqp, PbqpPlanner
from placewright.operators.planners.search import Search
from placewright.operators.planners.trivial import (
    MTopo,
    Random,
    RoundRobin,
    Single,
    TopologicalSplit,
    single_loads_s,
)
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.planning.contract import BoundContext, Context, Planner, on_request, proposal_of
from placewright.planning.wings import with_plug_ins

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

LEARNED: tuple[Planner, ...] = (
    Post(),
    Hp3c(),
    Hsdag(),
    Doppler(),
    Transfer(),
    LocalSearch(),
    RandomSearch(),
    RnnPlacer(),
    Placeto(),
)
"""Planners that learn and their baselines; ``auto`` and `compare` run them only by name."""


def planners(problem: OperatorProblem) -> Mapping[str, Planner]:
    """Every planner by name; one per single device first."""
    own: list[Planner] = [
        *(Single(device) for device in problem.device_names),
        AccelerateAuto(),
        ChainDp(),
        MicroBatches(),
        WholeCopies(),
        CopiedStages(),
        RoundRobin(),
        Random(),
        TopologicalSplit(),
        MTopo(),
        M_ETF,
        M_SCT,
        Metis(),
        HEFT,
        HEFT_CONTENDED,
        CPOP,
        PEFT,
        CEFT,
        CEFT_CPOP,
        *READY_LISTS,
        PbqpPlanner(),
        CeftPbqp(),
        Search(),
        Lns(),
        LinearisedDp(),
        IdealDp(),
        Exact(),
        MinCut(),
        *LEARNED,
    ]
    return with_plug_ins("operators", own)


LAST = ("dpl", "dp", "min-cut", "ceft+pbqp", "exact", "search", "lns")
"""What ``auto`` runs after the quick planners: proofs and short searches before long ones."""


LISTS = tuple(x.name for x in (HEFT, PEFT, CPOP, HEFT_CONTENDED, CEFT, CEFT_CPOP))
"""The quickest planners that are seldom far from the best."""


def portfolio(problem: OperatorProblem) -> Sequence[str]:
    """What ``auto`` tries, in order.

    The single device of least load, list schedules, other quick rules and plug-ins, the other
    single devices, then `LAST`. Not the `READY_LISTS`, which look at every ready operator in each
    step: they are for comparisons.
    """
    known = planners(problem)
    by_load = np.argsort(single_loads_s(problem), kind="stable").tolist()
    best, *others = (f"{SINGLE}{problem.device_names[d]}" for d in by_load)
    ordered = [best, *LISTS, *others, *LAST]
    elsewhere = {*ordered, *(x.name for x in READY_LISTS)}
    quick = [x for x, planner in known.items() if not on_request(planner) and x not in elsewhere]
    return [x for x in (best, *LISTS, *quick, *others, *LAST) if x in known]


def prepared_judge(problem: OperatorProblem) -> PreparedJudge:
    """The judge, laid out for many plans."""
    return PreparedJudge(problem)


BOUNDS_S = 1e-6
"""Seconds that bounds take per operator and device."""

LARGE = 500_000
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
    """Planners on a small problem: those with the largest kernels, then those that run last.

    At the end the simulator by rounds, for plans of which the fast one is unsure.
    """
    names = ("search", "ceft+pbqp", "lns", "pbqp", "m-etf", *reversed(LISTS))
    # Built by the calls: this is asked for while a kernel is compiled, and building compiles some.
    last = (lambda: bounds(_small_problem()), _rehearse_rounds)
    return [*(partial(_rehearse, name) for name in names), *last]


def _rehearse(name: str) -> None:
    problem = _small_problem()
    judge(problem, proposal_of(planners(problem)[name](problem, Context(judge=judge))).plan)


def _rehearse_rounds() -> None:
    serial = _small_problem().replace(overlap=Overlap.SERIAL)
    judge(serial, OperatorPlan(np.arange(serial.n) % serial.m))


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
