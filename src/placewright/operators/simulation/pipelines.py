"""The judge's word on pipelines over links that are more than one stage per device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewright.operators.judgement import OperatorJudgement, violation_words
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.simulation.pair_loads import pair_value
from placewright.operators.simulation.star.loads import stages
from placewright.operators.whole_bytes import room_bytes


def is_pipeline(problem: OperatorProblem) -> bool:
    """Whether throughput is asked for, with copies of stages or passes that do not mix."""
    return problem.objective is Objective.THROUGHPUT and not problem.pipeline.plain


def as_pipeline(played: OperatorJudgement, plan: OperatorPlan) -> OperatorJudgement:
    """The same play with the pipeline's value; copies need the memory of their leader."""
    p = played.problem
    leader, _ = stages(p, plan)
    peak = played.peak_bytes[leader]
    over = np.maximum(0, peak - room_bytes(p))
    return replace(
        played,
        value=pair_value(p, plan),
        peak_bytes=peak,
        feasible=not over.any(),
        violation=violation_words(p, over),
        violation_bytes=int(over.sum()),
    )
