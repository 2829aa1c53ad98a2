"""The portfolio: the best plan so far, everything that was tried, and what is proved.

`placewright.solve` decides which planners run, `placewright.planning.solving` runs them; here the
judge scores a plan, and the best one is kept.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from placewright.errors import (
    InfeasibleError,
    InputError,
    MissingDependencyError,
    OutOfTimeError,
    PlacewrightError,
    UnsupportedError,
    described,
)
from placewright.io.arguments import described_value
from placewright.numerics.clocks import CompileClock, Stop
from placewright.planning.candidates import Candidate, Candidates, Outcome, Status
from placewright.planning.contract import (
    Context,
    Direction,
    Judgement,
    Needs,
    Objective,
    Planner,
    Proposal,
    Simplifier,
    needs_of,
    proposal_of,
)
from placewright.planning.wing import Planning, Wing
from placewright.planning.wings import judge_by, valued

PROOF = 1e-6
"""Gap up to which a plan is called optimal, whichever planner proved the bound. Solvers on whole
numbers that have searched to their end state their own resolution."""


INCUMBENT = "incumbent"
"""The candidate that the caller gave."""

QUICK_S = 0.2
"""About what the quick planners take for a small problem."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When planning began, how long it may take, its seed, and what measures plans if any does.

    `steps`: as of `placewright.planning.parameters.Auto`.
    `bounds`: whether bounds of the problem are computed.
    """

    start: float
    time_limit_s: float
    seed: int
    measure: Any = None
    steps: float = math.inf
    bounds: bool = True

    def worth_more(self, clock: CompileClock, gain_s: float) -> bool:
        """Whether planning may go on for what is left to gain, `QUICK_S` in any case."""
        taken_s = time.perf_counter() - self.start - clock.seconds
        return taken_s <= QUICK_S or taken_s <= self.steps * gain_s

    def deadline_s(self, clock: CompileClock, left: int, kept_s: float = 0.0) -> float:
        """When the next of `left` planners must be done: each gets an equal share of what is left.

        What was spent on compiling does not count; `kept_s` is for what comes after planners, a
        share of the limit: without one nothing has to be kept.
        """
        if self.time_limit_s == math.inf:
            return math.inf
        end = self.start + self.time_limit_s + clock.seconds - kept_s
        now = time.perf_counter()
        return now + max(0.0, end - now) / left

    def less(self, kept_s: float) -> Limits:
        """The same without the last seconds."""
        return replace(self, time_limit_s=self.time_limit_s - kept_s)


class Begun:
    """A planner that has begun before its turn, in a thread; when that comes, its answer is taken.

    `planner`: one of those that `runs_beside`. `seconds`: how long it has taken.
    """

    def __init__(self, planner: Planner, problem: Any, context: Context, needs: Needs) -> None:
        self.planner, self.name, self.needs = planner, planner.name, needs
        self.seconds = 0.0
        self._answer: Any = None
        self._error: Exception | None = None
        self._stop = Stop()
        # A loop that nobody waits for must not keep the process from ending.
        self._thread = threading.Thread(target=self._plan, args=(problem, context), daemon=True)
        self._thread.start()

    def _plan(self, problem: Any, context: Context) -> None:
        began = time.perf_counter()
        self._stop.of_this_thread()
        with suppress(OSError):  # on Linux of this thread alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW)
        try:
            self._answer = self.planner(problem, context)
        except Exception as error:  # raised when its turn comes
            self._error = error
        self.seconds = time.perf_counter() - began

    @property
    def at_work(self) -> bool:
        """Whether it has no answer yet."""
        return self._thread.is_alive()

    def unsupported_reason(self, problem: Any) -> str | None:
        """See `Planner`."""
        return self.planner.unsupported_reason(problem)

    def __call__(self, problem: Any, context: Context) -> Any:
        """Its answer, waited for."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer

    def stop(self) -> None:
        """Let it end soon, since nobody needs its answer."""
        self._stop.give()


LOW = 10
"""Niceness of a planner before its turn: the others go first where cores are few."""


@dataclass(slots=True)
class Portfolio:
    """The best plan so far and everything that was tried.

    Attributes
    ----------
    clock
        Seconds spent compiling, which are no planner's.
    tolerant
        Whether a planner that fails, or lacks an optional package, only costs itself.
    named
        Whether planners were named, whose packages must be there.
    bounds
        What no plan can beat, by name; planners add what they prove.
    proved_up_to
        Values up to it are optimal within the resolution of the solver that proved it.
    objective
        A function of a judgement that gives the value in the wing's place; ``None`` for the wing's.
    started_from
        The planner whose plan the best one was given to start from, empty if none.
    judging_s
        The longest time that the judge has taken for a plan.
    overrun_s
        CPU seconds that planners have taken beyond the time limit.
    simplified
        How the best plan was replaced by a simpler one, empty if it was not.
    """

    wing: Wing
    problem: Any
    clock: CompileClock
    tolerant: bool = False
    named: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    best: Proposal[Any] | None = None
    best_judgement: Any = None
    best_planner: str = ""
    started_from: str = ""
    simplified: str = ""
    tried: list[Candidate] = field(default_factory=list)
    nearest_miss: str = ""
    missed_by: float = math.inf
    judging_s: float = 0.0
    overrun_s: float = 0.0
    objective: Objective | None = None
    planning: Planning = field(init=False)
    judge: Callable[[Any, Any], Judgement] = field(init=False)
    unproved: float = field(init=False)
    direction: Direction = field(init=False)
    proved_up_to: float = field(init=False)

    def __post_init__(self) -> None:
        self.planning, self.direction = self.wing.planning(), self.wing.direction
        self.judge = judge_by(self.planning, self.objective)
        # Nothing is known of the values of an objective of the caller's own.
        unknown = self.objective is not None or self.wing.signed
        self.unproved = -self.direction.worst if unknown else self.direction.unproved
        self.proved_up_to = -self.direction.worst

    @property
    def value(self) -> float:
        """Of the best plan; `Direction.worst` before there is one."""
        return self.direction.worst if self.best is None else float(self.best_judgement.value)

    @property
    def bound(self) -> float:
        """The tightest bound."""
        return self.direction.tightest(self.bounds.values()) if self.bounds else self.unproved

    @property
    def closed(self) -> bool:
        """Whether nothing can be better."""
        return self.best is not None and self._optimal(self.value)

    def _optimal(self, value: float) -> bool:
        within = self._worse(self.bound)
        limit = self.direction.tightest((within, self.proved_up_to))
        return not self.direction.better(limit, value)

    def give(self, plan: Any) -> None:
        """Enter the plan that the caller gave to begin with.

        Raises `InputError`: it is no plan of the problem.
        Raises `Exception`: that of the caller's objective; where `tolerant` it is noted instead.
        """
        try:
            judgement = self.planning.judge(self.problem, plan)
        except InfeasibleError as error:
            self.leave_out(INCUMBENT, Outcome.DOES_NOT_FIT, str(error.what))
            self.nearest_miss = error.brief
            return
        if self.objective is not None:
            try:
                judgement = valued(judgement, self.objective)
            except Exception as error:  # ends its own row, as that of a planner's plan
                if not self.tolerant:
                    raise
                self.leave_out(INCUMBENT, *_failure_note(INCUMBENT, error))
                return
        self._enter(INCUMBENT, Proposal(plan), judgement, 0.0, relayed=False)

    def run(
        self, planner: Planner, context: Context, name: str = "", end_s: float = math.inf
    ) -> bool:
        """Run one planner: plan, judge, keep if better. True if it was interrupted.

        `name`: of the candidate; the planner's own by default.
        `end_s`: ``time.perf_counter()`` value at which the time limit is reached; what is taken
        after it is added to `overrun_s`.
        Raises `Exception`: the planner's own, or a package that is missing; where `tolerant` it is
        noted instead.
        """
        name = name or planner.name
        late_s, cpu_s = max(0.0, time.perf_counter() - end_s), time.thread_time()
        end_s -= self.clock.seconds
        try:
            return self._run(planner, context, name)
        finally:
            over_s = max(0.0, self._now_s() - end_s) - late_s
            self.overrun_s += min(over_s, time.thread_time() - cpu_s)

    def _run(self, planner: Planner, context: Context, name: str) -> bool:
        """A planner whose time went into compiling plans again, with the time that it lacked."""
        began, compiled_s = self._now_s(), self.clock.seconds
        try:
            reason = planner.unsupported_reason(self.problem)
            if reason is not None:
                self.leave_out(name, Outcome.UNSUPPORTED, reason)
                return False
            proposal = self._proposal(planner(self.problem, context), name)
            compiling_s = self.clock.seconds - compiled_s
            if compiling_s > max(0.0, context.remaining_s()) and not proposal.interrupted:
                return self._run(planner, context.later(compiling_s), name)
            planned = self._now_s()
            took_s = planner.seconds if isinstance(planner, Begun) else planned - began
            judgement = self.judge(self.problem, proposal.plan)
            self.judging_s = max(self.judging_s, self._now_s() - planned)
        except KeyboardInterrupt:
            why = "interrupted before it had a plan"
            self.leave_out(name, Outcome.INTERRUPTED, why, self._now_s() - began)
            return True
        except OutOfTimeError as error:
            compiling_s = self.clock.seconds - compiled_s
            if compiling_s > 0:
                return self._run(planner, context.later(compiling_s), name)
            self.leave_out(name, Outcome.NOT_RUN, str(error.what), self._now_s() - began)
            return False
        except InfeasibleError as error:
            self.leave_out(name, Outcome.DOES_NOT_FIT, str(error.what), self._now_s() - began)
            self.nearest_miss = self.nearest_miss or error.brief
            return False
        except Exception as error:  # a plug-in's defect must not lose what others have found
            self.failed(planner, name, error, self._now_s() - began)
            return False
        relayed = context.incumbent is not None
        self._enter(name, proposal, judgement, took_s, relayed=relayed)
        return proposal.interrupted

    def _proposal(self, answer: Any, name: str) -> Proposal[Any]:
        """A planner's answer.

        Raises `InputError`: it is no plan of the wing.
        """
        proposal, kind = proposal_of(answer), self.wing.plan_type()
        if not isinstance(proposal.plan, kind):
            raise InputError(
                f"must answer with a {kind.__name__}",
                where=f"planner {name!r}",
                by=f"got {described_value(proposal.plan)}",
                hint="return a plan, or a Proposal with one",
            )
        return proposal

    def needs(self, planner: Planner, name: str) -> Needs | None:
        """What a planner estimates that it needs; ``None`` where that failed."""
        try:
            return needs_of(planner, self.problem)
        except Exception as error:  # ends its own row, as when it plans
            self.failed(planner, name, error)
            return None

    def failed(self, planner: Planner, name: str, error: Exception, took_s: float = 0.0) -> None:
        """Note that a planner raised; where it may not, raise that."""
        missing = self.named and isinstance(error, MissingDependencyError)
        if missing or not self.tolerant:
            if name == planner.name or isinstance(error, PlacewrightError):
                raise error
            what = "fails with these parameters"
            raise InputError(what, where=name, by=described(error)) from error
        self.leave_out(name, *_failure_note(name, error), took_s)

    def simplify(self, simplifier: Simplifier, given: float | None, limits: Limits) -> bool:
        """Replace the best plan by the simplest of about its value. True if interrupted.

        `given`: the tolerance, ``None`` for that of the simplifier.
        """
        if self.best is None:
            return False
        tolerance = simplifier.tolerance(self.problem, self.best.plan) if given is None else given
        best, sign = self.value, self.direction.sign
        for c in self.tried:
            if c.fits and c.planner in (*simplifier.never_behind, INCUMBENT) and best > 0:
                tolerance = min(tolerance, max(0.0, sign * (c.value / best - 1)))
        factor = 1 + sign * tolerance
        near = [c for c in self.tried if c.fits and not self._worse_by(c.value, factor)]
        near.sort(key=lambda c: (c.plan is not self.best_plan, sign * c.value))
        context = Context(limits.seed, limits.deadline_s(self.clock, 1), self.judge)
        began = self._now_s()
        try:
            plans = [c.plan for c in near]
            proposal = proposal_of(simplifier(self.problem, plans, tolerance, context))
            judgement = self.judge(self.problem, proposal.plan)
        except KeyboardInterrupt:
            return True
        except Exception as error:  # the plan that is there must not be lost
            if not self.tolerant:
                raise
            self.leave_out(simplifier.name, *_failure_note(simplifier.name, error))
            return False
        if not judgement.feasible or self._worse_by(float(judgement.value), factor):
            return False
        known = next((c for c in near if c.plan is proposal.plan), None)
        name = simplifier.name if known is None else known.planner
        if name == self.best_planner:
            return False
        if known is None:
            took_s = self._now_s() - began
            value, note = float(judgement.value), proposal.note
            self.tried.append(Candidate(name, value, Outcome.FITS, took_s, note, proposal))
        worse = sign * (float(judgement.value) / best - 1) if best else 0.0
        self.simplified = _simpler_note(name, self.best_planner, worse, tolerance, given is None)
        self.best = proposal if known is None else known.proposal
        self.best_judgement, self.best_planner = judgement, name
        return False

    def _now_s(self) -> float:
        """Seconds of a clock that stands still while kernels are compiled."""
        return time.perf_counter() - self.clock.seconds

    @property
    def given_plan(self) -> Any:
        """The plan that the caller gave to start from, ``None`` where it does not fit."""
        return next((c.plan for c in self.tried if c.planner == INCUMBENT and c.fits), None)

    @property
    def best_plan(self) -> Any:
        """``None`` before there is one."""
        return None if self.best is None else self.best.plan

    def _worse_by(self, value: float, factor: float) -> bool:
        """Whether a value is worse than the best one by more than a share."""
        return self.direction.better(self.value * factor, value)

    def leave_out(self, name: str, outcome: Outcome, why: str, took_s: float = 0.0) -> None:
        """Note a planner that gave no plan."""
        self.tried.append(Candidate(name, self.direction.worst, outcome, took_s, why))

    def _enter(
        self,
        name: str,
        proposal: Proposal[Any],
        judgement: Judgement,
        took_s: float,
        *,
        relayed: bool,
    ) -> None:
        """Note a judged plan, keep it if it is better."""
        value, note = float(judgement.value), proposal.note or judgement.violation
        outcome = Outcome.FITS if judgement.feasible else Outcome.DOES_NOT_FIT
        if proposal.interrupted and judgement.feasible:
            outcome, note = Outcome.INTERRUPTED, "interrupted"
        if self.objective is not None:  # what was proved is about another one
            proposal = replace(proposal, bound=None, resolution=0.0)
        claim = self._contradiction(proposal, value if judgement.feasible else self.direction.worst)
        if claim:
            note, proposal = _failed(name, claim), replace(proposal, bound=None, resolution=0.0)
        self._prove(name, proposal)
        self.tried.append(Candidate(name, value, outcome, took_s, note, proposal))
        if not judgement.feasible:
            over = float(judgement.violation_size)
            if not self.nearest_miss or over < self.missed_by:
                self.nearest_miss, self.missed_by = judgement.violation, over
        elif self.direction.better(value, self.value):
            self.started_from = self.best_planner if relayed else ""
            self.best, self.best_judgement, self.best_planner = proposal, judgement, name
            self._drop_refuted()

    def _contradiction(self, proposal: Proposal[Any], value: float) -> str:
        """Why a claimed bound is wrong: no number, or beaten by its own or the best plan."""
        bound = proposal.bound
        for whose, known in (("its own plan's", value), (f"{self.best_planner}'s", self.value)):
            if bound is not None and (not math.isfinite(bound) or self._beats(known, bound)):
                return f"its bound {bound:g} contradicts {whose} value {known:g}"
        return ""

    def _beats(self, value: float, bound: float) -> bool:
        """Whether no rounding explains that a plan is better than a bound."""
        return self.direction.better(self._worse(value), bound)

    def _worse(self, value: float) -> float:
        """A value that is worse by the share `PROOF`; values may be negative."""
        return value * (1 + self.direction.sign * math.copysign(PROOF, value))

    def add_bounds(self, found: Mapping[str, float] | Iterable[tuple[str, float]]) -> None:
        """Take bounds by name; those that come before an error or Ctrl-C stay."""
        try:
            self.bounds.update(found)
        finally:
            self._drop_refuted()

    def _drop_refuted(self) -> None:
        """Forget the bounds that the best plan beats, and warn of them."""
        for name in [n for n, bound in self.bounds.items() if self._beats(self.value, bound)]:
            claim = f"{self.bounds.pop(name):g} contradicts {self.best_planner}'s value"
            warnings.warn(
                f"bound {name!r} is left out: {claim} {self.value:g}", RuntimeWarning, stacklevel=2
            )
            self.proved_up_to = -self.direction.worst

    def _prove(self, name: str, proposal: Proposal[Any]) -> None:
        """Keep what was proved, where it is more than was known."""
        if proposal.bound is None:
            return
        if self.direction.better(self.bound, proposal.bound):
            self.bounds[name] = proposal.bound
        if proposal.resolution > 0:
            limit = proposal.bound + self.direction.sign * proposal.resolution
            self.proved_up_to = self.direction.tightest((self.proved_up_to, limit))

    def candidates(self) -> Candidates:
        """All that was tried; plans whose value the final bound reaches are optimal."""
        return Candidates(
            replace(c, outcome=Outcome.OPTIMAL) if c.fits and self._optimal(c.value) else c
            for c in self.tried
        )

    def status(self, interrupted: bool) -> Status:
        """What is known about the best plan."""
        if self.closed:
            return Status.OPTIMAL
        return Status.INTERRUPTED if interrupted else Status.FEASIBLE

    def why(self) -> str:
        """Which planner won, from where, by how much, and which packages were missing."""
        text = self.simplified or f"{self.best_planner} won{self._margin()}"
        if self.started_from and not self.simplified:
            text += f"; it started from the plan of {self.started_from}"
        if self.closed:
            text += "; nothing can be better"
            text += f" ({self._tightest()} bound)" if self.bounds else ""
        elif self.bounds and self.bound and self.bound != self.unproved:
            off = 100 * abs(self.value / self.bound - 1)
            side = "above" if self.direction is Direction.MINIMISE else "below"
            text += f"; at most {off:.1f} % {side} the best ({self._tightest()} bound)"
        missing = [
            f"{c.planner} ({c.note})" for c in self.tried if c.outcome is Outcome.MISSING_PACKAGE
        ]
        return text + (f"; not run: {', '.join(missing)}" if missing else "")

    def _margin(self) -> str:
        """How far the next best plan that fits is behind."""
        others = [c for c in self.tried if c.fits and c.planner != self.best_planner]
        if not others:
            return ""
        second = min(others, key=lambda c: self.direction.sign * c.value)
        off = 100 * abs(1 - self.value / second.value) if second.value > 0 else 0.0
        side = "below" if self.direction is Direction.MINIMISE else "above"
        behind = f"{off:.1f} % {side} {second.planner}" if off > 0 else f"as {second.planner}"
        return f": {behind}, the best of {len(others)} others"

    def _tightest(self) -> str:
        """Name of the tightest bound."""
        return max(self.bounds, key=lambda name: self.direction.sign * self.bounds[name])

    def no_plan(self, interrupted: bool) -> PlacewrightError | KeyboardInterrupt:
        """What to raise where no planner found a plan."""
        where = str(self.problem.name)
        if interrupted:
            done = (c.planner for c in self.tried if c.outcome is not Outcome.INTERRUPTED)
            ended = ", ".join(done)
            why = f"{ended} had ended, and gave none that fits" if ended else "no planner had ended"
            return KeyboardInterrupt(f"there is no plan of {where} yet: {why}")
        if self.nearest_miss:
            return InfeasibleError(
                "no plan that fits was found",
                where=where,
                by=self.nearest_miss,
                hint="raise a memory limit, add a device, or try --planner auto with more time",
            )
        useless = [c.planner for c in self.tried if c.outcome is Outcome.FITS]
        if useless:
            return InfeasibleError(
                "no plan has a finite value",
                where=where,
                by=f"those of {', '.join(useless)}",
                hint="let the objective tell plans apart: math.inf is for useless ones",
            )
        why = "; ".join(f"{c.planner}: {c.note}" for c in self.tried)
        return UnsupportedError("no planner takes this problem", where=where, by=why)


def _simpler_note(name: str, best: str, worse: float, tolerance: float, known: bool) -> str:
    """What the simplifier's plan costs, as a share of the value of the best one before it.

    `known`: whether the tolerance is what the judge is known to err by.
    """
    off = f"{100 * abs(worse):.2f} %"
    if off == "0.00 %":
        return f"{name} is simpler than {best}, at its value"
    if worse < 0:  # its steps may find a better plan of the same complexity
        return f"{name} is as simple as {best} or simpler, and {off} better"
    within = f"auto takes the simplest plan within {100 * tolerance:.2g} %"
    within += ", which is what predictions of such plans are known to err by" if known else ""
    return f"{name} is simpler, and {off} worse than {best}, the best ({within})"


def _failure_note(planner: str, error: Exception) -> tuple[Outcome, str]:
    if isinstance(error, MissingDependencyError):
        return Outcome.MISSING_PACKAGE, f"{error.what}: {error.hint}"
    return Outcome.FAILED, _failed(planner, described(error))


def _failed(planner: str, why: str) -> str:
    """A note, and a warning for those who can mend the planner."""
    warnings.warn(f"planner {planner!r} failed: {why}", RuntimeWarning, stacklevel=2)
    return f"failed: {why}"
