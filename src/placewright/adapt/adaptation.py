"""Between two steps: what has changed, is a better plan worth it, did the last move pay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from placewright.adapt.decide import WARM_UP_STEPS, Offer, Policy, move_cost
from placewright.adapt.drift import Drift
from placewright.adapt.observed import Observed
from placewright.adapt.online_profile import RECENT, OnlineProfile
from placewright.adapt.recovery_probe import RecoveryProbe
from placewright.adapt.replan import Replanner
from placewright.adapt.timeline import Kind, Timeline
from placewright.adapt.tryout import Tryout
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import execution_order
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord

LATE = 10.0
"""A migration that takes so many times what was predicted is stuck."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A migration that has still to show that it pays."""

    before: OperatorPlan
    before_s: float
    promised: float
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
    tryout
        Plans that are tried before anything else, ``None`` for none or when it is over.
    observed
        What the run has seen under other sessions.
    """

    session: Session
    problem: OperatorProblem
    plan: OperatorPlan
    policy: Policy
    timeline: Timeline
    replanner: Replanner
    tryout: Tryout | None = None
    observed: Observed = field(default_factory=Observed)
    watch: OnlineProfile = field(init=False)
    recovery_probe: RecoveryProbe = field(init=False)
    drift: Drift = field(init=False)
    trial: Trial | None = None
    _alarm: int = 0
    _since_sample: int = 0
    _confirmed: int = 0
    _refused: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.watch = OnlineProfile(self.problem, self.observed)
        self.recovery_probe = RecoveryProbe(self.session, self.watch, self.policy.look_share)
        self.drift = Drift(self.policy.tolerance)

    @property
    def watches_next(self) -> bool:
        """Whether the next step should be watched."""
        if self.tryout is not None:
            return False
        first_calm = self.drift.settled and not self.watch.knows_usual
        return first_calm or self._alarm > 0 or self._since_sample >= self.policy.sample_every

    def stepped(self, record: StepRecord, watched: bool, step: int, remaining: float) -> None:
        """Take in a step; may migrate.

        Raises
        ------
        WorkerError
            A worker was lost meanwhile.
        """
        if self.tryout is not None:
            self._try(self.tryout, record.duration_s, step, remaining)
            return
        self._since_sample += 1
        left = self.drift.note(record.duration_s)
        if watched:
            self.watch.saw_steps([record])
            self._since_sample = 0
        if self.trial is not None:
            self._judge_trial(step)
        elif self._alarm > 0:
            self._alarm -= 1
            if self._alarm == 0:
                self._consider(step, remaining, alarmed=True)
        elif left:
            self._raise_alarm(step)
        elif watched and self.drift.settled:
            if self.watch.knows_usual:
                self._look_again(step, remaining)
            else:
                self.watch.saw_calm()

    def _try(self, tryout: Tryout, seconds: float, step: int, remaining: float) -> None:
        """A step of the tryout; at its end the fastest plan comes into force."""
        if not tryout.took(seconds):
            return
        turn = tryout.next(remaining)
        plan = tryout.plans[tryout.best if turn is None else turn]
        if plan is not self.plan:
            tryout.moved(self._put(plan, move_cost(self.problem, self.plan, plan)[0])[0])
        if turn is None:
            self._end_tryout(tryout, step)

    def _end_tryout(self, tryout: Tryout, step: int) -> None:
        """Go on with what was measured: what steps should take, and which plans were slower."""
        self.tryout = None
        self.drift.expect(tryout.standings.median_s(tryout.best))
        self._refused |= {p.placement.tobytes() for p in tryout.plans if p is not self.plan}
        self.timeline.note(step, Kind.TRY, tryout.told())

    def _raise_alarm(self, step: int) -> None:
        change = self.drift.change
        self.timeline.note(
            step,
            Kind.DRIFT,
            f"steps take {100 * abs(change):.0f} % {'longer' if change > 0 else 'less'}",
            before_s=self.drift.reference_s,
            now_s=self.drift.recent_s,
        )
        self.watch.forget()
        self.recovery_probe.all_round(self.plan)
        self._begin_anew()

    def _look_again(self, step: int, remaining: float) -> None:
        """While steps are as they were: what was left for being slow may be fast again."""
        faster = self.recovery_probe.recovered(self.plan)
        if not faster:
            self._consider(step, remaining, alarmed=False)
            return
        self.timeline.note(step, Kind.DRIFT, ", ".join(faster))
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Something has changed: the next steps are watched, and every plan may be taken."""
        self._refused.clear()
        self._alarm, self._confirmed = RECENT, 0

    def _consider(self, step: int, remaining: float, *, alarmed: bool) -> None:
        """Plan again at the costs that were seen; move when it looks worthwhile often enough."""
        offer = self.replanner.offer(self.watch.problem(), self.plan)
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
        seconds, moved = self._put(offer.plan, offer.move_s)
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
        self.trial = Trial(before, before_s, offer.gain, offer.move_s)

    def _judge_trial(self, step: int) -> None:
        """Keep the plan if its steps are shorter than the old one's, else go back."""
        assert self.trial is not None
        if self.timeline.plan.count(self.timeline.plans) < WARM_UP_STEPS + self.policy.trial_steps:
            return
        trial, self.trial = self.trial, None
        now_s = self.timeline.typical_s(self.policy.trial_steps)
        if now_s <= trial.before_s:
            self._tell_trial(step, Kind.KEEP, trial, now_s)
            return
        self._refused.add(self.plan.placement.tobytes())
        self._put(trial.before, trial.move_s)
        self._tell_trial(step, Kind.ROLL_BACK, trial, now_s)

    def _tell_trial(self, step: int, kind: Kind, trial: Trial, now_s: float) -> None:
        """What a migration had promised, and what it gave."""
        self.timeline.note(
            step,
            kind,
            "",
            predicted_gain=trial.promised,
            measured_gain=1.0 - now_s / trial.before_s,
            before_s=trial.before_s,
            now_s=now_s,
        )

    def _put(self, plan: OperatorPlan, move_s: float) -> tuple[float, int]:
        """Bring a plan into force, in `move_s` seconds by prediction; seconds and bytes it took."""
        start = time.perf_counter()
        problem = self.watch.problem()
        order = execution_order(problem, judge(problem, plan))
        limit_s = self.session.group.limit_s + LATE * move_s
        moved = self.session.migrate(plan.placement.tolist(), order, limit_s=limit_s)
        self.plan = plan
        self.timeline.plans += 1
        self._confirmed = 0
        self.drift.restart()
        return time.perf_counter() - start, moved
