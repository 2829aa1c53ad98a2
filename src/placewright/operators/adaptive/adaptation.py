"""The controller of a run's session: detects changes, plans again, migrates, rolls back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placewright.adapt.drift import Drift
from placewright.adapt.timeline import Kind, Timeline
from placewright.adapt.trials import WARM_UP_STEPS, SuccessiveElimination
from placewright.operators.adaptive.online_profile import RECENT, Observed, OnlineProfile
from placewright.operators.adaptive.policy import Offer, Policy, move_cost
from placewright.operators.adaptive.recovery_probe import RecoveryProbe
from placewright.operators.adaptive.replanner import Replanner
from placewright.operators.judge import judge
from placewright.operators.measuring import execution_order
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord

STUCK = 10.0
"""A migration that takes so many times its prediction is stuck."""


@dataclass(frozen=True, slots=True)
class PendingMigration:
    """A migration whose gain has still to be measured."""

    before: OperatorPlan
    before_s: float
    predicted_gain: float
    move_s: float


@dataclass(slots=True)
class Adaptation:
    """Watches one session and migrates it.

    Attributes
    ----------
    problem
        As profiled, for the session's devices.
    plan
        In force.
    candidates
        Plans that are tried before anything else, `plan` first; none for no trials.
    observed
        What the run has measured under other sessions.
    trials
        Of the candidates; ``None`` for none or when they are over.
    pending
        The last migration, until it is known whether it paid.
    """

    session: Session
    problem: OperatorProblem
    plan: OperatorPlan
    policy: Policy
    timeline: Timeline
    replanner: Replanner
    candidates: Sequence[OperatorPlan] = ()
    observed: Observed = field(default_factory=Observed)
    online: OnlineProfile = field(init=False)
    recovery_probe: RecoveryProbe = field(init=False)
    drift: Drift = field(init=False)
    trials: SuccessiveElimination | None = None
    pending: PendingMigration | None = None
    _alarm: int = 0
    _since_sample: int = 0
    _confirmed: int = 0
    _refused: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.online = OnlineProfile(self.problem, self.observed)
        self.recovery_probe = RecoveryProbe(self.session, self.online, self.policy.look_share)
        self.drift = Drift(self.policy.tolerance)
        if len(self.candidates) > 1:
            self.trials = SuccessiveElimination(len(self.candidates))

    @property
    def watches_next(self) -> bool:
        """Whether the next step should be watched operator by operator."""
        if self.trials is not None:
            return False
        first_calm = self.drift.settled and not self.online.knows_usual
        return first_calm or self._alarm > 0 or self._since_sample >= self.policy.sample_every

    def predicted_s(self) -> float:
        """Predicted seconds of a step of the plan in force, at the costs that were measured."""
        return judge(self.online.problem(), self.plan).value

    def save_state(self, folder: Path) -> None:
        """Write everything that steps have changed into safetensors files."""
        self.session.save_state(folder)

    def random_state(self) -> bytes:
        """State of the generator that draws the steps' random numbers."""
        return self.session.random_state()

    def placement(self) -> dict[str, str]:
        """Operator -> device of the plan in force."""
        devices = [self.problem.device_names[d] for d in self.plan.placement]
        return dict(zip(self.problem.operator_names, devices, strict=True))

    def stepped(self, record: StepRecord, watched: bool, step: int, remaining: float) -> None:
        """Take in a step; may migrate.

        Raises `WorkerError`: a worker was lost meanwhile.
        """
        if self.trials is not None:
            self._try(self.trials, record.duration_s, step, remaining)
            return
        self._since_sample += 1
        drifted = self.drift.note(record.duration_s)
        if watched:
            self.online.add_steps([record])
            self._since_sample = 0
        # One thing at a time: while a migration is on trial nothing is planned, and while an alarm
        # lasts steps are watched.
        if self.pending is not None:
            self._conclude(self.pending, step)
        elif self._alarm > 0:
            self._alarm -= 1
            if self._alarm == 0:
                self._consider(step, remaining, alarmed=True)
        elif drifted:
            self._raise_alarm(step)
        elif watched and self.drift.settled:
            if self.online.knows_usual:
                self._look_for_recovery(step, remaining)
            else:
                self.online.add_calm()

    def _try(
        self, trials: SuccessiveElimination, seconds: float, step: int, remaining: float
    ) -> None:
        """Take in a step of the trials; at their end the fastest plan comes into force."""
        if not trials.took(seconds):
            return
        turn = trials.next(remaining)
        plan = self.candidates[trials.best if turn is None else turn]
        if plan is not self.plan:
            trials.moved(self._switch(plan, move_cost(self.problem, self.plan, plan)[0])[0])
        if turn is None:
            self.trials = None
            self.drift.expect(trials.times.median_s(trials.best))
            slower = [p for p in self.candidates if p is not self.plan]
            self._refused |= {p.placement.tobytes() for p in slower}
            self.timeline.note(step, Kind.TRY, trials.summary())

    def _raise_alarm(self, step: int) -> None:
        change = self.drift.change
        self.timeline.note(
            step,
            Kind.DRIFT,
            f"steps take {100 * abs(change):.0f} % {'longer' if change > 0 else 'less'}",
            before_s=self.drift.reference_s,
            now_s=self.drift.recent_s,
        )
        self.online.forget()
        self.recovery_probe.all_round(self.plan)
        self._begin_anew()

    def _look_for_recovery(self, step: int, remaining: float) -> None:
        """While step times are unchanged: devices evacuated for being slow may be fast again."""
        faster = self.recovery_probe.recovered(self.plan)
        if not faster:
            self._consider(step, remaining, alarmed=False)
            return
        self.timeline.note(step, Kind.DRIFT, ", ".join(faster))
        self._begin_anew()

    def _begin_anew(self) -> None:
        """After a change: watch the next steps and allow every plan again."""
        self._refused.clear()
        self._alarm, self._confirmed = RECENT, 0

    def _consider(self, step: int, remaining: float, *, alarmed: bool) -> None:
        """Plan again at the measured costs; migrate when that looks worthwhile often enough."""
        offer = self.replanner.offer(self.online.problem(), self.plan)
        refused = offer.plan.placement.tobytes() in self._refused
        if refused or not offer.worthwhile(remaining, self.policy):
            if alarmed:
                self._stay(step, offer, remaining)
            self._confirmed = 0
            return
        self._confirmed += 1
        if self._confirmed < self.policy.confirmations:
            self._alarm = RECENT  # look again at other steps
            return
        self._migrate(step, offer)

    def _stay(self, step: int, offer: Offer, remaining: float) -> None:
        least = 100 * self.policy.least_gain
        text = f"planned again: none is faster by {least:.0f} %, from which a move pays"
        if offer.gain > self.policy.least_gain:
            text = f"not worth the move, {remaining:.0f} steps before the end"
        solve_s = self.replanner.last_solve_s
        self.timeline.note(step, Kind.STAY, text, best_gain=offer.gain, resolve_s=solve_s)
        self.drift.accept()

    def _migrate(self, step: int, offer: Offer) -> None:
        before, before_s = self.plan, self.drift.recent_s
        seconds, moved = self._switch(offer.plan, offer.move_s)
        self.timeline.note(
            step,
            Kind.MIGRATE,
            "planned again",
            predicted_gain=offer.gain,
            predicted_s=offer.new_s,
            move_s=seconds,
            moved_bytes=moved,
            resolve_s=self.replanner.last_solve_s,
        )
        self.pending = PendingMigration(before, before_s, offer.gain, offer.move_s)

    def _conclude(self, migration: PendingMigration, step: int) -> None:
        """Keep the new plan if its steps are shorter than the old one's, else roll back."""
        # Steps that were done under the plan in force.
        if self.timeline.plan.count(self.timeline.plans) < WARM_UP_STEPS + self.policy.trial_steps:
            return
        self.pending = None
        now_s = self.timeline.typical_s(self.policy.trial_steps)
        kind = Kind.KEEP if now_s <= migration.before_s else Kind.ROLL_BACK
        if kind is Kind.ROLL_BACK:
            self._refused.add(self.plan.placement.tobytes())
            self._switch(migration.before, migration.move_s)
        self.timeline.note(
            step,
            kind,
            "",
            predicted_gain=migration.predicted_gain,
            measured_gain=1.0 - now_s / migration.before_s,
            before_s=migration.before_s,
            now_s=now_s,
        )

    def _switch(self, plan: OperatorPlan, move_s: float) -> tuple[float, int]:
        """Bring a plan into force, predicted to take `move_s`; seconds and bytes that it took."""
        start = time.perf_counter()
        problem = self.online.problem()
        judgement = judge(problem, plan)
        order = execution_order(problem, judgement)
        moved = self.session.migrate(
            plan.placement.tolist(),
            order,
            peak_bytes=judgement.peak_bytes.tolist(),
            limit_s=self.session.group.limit_s + STUCK * move_s,
        )
        self.plan = plan
        self.timeline.plans += 1
        self._confirmed = 0
        self.drift.restart()
        return time.perf_counter() - start, moved
