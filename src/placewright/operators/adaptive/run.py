"""A run of wing 1 that survives faults and migrates when devices change; plans that it tries.

`check_run` compares it with plain eager PyTorch.

A run that adapts tries plans while it trains (`AdaptiveRun.challengers`), which costs only what
they are slower. Steps before a run train nothing: plans are few here, and trials end early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from placewright.adapt.run import DistributedJob, FaultTolerantRun
from placewright.adapt.snapshot import RANDOM, Batch, Replaced, Snapshot
from placewright.adapt.trials import (
    WARM_UP_STEPS,
    SuccessiveElimination,
    TrialOutcome,
    hold_trials,
    likely_gain,
)
from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError, PlacewrightError
from placewright.graph.graph import Graph, Program, TensorSpec
from placewright.io.tensor_files import AnyTensor
from placewright.measurement import Check
from placewright.operators.adaptive.adaptation import (
    Adaptation,
    AdaptationPolicy,
    Replanner,
    move_cost,
)
from placewright.operators.adaptive.online_profile import Observed, OnlineProfile
from placewright.operators.adaptive.step_forms import BESIDE, StepForms
from placewright.operators.check import Comparison
from placewright.operators.interference import LONGEST_S, InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.planners import LAST, planners, portfolio
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import load_plan
from placewright.planning.contract import Context, proposal_of
from placewright.runtime.memory import OutOfMemoryError
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord

if TYPE_CHECKING:
    from placewright.capturing.model import Captured
    from placewright.capturing.source import ModelSource


@dataclass(frozen=True, slots=True, eq=False)
class AdaptiveJob(DistributedJob):
    """A placed model with its cluster, profile and initial state.

    Attributes
    ----------
    problem
        The graph on the whole cluster, as profiled.
    state
        A tensor for every program input, here or in a file.
    open
        Starts a session on (graph, cluster, state); where devices are nodes of a testbed, there.
    reachable
        Which of the named devices can all talk to each other now; all by default.
    """

    graph: Graph
    cluster: Cluster
    problem: OperatorProblem
    state: Mapping[str, AnyTensor]
    open: Callable[[Graph, Cluster, Mapping[str, AnyTensor]], AbstractContextManager[Session]] = (
        Session
    )
    reachable: Callable[[Sequence[str]], Collection[str]] = frozenset

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.graph.name

    def session(self, names: Collection[str], changed: Mapping[str, torch.Tensor]) -> Session:
        """Start workers on the devices called `names`.

        `changed`: state that steps have changed since the job was made.
        Raises `PlacewrightError`: they cannot be started.
        """
        state = dict(self.state) | dict(changed)
        return self.open(self.graph, self.cluster.part(names), state).__enter__()

    @property
    def changing(self) -> dict[str, TensorSpec]:
        """Program inputs that steps change: parameters, buffers, optimizer state."""
        program = self.graph.program
        inputs = program.inputs if isinstance(program, Program) else ()
        return {item.name: item.spec for item in inputs if item.mutated}


MOST_SPARED = 2
"""Times that a device whose memory did not suffice takes part again with a plan that needs less."""

UNSTATED = 0.9
"""Share of what the judge expected that a device gets which failed before it could count."""


@dataclass
class AdaptiveRun(FaultTolerantRun[Session]):
    """A context manager; `step` does one training step, whatever happens meanwhile.

    Attributes
    ----------
    plan
        In force at first; afterwards the run plans for itself.
    challengers
        Plans to try beside it in the first steps (`placewright.operators.adaptive.run`); those
        that the run is too short for are left out.
    interference
        What each kind of plan is judged by when these are chosen, where the kinds differ.
    adapt
        Whether to migrate when a better plan appears.
    steps
        How many are planned in all: what a migration can gain depends on it.
    seed
        Of random numbers in the steps; ``None``: batches bring the state that they are drawn from.
    scalars
        The loss of the last step, by output.
    forms
        Steps on batches of other shapes than the example's; ``None``: there are none.
    """

    job: AdaptiveJob
    plan: OperatorPlan | None = None
    challengers: Sequence[OperatorPlan] = ()
    interference: InterferenceProfile | None = None
    policy: AdaptationPolicy = field(default_factory=AdaptationPolicy)
    adapt: bool = True
    steps: float = float("inf")
    seed: int | None = 0
    scalars: dict[str, float] = field(default_factory=dict)
    forms: StepForms | None = None
    _made: dict[str, torch.Tensor] | None = None
    adaptation: Adaptation | None = None
    replanner: Replanner = field(default_factory=Replanner)
    observed: Observed = field(default_factory=Observed)
    _short: dict[str, tuple[int, float]] = field(default_factory=dict)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the steps have changed, by program input."""
        return self._survive(self.done, lambda: self._active()[0].state())

    def put_state(self, state: Mapping[str, AnyTensor]) -> None:
        """Go on from other values of what steps change, and of the other weights.

        They are the run's next snapshot, from which workers start again before the next step.

        `state`: by program input, complete.
        """
        changing = self.job.changing
        lasting = {name: value for name, value in state.items() if name not in changing}
        self.job = replace(self.job, state={**self.job.state, **lasting})
        values = {name: value for name, value in state.items() if name in changing}
        if not self.done:
            self.job = replace(self.job, state={**self.job.state, **values})
        else:
            self._survive(self.done, lambda: self._replace(values))
        self._dismiss()

    def _replace(self, values: Mapping[str, AnyTensor]) -> None:
        self._keep()
        self.log.save(Replaced(self._up(), values), self.done)

    def _keep(self) -> None:
        """Fetch the outputs of the last step, unless they are here."""
        if self._made is None:
            self._made = self._active()[0].outputs()

    def save_state(self, folder: Path) -> None:
        """Let every worker write what it holds of `state` into a file of `folder`.

        Raises `OSError`: a file cannot be written.
        """
        self._survive(self.done, lambda: self._active()[0].save_state(folder))

    def outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the last step; none where the workers that had them are lost."""
        if self._made is not None:
            return self._made
        return self._survive(self.done, lambda: self._active()[0].outputs())

    def evaluate(self, form: Captured, batch: Batch) -> dict[str, torch.Tensor]:
        """Outputs of a forward pass with the weights as they are now; no step is counted."""
        found = self._survive(self.done, lambda: self._in_form(form, batch))
        return found[1]

    def _in_form(self, form: Captured, batch: Batch) -> tuple[StepRecord, dict[str, torch.Tensor]]:
        """Execute a step of another shape, its operators where their parameters are now."""
        session, adaptation = self._active()
        assert self.forms is not None
        session.select(self.forms.placed(form, adaptation.plan.placement.tolist()))
        given = {name: value for name, value in batch.items() if name not in BESIDE}
        found = session.call(given, random=_random(batch))
        session.select(None)
        self.random = found[0].random
        return found

    def _running(self) -> Adaptation | None:
        return None if self.session is None else self.adaptation

    def _spared(self, error: PlacewrightError) -> set[str]:
        """A device whose memory did not suffice, `MOST_SPARED` times: another plan may fit.

        The judge counts less than workers need, by a factor that is seen here; or the device has
        less memory than was said. Both leave less for what the judge counts.
        """
        if not isinstance(error, OutOfMemoryError) or not self.adapt:
            return set()
        held = error.held or UNSTATED * error.expected
        name = self._device_at(error.where)
        if not held or name is None or self._short.get(name, (0, 0.0))[0] >= MOST_SPARED:
            return set()
        left = held / max(1.0, error.needed / error.expected if error.expected else 1.0)
        self._short[name] = (self._short.get(name, (0, 0.0))[0] + 1, left)
        try:
            self.replanner.from_scratch(self._problem())
        except InfeasibleError:
            del self._short[name]
            return set()
        return {name}

    def _device_at(self, where: str) -> str | None:
        """The one device of the worker that an error names."""
        if self.session is None:
            return None
        group, layout = self.session.group, self.session.layout
        for rank in range(len(group.specs)):
            devices = layout.device_group(rank)
            if group.worker_name(rank) == where and len(devices) == 1:
                return self.session.cluster.device_names[devices[0]]
        return None

    def _problem(self) -> OperatorProblem:
        """On the devices that take part, with the memory that they turned out to have."""
        problem = problem_of(self.job.problem, self.alive())
        known = [self._short.get(name, (0, np.inf))[1] for name in problem.device_names]
        return problem.replace(memory_bytes=np.minimum(problem.memory_bytes, known))

    def _start(self) -> None:
        super()._start()
        self._active()[1].recovery_probe.baseline()

    def _load(self, snapshot: Snapshot | None) -> None:
        problem = self._problem()
        plan = self._first_plan(OnlineProfile(problem, self.observed).problem())
        session = self.job.session(self.alive(), snapshot.state if snapshot else {})
        self.session = session
        judgement = judge(problem, plan)
        load_plan(session, problem, plan, judgement, self.seed or 0)
        if snapshot is not None:
            session.set_random_state(snapshot.random_state)
        self.adaptation = Adaptation(
            session,
            problem,
            plan,
            self.policy,
            self.timeline,
            self.replanner,
            self._candidates(problem, plan),
            self.observed,
        )

    def _first_plan(self, problem: OperatorProblem) -> OperatorPlan:
        """The given plan on the whole cluster, else a new one."""
        fits = not self._short or (self.plan is not None and judge(problem, self.plan).feasible)
        if self.plan is not None and not self.membership.lost and fits:
            return self.plan
        return self.replanner.from_scratch(problem)

    def _candidates(self, problem: OperatorProblem, plan: OperatorPlan) -> Sequence[OperatorPlan]:
        """Plans to try: only at the beginning, as many as the remaining steps pay for."""
        if not self.adapt or not self.challengers or self.timeline.plans:
            return ()
        interference = self.interference or InterferenceProfile.alike(problem)
        return affordable(interference, (plan, *self.challengers), self.steps - self.done)

    def _repeat(self, batch: Batch | None) -> None:
        self.scalars = self._execute(self._workers(), batch, watched=False).scalars

    def _advance(self, batch: Batch | None) -> None:
        session, adaptation = self._active()
        watched = self.adapt and adaptation.watches_next
        record = self._execute(session, batch, watched=watched)
        self._counted()
        self.scalars = record.scalars
        self.timeline.stepped(record.duration_s, record.scalars)
        if self.adapt and self._made is None:  # a step of another size says nothing of its time
            adaptation.stepped(record, watched, self.done, self.steps - self.done)
            if self.challengers and adaptation.trials is None and not self.membership.lost:
                self.plan, self.challengers = adaptation.plan, ()

    def _execute(self, session: Session, batch: Batch | None, *, watched: bool) -> StepRecord:
        """Do one step."""
        form = None if self.forms is None or batch is None else self.forms.of_batch(batch)
        if form is not None and batch is not None:
            record, self._made = self._in_form(form, batch)
            return record
        self._made = None
        if batch is not None:
            given = {name: value for name, value in batch.items() if name not in BESIDE}
            session.feed(given, _random(batch))
        limit_s = self.timeout.step_limit_s(self.timeline, self._active()[1].predicted_s)
        (record,) = session.run(1, watched=watched, limit_s=limit_s)
        self.random = record.random
        return record

    def _active(self) -> tuple[Session, Adaptation]:
        """The active session and its controller."""
        session = self._workers()
        assert self.adaptation is not None
        return session, self.adaptation


def _random(batch: Batch) -> bytes:
    return bytes(batch[RANDOM].numpy()) if RANDOM in batch else b""


def problem_of(problem: OperatorProblem, names: Collection[str]) -> OperatorProblem:
    """The same problem on the devices called `names`.

    Raises `InfeasibleError`: an operator is pinned to a device that is gone.
    """
    keep = [i for i, name in enumerate(problem.device_names) if name in names]
    position = np.full(problem.m, -1, dtype=np.int64)
    position[keep] = np.arange(len(keep))
    pinned = np.where(problem.pinned >= 0, position[problem.pinned], -1)
    lost = np.flatnonzero((problem.pinned >= 0) & (pinned < 0))
    if len(lost):
        operator = problem.operator_names[int(lost[0])]
        device = problem.device_names[int(problem.pinned[lost[0]])]
        raise InfeasibleError(
            f"{operator!r} is pinned to {device!r}, which is gone", where=problem.name
        )
    pairs = np.ix_(keep, keep)
    return replace(
        problem,
        device_names=tuple(problem.device_names[i] for i in keep),
        device_kinds=tuple(kind for i, kind in enumerate(problem.device_kinds) if i in keep),
        compute_s=problem.compute_s[:, keep],
        latency_s=problem.latency_s[pairs],
        seconds_per_byte=problem.seconds_per_byte[pairs],
        channel=problem.channel[pairs],
        memory_bytes=problem.memory_bytes[keep],
        host_seconds_per_byte=problem.host_seconds_per_byte[keep],
        pinned=pinned,
    )


def check_run(run: AdaptiveRun, source: ModelSource) -> Check:
    """Repeat all steps of a run in eager PyTorch, from its first state and with its seed.

    Only for runs on the batch that the model was captured with. Steps that were done before the
    run began are repeated and not compared.

    Raises `RunError`: the state cannot be fetched.
    """
    outputs, state, timeline = run.outputs(), run.state(), run.timeline
    run.close()  # eager steps get the cores to themselves
    devices = run.job.cluster.devices
    comparison = Comparison.of(run.job.graph, source, seed=run.seed or 0, devices=devices)
    limit = comparison.tolerance.steps
    steps = run.done if limit is None else min(run.done, limit)
    for k in range(steps):
        index = k - timeline.first_step
        losses = timeline.scalars[index] if index >= 0 else {}
        last = k == run.done - 1
        comparison.step({**losses, **outputs} if last else losses, state if last else None)
    return comparison.check(_note(timeline.first_step, steps < run.done))


def _note(before: int, partly: bool) -> str:
    parts = ["the loss of every step, parameters and buffers after the last"]
    if before:
        parts.append(f"steps 1 to {before} belong to the run that was continued")
    if partly:
        parts = ["the loss of the first step only"]
    return "; ".join(parts)


CLOSE = 0.2
"""Predictions that differ by less than this may well be in another order in reality."""

PREDICTION_ERROR = 0.1
"""Standard error of one prediction against another."""

MOST = 5
"""Plans that are tried in all."""

NAMED = ("ceft+pbqp", "heft")
"""Planners whose plans are tried before others that are predicted to be better: robust baselines.
The best single device is one of them."""

QUICK = ("ceft+pbqp",)
"""Planners that `auto` asks late and that take milliseconds all the same."""


def try_plans(
    session: Session,
    interference: InterferenceProfile,
    plans: Sequence[OperatorPlan],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> TrialOutcome[OperatorPlan]:
    """Execute the closest of these plans in turns before a run, and say which one to take.

    Where a worker dies, what was measured until then counts; the plan that it
    died of is not taken.

    Parameters
    ----------
    session
        Workers for the devices of the problem, in their order; what they had loaded is replaced.
    interference
        What plans are judged by.
    plans
        The one predicted to be the best first; `closest` says which of them take part.
    progress
        Called with the turn that begins.
    """
    problem = interference.alone

    def load(plan: OperatorPlan) -> None:
        load_plan(session, problem, plan, judge(interference.of(plan), plan))

    def step() -> float:
        (record,) = session.run(1)
        return record.duration_s

    return hold_trials(closest(interference, plans), load, step, progress)


def closest(
    interference: InterferenceProfile, plans: Sequence[OperatorPlan]
) -> tuple[OperatorPlan, ...]:
    """The first of `plans`, and others predicted within `CLOSE` of the best, each placement once.

    The first one only, where its step is predicted to take more than `LONGEST_S`.
    """
    apart: dict[bytes, OperatorPlan] = {}
    for plan in plans:
        apart.setdefault(plan.placement.tobytes(), plan)
    values = [_predicted_s(interference, plan) for plan in apart.values()]
    first, *others = apart.values()
    if values[0] > LONGEST_S:
        return (first,)
    limit = (1.0 + CLOSE) * min(values)
    return first, *[o for o, value in zip(others, values[1:], strict=True) if value <= limit]


def _predicted_s(interference: InterferenceProfile, plan: OperatorPlan) -> float:
    """Predicted seconds per step, ``inf`` for a plan that does not fit."""
    judgement = judge(interference.of(plan), plan)
    return judgement.value if judgement.feasible else float("inf")


def challengers(
    interference: InterferenceProfile,
    plan: OperatorPlan,
    steps: float,
    *,
    at_hand: Iterable[OperatorPlan] = (),
) -> tuple[OperatorPlan, ...]:
    """Plans that a run should try beside `plan`: predicted nearly as good or better, best first.

    Parameters
    ----------
    interference
        What each kind of plan is judged by.
    steps
        Of the run, which may be too short to pay even for one challenger that moves nothing.
    at_hand
        Plans that should be tried too, from planners that take longer.

    Returns
    -------
    Without `plan` itself, each placement once, at most ``MOST - 1``: those `at_hand`, the best
    single device and those of `NAMED` planners first, then others of the quick planners.
    """
    value = judge(interference.of(plan), plan).value
    if likely_gain(0.0, PREDICTION_ERROR) * steps * value <= _turn_s(value, CLOSE):
        return ()
    first, others = _quick_plans(interference.alone)
    seen = {plan.placement.tobytes()}
    fitting: list[tuple[int, float, int, OperatorPlan]] = []
    for wanted, made in enumerate(((*at_hand, *first), others)):
        for each in made:
            judged = judge(interference.of(each), each)
            if judged.feasible and each.placement.tobytes() not in seen:
                seen.add(each.placement.tobytes())
                fitting.append((wanted, judged.value, len(fitting), each))
    limit = min([value, *[row[1] for row in fitting]]) * (1.0 + CLOSE)
    close = sorted(row for row in fitting if row[1] <= limit)[: MOST - 1]
    return tuple(row[-1] for row in sorted(close, key=lambda row: row[1:3]))


def affordable(
    interference: InterferenceProfile, plans: Sequence[OperatorPlan], remaining_steps: float
) -> tuple[OperatorPlan, ...]:
    """Those of `plans`, the first in force, that a run of so many steps can afford to try.

    What a challenger may gain, from its predicted value and `PREDICTION_ERROR`, must pay for the
    move to it and back and for a turn that is as much slower as predicted.
    """
    problem = interference.alone
    values = [judge(interference.of(plan), plan).value for plan in plans]
    tried = [plans[0]]
    for plan, value in zip(plans[1:], values[1:], strict=True):
        behind = value / values[0] - 1.0
        gain_s = likely_gain(behind, PREDICTION_ERROR) * values[0] * remaining_steps
        moves_s = move_cost(problem, plans[0], plan)[0] + move_cost(problem, plan, plans[0])[0]
        if gain_s > moves_s + _turn_s(value, behind):
            tried.append(plan)
    return tuple(tried)


def _turn_s(step_s: float, behind: float) -> float:
    """Seconds that a first turn costs: cold steps, and those of a plan that is behind."""
    return step_s * (WARM_UP_STEPS + max(0.0, behind) * SuccessiveElimination.least_steps)


def _quick_plans(problem: OperatorProblem) -> tuple[list[OperatorPlan], list[OperatorPlan]]:
    """Plans of the best single device and the `NAMED` planners, and of all other quick ones."""
    made: dict[str, OperatorPlan] = {}
    known = planners(problem)
    for name in portfolio(problem):
        planner = known[name]
        if planner.unsupported_reason(problem) is None and (name not in LAST or name in QUICK):
            try:
                made[name] = proposal_of(planner(problem, Context(judge=judge))).plan
            except PlacewrightError:
                continue  # it does not fit, or a package is not installed
    singles = [name for name in made if name.startswith(SINGLE)]
    judged = {name: judge(problem, made[name]) for name in singles}
    fitting = [name for name in singles if judged[name].feasible]
    best = min(fitting, key=lambda name: judged[name].value, default="")
    first = [name for name in (*NAMED, *([best] if best else [])) if name in made]
    return [made[name] for name in first], [p for name, p in made.items() if name not in first]
