"""The race between planners: the best plan so far, all that was tried, and how it ended.

`placewright.solve` decides who runs and when; here every planner has its turn, the judge says what
its plan is worth, and the end of the race is put into words.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

from placewright.errors import (
    InfeasibleError,
    MissingDependencyError,
    PlacewrightError,
    UnsupportedError,
)
from placewright.numerics.compile_clock import CompileClock
from placewright.planning.contract import INTERRUPTED, Context, Direction, Planner, Planning, Wing
from placewright.planning.result import Candidate, Status

PROOF = 1e-6
"""Gap up to which a plan is called optimal, whoever proved the bound. Solvers that count in whole
numbers and have searched to their end say themselves how much they cannot tell apart."""


@dataclass(slots=True)
class Portfolio:
    """The best plan so far and everything that was tried.

    Attributes
    ----------
    clock
        Seconds spent compiling, which are no planner's.
    tolerant
        Whether a planner that fails, or lacks an optional package, only costs its own turn.
    bounds
        What no plan can beat, by name; planners add what they prove.
    proved_up_to
        Values up to it are optimal within the resolution of the solver that proved it.
    started_from
        The planner whose plan the best one was given to start from, empty if none.
    """

    wing: Wing
    problem: Any
    clock: CompileClock
    tolerant: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    proved_up_to: float = field(init=False)
    best: Any = None
    best_judgement: Any = None
    best_planner: str = ""
    started_from: str = ""
    tried: list[Candidate] = field(default_factory=list)
    nearest_miss: str = ""
    missed_by: float = math.inf
    planning: Planning = field(init=False)
    direction: Direction = field(init=False)

    def __post_init__(self) -> None:
        self.planning, self.direction = self.wing.planning(), self.wing.direction
        self.proved_up_to = self.direction.unproved

    @property
    def value(self) -> float:
        """Of the best plan; `Direction.worst` before there is one."""
        return self.direction.worst if self.best is None else float(self.best_judgement.value)

    @property
    def bound(self) -> float:
        """The tightest bound."""
        return self.direction.tightest(self.bounds.values())

    @property
    def closed(self) -> bool:
        """Whether nothing can be better."""
        within = self.bound * (1 + self.direction.sign * PROOF)
        limit = self.direction.tightest((within, self.proved_up_to))
        return self.best is not None and not self.direction.better(limit, self.value)

    def turn(self, planner: Planner, context: Context) -> bool:
        """One planner's turn: plan, judge, keep if better. True if it was interrupted.

        Raises
        ------
        Exception
            The planner's own, or a package that is missing; where `tolerant` it is noted instead.
        """
        reason = planner.unsupported_reason(self.problem)
        if reason is not None:
            self.skip(planner, reason)
            return False
        began = time.perf_counter() - self.clock.seconds
        try:
            plan = planner(self.problem, context)
            took_s = time.perf_counter() - self.clock.seconds - began
            judgement = self.planning.judge(self.problem, plan)
        except InfeasibleError as error:
            self.skip(planner, str(error.what), time.perf_counter() - self.clock.seconds - began)
            self.nearest_miss = self.nearest_miss or str(error)
            return False
        except Exception as error:  # a plug-in's defect must not lose what others have found
            if not self.tolerant:
                raise
            self.skip(planner, _excuse(planner.name, error))
            return False
        self._enter(planner.name, plan, judgement, took_s, relayed=context.incumbent is not None)
        return str(plan.note) == INTERRUPTED

    def skip(self, planner: Planner, why: str, took_s: float = 0.0) -> None:
        """Note a planner that gave no plan."""
        self.tried.append(
            Candidate(planner.name, self.direction.worst, Status.INFEASIBLE, took_s, why)
        )

    def _enter(self, name: str, plan: Any, judgement: Any, took_s: float, *, relayed: bool) -> None:
        """Note a judged plan, keep it if it is better."""
        status = Status.FEASIBLE if judgement.feasible else Status.INFEASIBLE
        note = plan.note or judgement.violation
        worse = 1 + self.direction.sign * PROOF
        limit = judgement.value * worse if judgement.feasible else self.direction.worst
        if not math.isfinite(plan.lower_bound_s) or self.direction.better(
            limit, plan.lower_bound_s
        ):
            claim = f"its bound {plan.lower_bound_s:g} contradicts its own plan's value"
            note = _failed(name, f"{claim} {judgement.value:g}")
        else:
            self._prove(name, plan)
        self.tried.append(Candidate(name, float(judgement.value), status, took_s, note))
        if not judgement.feasible:
            self._miss(judgement)
        elif self.direction.better(judgement.value, self.value):
            self.started_from = self.best_planner if relayed else ""
            self.best, self.best_judgement, self.best_planner = plan, judgement, name

    def _prove(self, name: str, plan: Any) -> None:
        """Keep what the plan says was proved, where it is more than was known."""
        if self.direction.better(self.bound, plan.lower_bound_s):
            self.bounds[name] = plan.lower_bound_s
        resolution_s = float(getattr(plan, "resolution_s", 0.0))  # not every wing has one
        if resolution_s > 0:
            limit = plan.lower_bound_s + self.direction.sign * resolution_s
            self.proved_up_to = self.direction.tightest((self.proved_up_to, limit))

    def _miss(self, judgement: Any) -> None:
        """Note a plan that does not fit, where none has missed by less."""
        over = float(judgement.violation_size)
        if not self.nearest_miss or over < self.missed_by:
            self.nearest_miss, self.missed_by = judgement.violation, over

    def status(self, interrupted: bool) -> Status:
        """What is known about the best plan."""
        if self.closed:
            return Status.OPTIMAL
        return Status.INTERRUPTED if interrupted else Status.FEASIBLE

    def why(self) -> str:
        """Which planner won, from where, by how much, and what could not be asked."""
        said = f"{self.best_planner} won{self._margin()}"
        if self.started_from:
            said += f"; it started from the plan of {self.started_from}"
        if self.closed:
            said += f"; nothing can be better ({self._tightest()} bound)"
        elif self.bound != self.direction.unproved and self.bound:
            off = 100 * abs(self.value / self.bound - 1)
            side = "above" if self.direction is Direction.MINIMISE else "below"
            said += f"; at most {off:.1f} % {side} the best ({self._tightest()} bound)"
        missing = [f"{c.planner} ({c.note})" for c in self.tried if "pip install" in c.note]
        return said + (f"; not asked: {', '.join(missing)}" if missing else "")

    def _margin(self) -> str:
        """How far the next best plan that fits is behind."""
        others = [c for c in self.tried if c.planner != self.best_planner]
        fitting = [c for c in others if math.isfinite(c.value) and c.status is Status.FEASIBLE]
        if not fitting:
            return ""
        second = min(fitting, key=lambda c: self.direction.sign * c.value)
        off = 100 * abs(1 - self.value / second.value) if second.value > 0 else 0.0
        side = "below" if self.direction is Direction.MINIMISE else "above"
        behind = f"{off:.1f} % {side} {second.planner}" if off > 0 else f"as {second.planner}"
        return f": {behind}, the best of {len(fitting)} others"

    def _tightest(self) -> str:
        """Name of the tightest bound."""
        return max(self.bounds, key=lambda name: self.direction.sign * self.bounds[name])

    def no_plan(self, interrupted: bool) -> PlacewrightError | KeyboardInterrupt:
        """What to raise where nobody found a plan."""
        where = str(self.problem.name)
        if interrupted:
            ended = ", ".join(c.planner for c in self.tried) or "no planner"
            return KeyboardInterrupt(
                f"there is no plan of {where} yet: {ended} had ended, and gave none that fits"
            )
        if self.nearest_miss:
            return InfeasibleError(
                "no plan that fits was found",
                where=where,
                by=self.nearest_miss,
                hint="raise a memory limit, add a device, or try --planner auto with more time",
            )
        why = "; ".join(f"{c.planner}: {c.note}" for c in self.tried)
        return UnsupportedError("no planner takes this problem", where=where, by=why)


def _excuse(planner: str, error: Exception) -> str:
    if isinstance(error, MissingDependencyError):
        return f"{error.what}: {error.hint}"
    return _failed(planner, f"{type(error).__name__}: {error}")


def _failed(planner: str, why: str) -> str:
    """A note, and a warning for those who can mend the planner."""
    warnings.warn(f"planner {planner!r} failed: {why}", RuntimeWarning, stacklevel=2)
    return f"failed: {why}"
