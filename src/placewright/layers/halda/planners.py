"""Planners of layers in a ring: the exact one, and what one would do without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.layers.halda.problem import (
    DeviceSeconds,
    RingJudgement,
    RingPlan,
    RingProblem,
    device_seconds,
    fixed_s,
    judge,
    kappa_s,
)
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Planner, Proposal, TakesEveryProblem
from placewright.planning.wing import Planning
from placewright.planning.wings import with_plug_ins

SUMMED = 1e-9
"""Share by which a value is lowered to be a bound: the judge sums in another order."""


class HaldaPlanning(Planning):
    """What `solve` needs of layers in a ring."""

    def planners(self, problem: RingProblem) -> Mapping[str, Planner]:
        """Every planner by name."""
        own: list[Planner] = [Rounds(), Equal(), Memory()]
        return with_plug_ins("layers.halda", own)

    def portfolio(self, problem: RingProblem) -> Sequence[str]:
        """What ``auto`` tries: the exact one, which leaves nothing to the others."""
        return ["rounds"]

    def judge(self, problem: RingProblem, plan: RingPlan) -> RingJudgement:
        """By the formula."""
        return judge(problem, plan)

    def bounds(self, problem: RingProblem) -> Mapping[str, float]:
        """With cycles at their shortest; `rounds` proves the rest.

        The physical bound is none on the formula, which undercuts it.
        """
        relaxed = relaxed_bound_s(problem)
        return {"relaxed": relaxed} if math.isfinite(relaxed) else {}

    def objective(self, problem: RingProblem) -> str:
        """Seconds per token."""
        return "time per token"

    def baselines(self, problem: RingProblem) -> Sequence[str]:
        """Parts by count or by memory."""
        return ("equal", "memory")


PLANNING = HaldaPlanning()


class _Best(NamedTuple):
    value_s: float
    plan: RingPlan | None


@final
@dataclass(frozen=True, slots=True)
class Rounds(TakesEveryProblem):
    """The optimum of Halda's formula, by enumeration of rounds and of the longest cycle.

    With k rounds and a limit C on the cycle of every device, the least sum of busy times is a
    dynamic program over devices and layers; n on the GPU is chosen beforehand, as both parts of the
    objective only want its device's time small. C need only be the cycle of some device with some
    count of layers. Limits are tried from the smallest on, until (k - 1) C with the least sum of
    all cannot be better: O(k W^3 D^2) at worst for D devices, far less in practice.
    """

    name: str = "rounds"

    def __call__(self, problem: RingProblem, context: Context) -> Proposal[RingPlan]:
        """The optimum, with itself as the bound.

        Raises `InfeasibleError`: more devices than layers in a round, or overflows without end.
        """
        best = _Best(math.inf, None)
        fixed = kappa_s(problem) + sum(map(fixed_s, problem.devices))
        for rounds in problem.rounds:
            most = problem.model.num_layers // rounds
            if most < len(problem.devices):
                break
            tables = [device_seconds(problem, d, most) for d in problem.devices]
            for value, layers in _improving(tables, rounds, most, best.value_s - fixed):
                gpu = (int(t.gpu_layers[w]) for t, w in zip(tables, layers, strict=True))
                best = _Best(value + fixed, RingPlan(rounds, tuple(layers), tuple(gpu)))
        if best.plan is None:
            by = f"{len(problem.devices)} devices, {problem.model.num_layers} layers"
            hint = "leave devices out, or use some with more memory"
            what = "no rounds give every device a layer that fits"
            raise InfeasibleError(what, where=problem.name, by=by, hint=hint)
        return Proposal(best.plan, bound=lowered(best.value_s))


def lowered(value: float) -> float:
    """A value as a bound."""
    return value - abs(value) * SUMMED


def relaxed_bound_s(problem: RingProblem) -> float:
    """Seconds per token where each device's cycle is at its shortest; infinite without a plan."""
    fixed, best = kappa_s(problem) + sum(map(fixed_s, problem.devices)), math.inf
    for rounds in problem.rounds:
        most = problem.model.num_layers // rounds
        tables = [device_seconds(problem, d, most) for d in problem.devices]
        free = float(_least(tables, most, math.inf)[-1][most])
        if math.isfinite(free):
            shortest = max(float(t.cycle_s.min()) for t in tables)
            best = min(best, fixed + free + (rounds - 1) * shortest)
    return lowered(best)


def _improving(
    tables: list[DeviceSeconds], rounds: int, most: int, known: float
) -> Iterator[tuple[float, list[int]]]:
    """Objectives below `known`, without what is fixed, each with its layers; the last is best."""
    free = _least(tables, most, math.inf)
    if math.isinf(free[-1][most]):
        return
    cycles = np.unique(np.concatenate([t.cycle_s[np.isfinite(t.cycle_s)] for t in tables]))
    limits = cycles.tolist() if rounds > 1 else [math.inf]
    # Every device has a layer at least.
    shortest = max(float(t.cycle_s.min()) for t in tables)
    for limit in limits:
        cost = (rounds - 1) * limit if rounds > 1 else 0.0
        if limit < shortest:
            continue
        if cost + free[-1][most] >= known:
            return
        sums = _least(tables, most, limit)
        if cost + sums[-1][most] < known:
            known = float(cost + sums[-1][most])
            yield known, _layers(tables, sums, most, limit)


def _least(tables: list[DeviceSeconds], most: int, limit: float) -> list[FloatArray]:
    """Least busy seconds of the first 0, 1, ... devices with 0 to `most` layers in all."""
    sums = [np.full(most + 1, np.inf)]
    sums[0][0] = 0.0
    at = np.arange(most + 1)
    apart: IntArray = at[:, None] - at[None, :]  # layers of the devices before, by (all, own)
    for table in tables:
        own = np.where(table.cycle_s <= limit, table.busy_s, np.inf)
        before = np.where(apart >= 0, sums[-1][np.maximum(apart, 0)], np.inf)
        sums.append((before + own[None, :]).min(axis=1))
    return sums


def _layers(
    tables: list[DeviceSeconds], sums: list[FloatArray], most: int, limit: float
) -> list[int]:
    """The layers of each device in the best of `_least`."""
    left, found = most, list[int]()
    for k in range(len(tables), 0, -1):
        table = tables[k - 1]
        own = np.where(table.cycle_s <= limit, table.busy_s, np.inf)[: left + 1]
        w = int((sums[k - 1][left::-1] + own).argmin())
        found.append(w)
        left -= w
    return found[::-1]


@final
@dataclass(frozen=True, slots=True)
class Equal(TakesEveryProblem):
    """Equal parts of the layers in one round, all on the GPUs that there are."""

    name: str = "equal"

    def __call__(self, problem: RingProblem, context: Context) -> RingPlan:
        """Parts that differ by one layer at most."""
        return _in_parts(problem, np.ones(len(problem.devices)))


@final
@dataclass(frozen=True, slots=True)
class Memory(TakesEveryProblem):
    """Parts of the layers in proportion to memory in one round, all on the GPUs that there are."""

    name: str = "memory"

    def __call__(self, problem: RingProblem, context: Context) -> RingPlan:
        """A GPU's memory where there is one, else RAM; one layer at least."""
        room = [d.ram_bytes if d.gpu is None else d.gpu.memory_bytes for d in problem.devices]
        return _in_parts(problem, np.maximum(np.array(room), 1.0))


def _in_parts(p: RingProblem, weight: FloatArray) -> RingPlan:
    """One layer for each device, and the others in proportion to weights."""
    spare = p.model.num_layers - len(p.devices)
    if spare < 0 or not p.rounds:
        by = f"{len(p.devices)} devices, {p.model.num_layers} layers"
        raise InfeasibleError("not every device gets a layer", where=p.name, by=by)
    cuts = np.rint(spare * np.cumsum(weight) / weight.sum()).astype(int)
    layers = (1 + np.diff(cuts, prepend=0)).tolist()
    gpu = (0 if d.gpu is None else w for d, w in zip(p.devices, layers, strict=True))
    return RingPlan(1, tuple(layers), tuple(gpu))
