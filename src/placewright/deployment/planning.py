"""Choose a plan for a model on its workers: calibrate, plan, try the closest plans, keep one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.adapt.run import measured_despite_losses
from placewright.adapt.trials import AHEAD, TrialOutcome
from placewright.deployment.streams import by_period, can_be_copied
from placewright.deployment.workers import MeasuredPlacements, ModelWorkers, on_workers
from placewright.errors import InfeasibleError, PlacewrightError
from placewright.operators.adaptive.run import closest, try_plans
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.pipeline import PLAIN
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.run import best_single
from placewright.operators.streaming.prediction import (
    DEALT,
    copied_devices,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.run import refuse_training, refuse_what_cannot_stream
from placewright.operators.streaming.trials import stream_interference, try_streams
from placewright.planning.candidates import Candidates, Status, TriedPlan
from placewright.planning.parameters import auto_of, opened
from placewright.planning.result import Result
from placewright.planning.solving import AUTO, FixedPlan, judged_plan, solve
from placewright.profiling.calibration import calibrated, interference
from placewright.profiling.profile_warnings import warn_of_shared_cores
from placewright.report.text import seconds

if TYPE_CHECKING:
    from placewright.deployment.workload import Workload
    from placewright.planning.contract import Monitor, Planner
    from placewright.runtime.session import Session

LEAST_S, MOST_S = 1.0, 60.0
"""Time limit of planning where none is given."""

SIZE_S = 2e-3
"""Of that time limit, per operator and device."""

GAP = 0.01
"""A plan whose gap is larger may be worth more time."""

STEPS = 1000
"""Planning takes no longer than it could save in so many steps."""

FIRST_PLAN_S, STREAM_PLAN_S = 5.0, 2.0
"""Time limits of the plans whose steps and streams show how devices slow each other."""

_OF_STEPS: Mapping[str, Any] = {"objective": "latency", "contiguous": False, "pipeline": PLAIN}
"""Of the problem that is calibrated: single steps are executed."""

TRYING = "trying the closest plans"

ROBUST = "ceft+pbqp"
"""Robust baseline whose plan is tried beside those of `auto`."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The plan that is taken, and what it was compared with.

    Attributes
    ----------
    known
        The profile that plans are judged by.
    tried
        Streams that were executed before one was taken.
    others
        Further plans, best first.
    """

    result: Result
    known: InterferenceProfile
    tried: tuple[TriedPlan, ...] = ()
    others: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Chooser:
    """Chooses a plan for a profiled model, on its workers: calibrate, plan, try, keep."""

    workload: Workload
    workers: ModelWorkers
    monitor: Monitor
    seed: int = 0

    def choose(
        self,
        *,
        planner: str | Planner = AUTO,
        plan: OperatorPlan | str | Path | None = None,
        time_limit_s: float | None = None,
        calibrate: bool = True,
        trials: bool = True,
    ) -> Choice:
        """Calibrate the costs, make plans or judge the given one, try the closest, keep the best.

        See `placewright.place` for the parameters. A worker that is lost meanwhile is replaced.
        The workers are closed where it fails.
        """
        try:
            if self.workers.engine.name == "local":
                cluster = self.workload.cluster
                warn_of_shared_cores(cluster.name, cluster.devices)
            known = self.calibrated() if calibrate and self.real else self.profiled()
            if plan is not None:
                return Choice(judged(known, plan), known)
            results = planned(
                known,
                planner,
                time_limit_s=time_limit_s,
                seed=self.seed,
                monitor=self.monitor,
                measure=on_workers(self.workload, self.workers),
                copies=self.copies,
            )
            executable = not (self.streamed and self.workload.captured.program.training)
            choice = Choice(results[0], known)
            if trials and self.real and executable and len(results) > 1:
                choice = self.tried(known, results)
            others = tuple(other for other in results if other.plan is not choice.result.plan)
            return replace(choice, others=others)
        except BaseException:
            self.workers.close()
            raise

    @property
    def real(self) -> bool:
        """Whether steps on the workers say what devices take: those of this machine share it."""
        return self.workers.engine.name != "local" and self.workload.state is not None

    @property
    def streamed(self) -> bool:
        """Whether samples of a stream are what counts."""
        return self.workload.problem.objective is Objective.THROUGHPUT

    @property
    def copies(self) -> bool:
        """Whether copies of the whole model are plans too."""
        return self.streamed and can_be_copied(self.workload)

    def profiled(self) -> InterferenceProfile:
        """The costs as profiled, the same alone and together."""
        return InterferenceProfile.alike(self.workload.problem)

    def calibrated(self) -> InterferenceProfile:
        """The costs of devices alone and beside each other, by whole steps, or by streams too."""
        note, problem = self.monitor.note, self.workload.problem
        known = measured_despite_losses(self._of_steps, note).with_options(problem)
        if not self.streamed:
            return known
        return measured_despite_losses(lambda: self._of_streams(known), note)

    def tried(self, known: InterferenceProfile, results: Sequence[Result]) -> Choice:
        """The fastest of several plans when they are executed: steps, or streams for throughput.

        The plan of `ROBUST` is one of those whose steps are tried. A stream that is taken is judged
        by what its devices took in it.

        Raises `KeyboardInterrupt`: Ctrl-C; says which was the fastest so far.

        `results`: best predicted first.
        """
        trial = self._streams if self.streamed else self._steps
        return measured_despite_losses(lambda: trial(known, results), self.monitor.note)

    def _of_steps(self) -> InterferenceProfile:
        """Calibrate each device alone, then several at a time, which streams do better."""
        problem = self.workload.problem.replace(**_OF_STEPS)
        with self._session("calibrating: whole steps on every device alone") as (session, progress):
            found = calibrated(problem, session)
            known = InterferenceProfile.alike(found.problem)
            if not self.streamed or self.workload.captured.program.training:
                progress("calibrating: devices side by side")
                single = best_single(found.problem)
                with suppress(InfeasibleError):  # planning says why
                    first = solve(found.problem, time_limit_s=FIRST_PLAN_S).demand_finished().plan
                    alone = None if single is None else single.plan
                    known = interference(found.problem, session, first, alone)
        if found.measured:
            self.monitor.note(f"whole steps take, beside the profile: {found}")
        if known.together is not known.alone:
            self.monitor.note(f"operators take, side by side beside alone: {known}")
        return known

    def _of_streams(self, known: InterferenceProfile) -> InterferenceProfile:
        """Calibrate for streams: through several devices and copies, beside a single device.

        As it is where the problem's plans cannot be streamed, or none of them is on several
        devices.
        """
        alike, single = InterferenceProfile.alike(known.alone), best_single(known.alone)
        several: list[Result] = []
        try:
            refuse_what_cannot_stream(known.alone)
            refuse_training(self.workload.graph)
            found = planned(
                alike, AUTO, time_limit_s=STREAM_PLAN_S, seed=self.seed, monitor=self.monitor
            )
            several += [r for r in found if len(np.unique(r.plan.placement)) > 1][:1]
            several += fastest_copies(known.alone) if self.copies else []
        except PlacewrightError:
            return known  # planning says why
        if not several:
            return known
        with self._session("calibrating: a stream through several devices") as (session, _):
            known = stream_interference(known, session, several, single)
        self.monitor.note(f"operators take, in a stream beside alone: {known}")
        return known

    def _steps(self, known: InterferenceProfile, results: Sequence[Result]) -> Choice:
        """The plan with the fastest steps, that of `ROBUST` among them."""
        with suppress(PlacewrightError):
            results = (
                *results,
                _of_its_kind(known, solve(known.together, ROBUST).demand_finished()),
            )
        plans = closest(known, [result.plan for result in results])
        if len(plans) == 1:
            return Choice(results[0], known)
        with self._session(TRYING) as (session, progress):
            found = try_plans(session, known, plans, progress=progress)
        of_plan = {id(result.plan): result for result in results}
        executed = tuple(of_plan[id(plan)] for plan in found.plans)
        outcome = TrialOutcome(executed, found.step_s, found.best, found.ended)
        self._note(outcome)
        rows = _rows(outcome, [result.value for result in executed])
        return Choice(outcome.plan.after_trials(rows), known)

    def _streams(self, known: InterferenceProfile, results: Sequence[Result]) -> Choice:
        """The fastest stream; a split is planned again with what its devices took in it."""
        choice, ended = self._fastest_stream(known, results)
        split = len(np.unique(choice.result.plan.placement)) > 1
        if ended or not split or copied_devices(choice.result.plan):
            return choice
        again, *_ = planned(
            choice.known, AUTO, time_limit_s=STREAM_PLAN_S, seed=self.seed, monitor=self.monitor
        )
        periods_s = [predicted(r.problem, r.plan).period_s for r in (choice.result, again)]
        if periods_s[1] > (1.0 - AHEAD) * periods_s[0]:
            return choice
        before = choice.tried
        choice, _ = self._fastest_stream(choice.known, (choice.result, again))
        return replace(
            choice, tried=(*(replace(each, taken=False) for each in before), *choice.tried)
        )

    def _fastest_stream(
        self, known: InterferenceProfile, results: Sequence[Result]
    ) -> tuple[Choice, str]:
        """The fastest stream, and what ended the trial early."""
        if len(results) == 1:
            return Choice(results[0], known), ""
        with self._session(TRYING) as (session, progress):
            found = try_streams(session, results, seed=self.seed, progress=progress)
        outcome = found.outcome
        taken = outcome.plan
        self._note(outcome, [p.period_s for p in found.predictions])
        rows = _rows(outcome, [p.period_s for p in found.predictions])
        problem = found.measured_problem()
        if problem is not taken.problem:
            known = known.measured(taken.plan, problem)
            taken = _judged_again(taken, problem)
        return Choice(taken.after_trials(rows), known, rows), outcome.ended

    @contextmanager
    def _session(self, what: str) -> Iterator[tuple[Session, Callable[[str], None]]]:
        """The workers' session, and what shows the progress of `what` is done."""
        with (
            self.monitor.meter(what) as meter,
            self.workers.session(self.workload) as session,
        ):
            yield session, meter.step

    def _note(self, outcome: TrialOutcome[Result], predicted_s: Sequence[float] = ()) -> None:
        """Say what each plan took, and give workers up where the trials ended early."""
        name = outcome.plan.planner
        if outcome.ended:
            self.workers.discard()  # one of them may be lost
            self.monitor.note(f"trying plans ended early, {name} is run: {outcome.ended}")
        lines = [
            f"{result.planner} {seconds(step_s)}"
            + (f" ({seconds(predicted_s[k])} predicted)" if predicted_s else "")
            for k, (result, step_s) in enumerate(zip(outcome.plans, outcome.step_s, strict=True))
            if step_s < inf
        ]
        if lines:
            self.monitor.note(f"tried: {', '.join(lines)}; {name} is run")


def _rows(outcome: TrialOutcome[Result], predicted_s: Sequence[float]) -> tuple[TriedPlan, ...]:
    """Of the plans that had a turn."""
    return tuple(
        TriedPlan(result.planner, expected_s, step_s, result is outcome.plan)
        for result, expected_s, step_s in zip(
            outcome.plans, predicted_s, outcome.step_s, strict=True
        )
        if step_s < inf
    )


def fastest_copies(problem: OperatorProblem) -> list[Result]:
    """The plan with copies of the whole model whose stream is predicted to be fastest, if any."""
    dealt = problem.replace(pipeline=DEALT)
    fit = [plan for plan in whole_copies(dealt) if judge(dealt, plan).feasible]
    best = min(fit, key=lambda plan: predicted(dealt, plan).period_s, default=None)
    return [] if best is None else [judged_plan(dealt, best)]


def planned(
    known: InterferenceProfile,
    planner: str | Planner,
    *,
    time_limit_s: float | None,
    seed: int,
    monitor: Monitor,
    measure: MeasuredPlacements | None = None,
    copies: bool = False,
) -> tuple[Result, ...]:
    """Plans made with interference, best first; with `auto` the best single device is one.

    Without a time limit the effort follows the size of the problem, and what is left to gain.

    Raises `KeyboardInterrupt`: Ctrl-C; whoever plans here goes on to execute the plan.

    `copies`: with `auto` and throughput, look at copies of the whole model too.
    """
    problem, auto = known.together, auto_of(opened(planner))
    limit_s = size_limit_s(problem) if time_limit_s is None else time_limit_s
    staged = auto is not None and time_limit_s is None
    if auto is not None and staged:
        planner = replace(auto, steps=min(auto.steps, STEPS))
    with monitor.meter(f"planning {problem.name}, at most {limit_s:g} s") as meter:

        def solved(limit_s: float) -> Result:
            return solve(
                problem,
                planner,
                time_limit_s=limit_s,
                seed=seed,
                progress=meter,
                measure=measure,
            ).demand_finished()

        result = solved(LEAST_S if staged else limit_s)
        longer_s = min(limit_s, STEPS * (result.value - result.lower_bound))
        unfinished = result.status is Status.FEASIBLE and result.gap > GAP
        if staged and unfinished and longer_s > 2 * LEAST_S:
            result = min(solved(longer_s), result, key=lambda each: each.value)
    result = _of_its_kind(known, result)
    single = None if auto is None else best_single(known.alone)
    if single is None:
        return (result,) if auto is None else _for_its_objective(known, (result,), seed, copies)
    # The page compares with what a device takes alone, not beside others.
    others = (c for c in result.candidates if not c.planner.startswith(SINGLE))
    result = replace(result, candidates=Candidates((*others, *single.candidates)))
    found = (single, result) if single.value < result.value else (result, single)
    return _for_its_objective(known, found, seed, copies)


def _for_its_objective(
    known: InterferenceProfile, results: tuple[Result, ...], seed: int, copies: bool
) -> tuple[Result, ...]:
    """Results of `auto`: those of a stream with the shortest predicted period first."""
    if known.together.objective is not Objective.THROUGHPUT:
        return results
    return tuple(by_period(known, results, seed, copies=copies))


def size_limit_s(problem: OperatorProblem) -> float:
    """Seconds that planning takes at most where no time limit is given, by size."""
    return float(min(MOST_S, max(LEAST_S, SIZE_S * problem.n * problem.m)))


def judged(known: InterferenceProfile, plan: OperatorPlan | str | Path) -> Result:
    """A plan that was given, or a plan file, judged as one device or as several.

    Plans of streams may have copies of the whole model.

    Raises `InfeasibleError`: it does not fit; says by how much.
    """
    problem = known.together
    if problem.objective is Objective.THROUGHPUT and problem.pipeline == PLAIN:
        result = judged_plan(problem.replace(pipeline=DEALT), plan)
        if copied_devices(result.plan):
            return judged_plan(known.of(result.plan).replace(pipeline=DEALT), plan)
    result = judged_plan(problem, plan)
    return result if known.of(result.plan) is result.problem else judged_plan(known.alone, plan)


def _judged_again(taken: Result, problem: OperatorProblem) -> Result:
    """A result with the costs that its devices took, and what is then still proved."""
    judged = solve(problem, FixedPlan(taken.plan, name=taken.planner))
    # With no cost less than `least` times as high, no plan's value is less than that of its bound.
    was_s = taken.problem.compute_s
    some = np.isfinite(was_s) & (was_s > 0)
    least = float((problem.compute_s[some] / was_s[some]).min(initial=1.0))
    bound = max(judged.bound, least * taken.bound)
    return replace(
        judged, bound=bound, candidates=taken.candidates, status=Status.FEASIBLE, note=taken.note
    )


def _of_its_kind(known: InterferenceProfile, result: Result) -> Result:
    """The result judged with the costs of its kind of plan: one device, or several."""
    if known.of(result.plan) is result.problem:
        return result
    # What was proved of it was proved with the costs of the other kind.
    return solve(known.alone, FixedPlan(result.plan, name=result.planner))
