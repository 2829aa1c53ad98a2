"""Planners of wing 1. This dict is the list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from placewright.operators.plan import SINGLE
from placewright.operators.planners.accelerate_auto import AccelerateAuto
from placewright.operators.planners.ceft_pbqp import CeftPbqp
from placewright.operators.planners.chain_dp import ChainDp
from placewright.operators.planners.contiguous_dp import IdealDp, LinearisedDp
from placewright.operators.planners.copied_stages import CopiedStages, WholeCopies
from placewright.operators.planners.exact import Exact
from placewright.operators.planners.filling import MTopo, TopologicalSplit
from placewright.operators.planners.learned.baselines import LocalSearch, RandomSearch
from placewright.operators.planners.learned.doppler import Doppler
from placewright.operators.planners.learned.hp3c import Hp3c
from placewright.operators.planners.learned.hsdag import Hsdag
from placewright.operators.planners.learned.placeto import Placeto
from placewright.operators.planners.learned.post import Post
from placewright.operators.planners.learned.rnn import RnnPlacer
from placewright.operators.planners.learned.transfer import Transfer
from placewright.operators.planners.lists.planners import (
    CEFT,
    CEFT_CPOP,
    CPOP,
    HEFT,
    HEFT_CONTENDED,
    M_ETF,
    M_SCT,
    PEFT,
)
from placewright.operators.planners.lists.ready import READY_LISTS
from placewright.operators.planners.lns import Lns
from placewright.operators.planners.metis import Metis
from placewright.operators.planners.micro_batches import MicroBatches
from placewright.operators.planners.min_cut import MinCut
from placewright.operators.planners.pbqp import PbqpPlanner
from placewright.operators.planners.search import Search
from placewright.operators.planners.trivial import Random, RoundRobin, Single, single_loads_s
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Planner, on_request
from placewright.planning.wings import with_plug_ins

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


LISTS = tuple(x.name for x in (HEFT, CPOP, PEFT, HEFT_CONTENDED, CEFT, CEFT_CPOP))
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
