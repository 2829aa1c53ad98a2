"""The controller of a run's session: detects changes, plans again, migrates, rolls back.

A recovery probe measures devices with little work and idle links, which step times do not show.
A device that was evacuated because it had become slow changes no step when it is fast again. So it
is probed now and then, and only it: in a run in which nothing has become slow nothing is probed.

`AdaptationPolicy` sets the gain over the remaining steps against the cost of a migration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from placewright.adapt.device_factors import Drift
from placewright.adapt.timeline import Kind, Timeline
from placewright.adapt.trials import WARM_UP_STEPS, SuccessiveElimination
from placewright.io.arguments import Count, Share, checked
from placewright.numerics.arrays import BoolArray, FloatArray
from placewright.operators.adaptive.online_profile import ENOUGH, RECENT, Observed, OnlineProfile
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pbqp import CeftPbqp, CeftPbqpState
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import execution_order
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.runtime.probe import LARGE
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
    policy: AdaptationPolicy
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


SCRATCH_S = 10.0
"""Time limit of a plan from scratch."""


@dataclass(slots=True)
class Replanner:
    """CEFT+PBQP that keeps its last state, so that a re-solve takes milliseconds.

    `last_solve_s`: seconds that the last re-solve took.
    """

    planner: CeftPbqp = field(default_factory=CeftPbqp)
    seed: int = 0
    last_solve_s: float = 0.0
    _state: CeftPbqpState | None = None

    def from_scratch(self, problem: OperatorProblem) -> OperatorPlan:
        """Plan without regard to the plan in force.

        Raises `InfeasibleError`: nothing fits on these devices.
        """
        result = solve(problem, self.planner, time_limit_s=SCRATCH_S, seed=self.seed)
        self._state = None
        plan: OperatorPlan = result.demand_finished().plan
        return plan

    def offer(self, problem: OperatorProblem, current: OperatorPlan) -> Offer:
        """Find the best plan at these costs from `current`, in milliseconds."""
        start = time.perf_counter()
        context = Context(seed=self.seed, judge=judge)
        if self._state is None or self._state.problem.device_names != problem.device_names:
            _, self._state = self.planner.solve(problem, context)  # prices are by device
            # Prices are made once per set of devices: they are no part of what a re-solve takes.
            start = time.perf_counter()
        state = replace(self._state, plan=current)
        plan, self._state = self.planner.resolve(problem, state, context)
        self.last_solve_s = time.perf_counter() - start
        now, then = judge(problem, current), judge(problem, plan)
        if not then.feasible or then.value >= now.value:
            plan, then = current, now
        move_s, moved = move_cost(problem, current, plan)
        return Offer(plan, now.value, then.value, move_s, moved)


LITTLE = 2 * ENOUGH
"""Share of a step under which a device is probed; twice what the steps need to show its factor."""

SLOW, SLOW_LINK = 1.5, 3.0
"""An idle device or link that takes so many times longer than profiled is probed. Busy cores make a
link's round trips twice as long, which is no loss of the link's."""

FAST_AGAIN, FAST_LINK = 0.75, 0.5
"""A probe over the one before, by more than noise explains."""


@dataclass(slots=True)
class RecoveryProbe:
    """Probes one session for its online profile.

    `share`: of the time, that `recovered` may take.
    """

    session: Session
    online: OnlineProfile
    share: float
    _took_s: float = 0.0
    _probed_s: float = -math.inf

    def baseline(self) -> None:
        """Measure how fast the devices are when a run first uses them."""
        known = self.online.observed.first_probe_s
        if not known.keys() >= set(self._names):
            self._slowness()

    def all_round(self, plan: OperatorPlan) -> None:
        """Probe every device, which is all that is known of idle ones, and every link."""
        with self._timed():
            working = set(plan.placement.tolist())
            for device, slowness in enumerate(self._slowness()):
                self.online.add_probe(device, slowness, idle=device not in working)
            for link in self.session.probe_links():
                self.online.add_link(*link)

    def recovered(self, plan: OperatorPlan) -> list[str]:
        """Probe what was evacuated because it was slow; what is fast again, in words.

        Empty where such probes would take more than their `share` of the time.
        """
        problem = self.online.problem()
        devices = [int(d) for d in np.flatnonzero(self._slow_devices() & _little(problem, plan))]
        links = [(int(i), int(j)) for i, j in np.argwhere(self._slow_links(problem))]
        links = [pair for pair in links if pair not in _used(problem, plan)]
        waited_s = time.perf_counter() - self._probed_s
        # After a probe that took t, none before t / share has passed.
        if not (devices or links) or waited_s * self.share < self._took_s:
            return []
        with self._timed():
            return self._faster_devices(devices) + self._faster_links(links, problem)

    def _slow_devices(self) -> BoolArray:
        probed = self.online.observed.slowness
        return np.array([probed.get(name, 1.0) > SLOW for name in self._names])

    def _slow_links(self, problem: OperatorProblem) -> BoolArray:
        now, profiled = _message_s(problem), _message_s(self.online.base)
        slow: BoolArray = np.isfinite(profiled) & (now > SLOW_LINK * profiled)
        return slow

    def _faster_devices(self, devices: list[int]) -> list[str]:
        if not devices:
            return []
        now, faster = self._slowness(), list[str]()
        probed = self.online.observed.slowness
        for device, name in ((d, self._names[d]) for d in devices):
            change = now[device] / probed[name]  # not over the factor, which steps have shown
            if change <= FAST_AGAIN:
                self.online.add_probe(device, now[device], idle=True)
                faster.append(_described(name, 1.0 / change))
        return faster

    def _faster_links(self, links: list[tuple[int, int]], problem: OperatorProblem) -> list[str]:
        if not links:
            return []
        before, faster, names = _message_s(problem), [], problem.device_names
        for source, target, latency_s, per_byte in self.session.probe_links(links):
            self.online.add_link(source, target, latency_s, per_byte)
            times = before[source, target] / (latency_s + LARGE * per_byte)
            if times * FAST_LINK >= 1.0:
                faster.append(_described(f"{names[source]} -> {names[target]}", times))
        return faster

    def _slowness(self) -> list[float]:
        """How many times slower each device is than when it was first probed."""
        pairs = zip(self._names, self.session.probe_speeds(), strict=True)
        return [self.online.observed.slower(name, seconds) for name, seconds in pairs]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.online.base.device_names

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._probed_s = time.perf_counter()
        self._took_s = self._probed_s - start


def _little(problem: OperatorProblem, plan: OperatorPlan) -> BoolArray:
    """Which devices compute for so short a part of a step that it does not show their factor."""
    seconds = problem.compute_s[np.arange(problem.n), plan.placement]
    loads = np.bincount(plan.placement, weights=seconds, minlength=problem.m)
    little: BoolArray = loads < LITTLE * judge(problem, plan).value
    return little


def _used(problem: OperatorProblem, plan: OperatorPlan) -> set[tuple[int, int]]:
    """Pairs of devices between which tensors travel."""
    sources = plan.placement[problem.consumed_from].tolist()
    targets = plan.placement[problem.consumers].tolist()
    return {(i, j) for i, j in zip(sources, targets, strict=True) if i != j}


def _message_s(problem: OperatorProblem) -> FloatArray:
    """Shape (m, m): what the large message of a probe takes."""
    return problem.latency_s + LARGE * problem.seconds_per_byte


def _described(name: str, times: float) -> str:
    return f"{name} is {times:.1f} times faster than when it was left"


@checked
@dataclass(frozen=True, slots=True)
class AdaptationPolicy:
    """When to sample and when to migrate.

    Attributes
    ----------
    sample_every
        Steps between two watched ones.
    margin
        The gain must exceed the cost by this share.
    least_gain
        Relative gain per step below which no plan is worth a migration: predictions are not finer.
    confirmations
        Times in a row that a migration must look worthwhile.
    tolerance
        Relative change of the step time that counts as drift.
    trial_steps
        Steps after which a migration is judged by what was measured.
    look_share
        Share of the time that probes of evacuated devices and links may take.
    """

    sample_every: Count = 50
    margin: float = 0.2
    least_gain: Share = 0.05
    confirmations: Count = 2
    tolerance: float = 0.1
    trial_steps: Count = 5
    look_share: Share = 0.005


@dataclass(frozen=True, slots=True)
class Offer:
    """A new plan compared with the one in force.

    `current_s`, `new_s`: predicted step times of both at the refreshed costs.
    `move_s`: seconds that the migration takes.
    """

    plan: OperatorPlan
    current_s: float
    new_s: float
    move_s: float
    moved_bytes: float

    @property
    def gain(self) -> float:
        """Relative gain per step."""
        return 1.0 - self.new_s / self.current_s

    def worthwhile(self, remaining_steps: float, policy: AdaptationPolicy) -> bool:
        """Whether the gain over the remaining steps pays for the move."""
        # Cold steps are counted as lost altogether, which errs on the side of staying.
        cost = self.move_s + WARM_UP_STEPS * self.new_s
        saved = (self.current_s - self.new_s) * remaining_steps
        return self.gain > policy.least_gain and saved > (1.0 + policy.margin) * cost


def move_cost(
    problem: OperatorProblem, before: OperatorPlan, after: OperatorPlan
) -> tuple[float, float]:
    """Seconds and bytes of moving the state of operators that change their device.

    Channels work in parallel, each one tensor after the other; resident bytes stand for the
    state, so what an operator shares with others of its group is counted once per group.
    """
    old, new = before.placement, after.placement
    moved = (old != new) & (problem.resident_bytes > 0)
    if not moved.any():
        return 0.0, 0.0
    per_channel: dict[int, float] = {}
    for i in np.flatnonzero(moved):
        source, target = int(old[i]), int(new[i])
        seconds = (
            problem.latency_s[source, target]
            + problem.resident_bytes[i] * problem.seconds_per_byte[source, target]
        )
        channel = int(problem.channel[source, target])
        per_channel[channel] = per_channel.get(channel, 0.0) + float(seconds)
    return max(per_channel.values()), float(problem.resident_bytes[moved].sum())
