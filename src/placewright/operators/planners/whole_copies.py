"""Copies of the whole model on devices that differ, samples dealt out by speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Communication, OperatorProblem
from placewright.planning.contract import Context
from placewright.report.text import size


@final
@dataclass(frozen=True, slots=True)
class WholeCopies:
    """The whole model on every device that has it all, a stream's samples dealt out by speed.

    Every copy adds its speed to the throughput and no tensor travels, so where nothing is learned
    no plan whose devices all have the memory is better. Devices that cannot run an operator, or
    have not the memory of its resident bytes, get no copy. O(n m). Data parallelism with shares
    by speed; ours.
    """

    name: ClassVar[str] = "whole-copies"

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Where copies may be on devices that differ, over links, and nothing is pinned."""
        if not problem.pipeline.by_speed:
            return "copies to devices that differ (--replication --by-speed)"
        if problem.communication is not Communication.PAIRWISE:
            return "shares by speed are for links"
        if problem.contiguous:
            return "plans are contiguous"
        return "operators are pinned to devices" if (problem.pinned >= 0).any() else None

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan; raises `InfeasibleError`: no device has all of the model."""
        able = problem.allowed().all(axis=0)
        able &= problem.memory_bytes >= problem.resident_bytes.sum()
        if not able.any():
            raise InfeasibleError(
                "no device has the whole model",
                where=problem.name,
                by=f"{problem.m} devices, {size(problem.resident_bytes.sum())} resident",
                hint="give a device more memory, or try --planner copied-stages",
            )
        took = np.where(able, problem.compute_s.sum(axis=0), np.inf)
        fastest = int(np.argmin(took))
        leader = np.where(able, fastest, np.arange(problem.m))
        copied = leader if able.sum() > 1 else None
        return OperatorPlan(np.full(problem.n, fastest), replica_of=copied)
