"""Adaptive runs keep exact results when workers are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewright.adapt.snapshot import Batch, ReplayLog
from placewright.adapt.timeline import Kind
from placewright.adapt.trials import LEAST_ROUNDS, WARM_UP_STEPS, ShortTrials, TrialOutcome
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError, InputError, RunError, WorkerError
from placewright.graph.graph import Graph, Program
from placewright.operators.adaptive.adaptation import Adaptation, Replanner
from placewright.operators.adaptive.run import (
    CLOSE,
    AdaptiveJob,
    AdaptiveRun,
    check_run,
    closest,
    try_plans,
)
from placewright.operators.check import run_eager
from placewright.operators.conformance import tiny
from placewright.operators.interference import InterferenceProfile
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pbqp import CeftPbqp
from placewright.operators.problem import OperatorProblem
from placewright.profiling.profiler import profile
from placewright.runtime.engines import piped
from placewright.runtime.engines.local import LocalGroup
from placewright.runtime.memory import OutOfMemoryError
from placewright.runtime.session import Session
from placewright.runtime.step_record import StepRecord
from tests.operators.adaptive.jobs import TRIO, job


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any plan will do: the search for it takes most of the time of these tests else."""
    planned = Replanner.from_scratch

    def soon(self: Replanner, problem: OperatorProblem) -> OperatorPlan:
        self.planner = CeftPbqp(effort=1e4)
        return planned(self, problem)

    monkeypatch.setattr(Replanner, "from_scratch", soon)


def equal_to_eager(
    run: AdaptiveRun, source: ModelSource, training_job: AdaptiveJob, steps: int
) -> None:
    """Every parameter and buffer equals plain PyTorch's after as many steps."""
    assert isinstance(training_job.graph.program, Program)
    expected = run_eager(source, training=True, steps=steps)
    state = run.state()
    for item in training_job.graph.program.inputs:
        if item.role in ("parameter", "buffer") and item.name in state:
            assert torch.equal(state[item.name], expected.state[item.key]), item.key


def kill(run: AdaptiveRun, rank: int) -> None:
    """SIGKILL one worker."""
    assert run.session is not None
    os.kill(run.session.group.processes[rank].pid or 0, signal.SIGKILL)


def test_a_run_without_events_is_eager_training(tmp_path: Path) -> None:
    """Seven steps equal eager bit for bit, dropout included, and the timeline has them all."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=3) as run:
        for _ in range(7):
            run.step()
        equal_to_eager(run, source, training_job, 7)
    assert len(run.timeline.step_s) == 7
    assert run.timeline.count(Kind.SNAPSHOT) == 2


def test_a_finished_run_is_compared_with_eager(tmp_path: Path) -> None:
    """Every loss and the last state, also of a continued run; a wrong loss is found in its step."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=3) as run:
        for _ in range(3):
            run.step()
        run.finish()
    with AdaptiveRun(training_job, tmp_path) as run:
        for _ in range(3):
            run.step()
        check = check_run(run, source)
    assert check.passed, check
    assert (check.steps, check.max_abs_error) == (6, 0.0)
    assert check.compared["output"] == 1
    assert check.compared["parameter"] > 1
    assert "steps 1 to 3 belong to the run that was continued" in check.note
    with AdaptiveRun(training_job, tmp_path / "wrong") as run:
        for _ in range(3):
            run.step()
        losses = dict(run.timeline.scalars[1])
        run.timeline.scalars[1] = {name: loss * (1 + 1e-6) for name, loss in losses.items()}
        check = check_run(run, source)
    assert check.first is not None
    assert (check.first.step, check.first.role) == (2, "output")


def test_a_full_disk_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for the second snapshot and a worker killed: repeated from the first, bit for bit;
    only a last snapshot that cannot be written is an error.
    """
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=3, rejoin_every=1000) as run:
        for _ in range(4):
            run.step()
        monkeypatch.setattr(AdaptiveJob, "state_bytes", 1 << 62)
        for _ in range(4):
            run.step()
        kill(run, 0)
        run.step()
        equal_to_eager(run, source, training_job, 9)
        assert run.timeline.count(Kind.SNAPSHOT) == 1
        assert run.timeline.count(Kind.UNSAVED) == 2
        with pytest.raises(RunError, match="No space left"):
            run.finish()


def test_two_of_three_workers_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """Training goes on with who is left and ends with eager's parameters."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=3, rejoin_every=1000) as run:
        for step in range(9):
            run.step()
            if step in (3, 6):
                kill(run, 0)
        equal_to_eager(run, source, training_job, 9)
        processes = run.session.group.processes if run.session else []
    assert run.alive() == ("c",)
    assert run.timeline.count(Kind.FAULT) == 2
    assert not any(p.is_alive() for p in processes)


def test_a_device_lost_again_rejoins_later_each_time(tmp_path: Path) -> None:
    """Killed whenever it has joined again it is left alone for 2, 4 and 8 steps; the numbers stay
    eager's.
    """
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=4, rejoin_every=2) as run:
        joins = -1
        for _ in range(14):
            run.step()
            if run.session is not None and joins < run.timeline.count(Kind.JOIN):
                joins = run.timeline.count(Kind.JOIN)
                kill(run, 1)
        equal_to_eager(run, source, training_job, 14)
    lost = [event.text for event in run.timeline.events if event.kind is Kind.FAULT]
    assert [text.partition(")")[0] for text in lost] == [
        f"lost b (looked for after step {step}" for step in (3, 7, 15)
    ]
    assert joins == 2


def test_a_device_that_cannot_be_started_with_is_left_alone_again(tmp_path: Path) -> None:
    """It answers, but its engine cannot start a worker: the others go on; the history has it."""
    source, training_job = job()
    starts = []

    def start(graph: Graph, cluster: Cluster, state: Mapping[str, torch.Tensor]) -> Session:
        starts.append(len(cluster.devices))
        if starts.count(3) > 1 and len(cluster.devices) == 3:
            raise InputError("no machine for a device", where="trio")
        return Session(graph, cluster, state)

    job_there = replace(training_job, open=start)
    with AdaptiveRun(job_there, tmp_path, snapshot_every=4, rejoin_every=2) as run:
        for step in range(6):
            run.step()
            if step == 0:
                kill(run, 1)
        equal_to_eager(run, source, training_job, 6)
        assert run.alive() == ("a", "c")
    faults = [event.text for event in run.timeline.events if event.kind is Kind.FAULT]
    assert starts == [3, 2, 3, 2]
    assert faults[1] == "lost b (looked for after step 7) (trio: no machine for a device)"


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """A killer that shoots at any time, during snapshots and recoveries too, changes no bit."""
    source, training_job = job()
    chance = random.Random(seed)
    over = threading.Event()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=2, rejoin_every=2) as run:
        killer = threading.Thread(target=_shoot, args=(run, chance, over))
        killer.start()
        try:
            for _ in range(12):
                run.step()
                time.sleep(0.02)
        finally:
            over.set()
            killer.join()
        equal_to_eager(run, source, training_job, 12)


def _shoot(run: AdaptiveRun, chance: random.Random, over: threading.Event) -> None:
    for _ in range(3):
        if over.wait(chance.uniform(0.02, 0.5)):
            return
        session = run.session
        if session is not None and len(session.group.processes) > 1:
            victim = chance.choice(session.group.processes)
            if victim.pid is not None and victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)


def test_a_run_is_continued_from_its_folder(tmp_path: Path) -> None:
    """A second run in the same folder goes on where the first one's last snapshot was."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=2) as run:
        for _ in range(5):
            run.step()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=2) as again:
        assert again.done == 4
        for _ in range(3):
            again.step()
        equal_to_eager(again, source, training_job, 7)


def test_workers_lost_one_after_another_are_started_again(tmp_path: Path) -> None:
    """Their machines are up: when none is left all are taken back, and nothing is lost."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path, snapshot_every=2, rejoin_every=1000) as run:
        for _ in range(3):
            run.step()
            kill(run, 0)
        run.step()
        assert run.alive() == ("a", "b", "c")
        equal_to_eager(run, source, training_job, 4)


def test_no_device_left_says_so(tmp_path: Path) -> None:
    """Where none answers when the last one is gone, the error has the cluster and the snapshot."""
    _, training_job = job()
    training_job = replace(training_job, reachable=lambda names: names if len(names) < 3 else ())
    with AdaptiveRun(training_job, tmp_path) as run:
        for _ in range(3):
            run.step()
            kill(run, 0)
        with pytest.raises(
            InfeasibleError, match=r"(?s)no device is left .*of step 0.*same folder"
        ):
            run.step()


class Shot(Session):
    """A session in which, once, a worker is killed at a precise moment: see `moment`."""

    moment = ""

    def save_state(self, folder: Path) -> None:
        """As ever, perhaps with a worker less."""
        self._shoot("snapshot")
        super().save_state(folder)

    def migrate(self, placement: Sequence[int], order: Sequence[int], **expected: Any) -> int:
        """As ever, perhaps with a worker less."""
        self._shoot("migration")
        return super().migrate(placement, order, **expected)

    def load(
        self,
        placement: Sequence[int],
        order: Sequence[int],
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """As ever, perhaps with a worker less."""
        self._shoot("recovery")
        super().load(placement, order, seed, **settings)

    def _shoot(self, now: str) -> None:
        if Shot.moment == now:
            Shot.moment = ""
            os.kill(self.group.processes[-1].pid or 0, signal.SIGKILL)


@pytest.mark.parametrize("moment", ["snapshot", "migration", "recovery"])
def test_a_fault_at_the_worst_moment(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies as a snapshot, a migration or a recovery begins: the numbers stay eager's."""
    source, training_job = job()
    migrations = []

    def stepped(self: Adaptation, *_: object) -> None:
        """Move everything to the next device after the fourth step."""
        if run.done == 4 and not migrations:
            migrations.append(run.done)
            to = (self.plan.placement + 1) % self.problem.m
            self._switch(OperatorPlan(to), 0.0)

    monkeypatch.setattr(Adaptation, "stepped", stepped)
    monkeypatch.setattr(Shot, "moment", moment if moment != "recovery" else "")
    with AdaptiveRun(replace(training_job, open=Shot), tmp_path, snapshot_every=4) as run:
        for step in range(8):
            run.step()
            if moment == "recovery" and step == 4:
                Shot.moment = moment
                kill(run, 0)
        equal_to_eager(run, source, training_job, 8)
    assert migrations
    assert Shot.moment == ""
    assert run.timeline.count(Kind.FAULT) == (2 if moment == "recovery" else 1)
    assert run.timeline.count(Kind.SNAPSHOT) == 2


class Unwritable(Session):
    """A session whose workers find no folder to write into."""

    def save_state(self, folder: Path) -> None:
        """As ever, elsewhere."""
        super().save_state(folder / "missing")


def test_workers_that_cannot_write_end_no_run(tmp_path: Path) -> None:
    """Each snapshot is skipped and reported, and no worker is restarted."""
    source, training_job = job()
    with AdaptiveRun(replace(training_job, open=Unwritable), tmp_path, snapshot_every=2) as run:
        for _ in range(6):
            run.step()
        kinds = [event.kind for event in run.timeline.events]
        assert kinds == [Kind.UNSAVED] * 3
        assert "could not write" in run.timeline.events[0].text
        equal_to_eager(run, source, training_job, 6)


class Doomed(Session):
    """A session that no snapshot survives."""

    def save_state(self, folder: Path) -> None:
        """A worker is killed for memory."""
        os.kill(self.group.processes[-1].pid or 0, signal.SIGKILL)
        super().save_state(folder)


def test_a_snapshot_that_kills_is_tried_twice(tmp_path: Path) -> None:
    """Then it is left out, and the run goes on with who is left."""
    source, training_job = job()
    doomed = replace(training_job, open=Doomed)
    with AdaptiveRun(doomed, tmp_path, snapshot_every=2, rejoin_every=1000) as run:
        for _ in range(3):
            run.step()
        assert run.alive() == ("a",)
        assert run.timeline.count(Kind.FAULT) == 2
        assert run.timeline.count(Kind.UNSAVED) == 1
        equal_to_eager(run, source, training_job, 3)


def test_one_run_at_a_time_in_a_folder(tmp_path: Path) -> None:
    """A second one is refused; a closed one does no more steps."""
    _, training_job = job()
    with AdaptiveRun(training_job, tmp_path) as run, pytest.raises(InputError, match="another run"):
        AdaptiveRun(training_job, tmp_path)
    with pytest.raises(RunError, match="the run is closed"):
        run.step()


def pressed(times: int) -> Callable[..., Any]:
    """Waiting for workers; the first time Ctrl-C is pressed as often as that."""
    left = [signal.SIGINT] * times

    def waited(*arguments: Any, **options: Any) -> Any:
        while left:
            signal.raise_signal(left.pop())
        return wait(*arguments, **options)

    return waited


def test_ctrl_c_ends_a_run_after_the_step_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step counts, the workers stay, the last snapshot can be written."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path) as run:
        run.step()
        session = run.session
        monkeypatch.setattr(piped, "wait", pressed(1))
        with pytest.raises(KeyboardInterrupt):
            run.step()
        assert (run.done, run.session) == (2, session)
        run.finish()
        assert run.log.saved == 2
        equal_to_eager(run, source, training_job, 2)


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step does not count, its answers are nobody's; who goes on goes on from before it."""
    source, training_job = job()
    with AdaptiveRun(training_job, tmp_path) as run:
        run.step()
        monkeypatch.setattr(piped, "wait", pressed(2))
        with pytest.raises(KeyboardInterrupt):
            run.step()
        assert (run.done, run.session) == (1, None)
        run.finish()
        run.step()
        equal_to_eager(run, source, training_job, 2)


def test_a_recovery_that_is_broken_off_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the batches of the steps that are repeated, though the next one comes between."""
    _, training_job = job()
    assert isinstance(training_job.graph.program, Program)
    (name,) = [item.name for item in training_job.graph.program.inputs if item.role == "input"]
    batches = [{name: training_job.state[name] * factor} for factor in (1, 2, 3, 4)]
    with AdaptiveRun(training_job, tmp_path / "whole") as whole:
        for batch in batches:
            whole.step(batch)
        expected = whole.state()
    with AdaptiveRun(training_job, tmp_path / "broken") as run:
        for batch in batches[:3]:
            run.step(batch)
        kill(run, 0)
        with monkeypatch.context() as moment:
            moment.setattr(ReplayLog, "counted_after", _broken_off)
            with pytest.raises(KeyboardInterrupt):
                run.step(batches[3])
        assert run.done == 3
        run.step(batches[3])
        state = run.state()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def _broken_off(past: ReplayLog, step: int) -> Iterator[tuple[int, Batch | None]]:
    yield step + 1, past.batch(step + 1)
    raise KeyboardInterrupt


@pytest.mark.parametrize("held", [1_000_000, 0])
def test_a_device_that_ran_out_of_memory_gets_a_plan_that_needs_less(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes part again, and nothing is lost; what it turned out to have counts from then on."""
    x = torch.ones(20_000, 8)
    source = ModelSource(torch.nn.Linear(8, 8), (x,), default_loss, None, "wide")
    graph = capture_source(source, training=True)
    problem = profile(graph, TRIO, method="analytic")
    training_job = AdaptiveJob(graph, TRIO, problem, initial_state(source, graph.program))
    on_b = OperatorPlan(np.ones(problem.n, dtype=np.int64))
    ended = WorkerError("raised an error", where="device 'b'")

    def starved(*_: Any, **__: Any) -> Any:
        """As a limit of the system ends it; whether one does depends on what malloc has kept."""
        monkeypatch.undo()
        raise OutOfMemoryError.of(ended, "it asked for more", held, 640_000, 1_920_000.0)

    with AdaptiveRun(training_job, tmp_path, plan=on_b) as run:
        run.step({"input:0": x})
        monkeypatch.setattr(Session, "run", starved)
        run.step({"input:0": x})
        assert run.alive() == ("a", "b", "c")
        fault = next(event for event in run.timeline.events if event.kind is Kind.FAULT)
        assert "planned again with less memory on b" in fault.text
        assert run.adaptation is not None
        assert run.adaptation.problem.memory_bytes[1] < problem.memory_bytes[1]
        run.step({"input:0": x})
        equal_to_eager(run, source, training_job, 3)


class Opened:
    """A session that remembers what it was opened on."""

    def __init__(self, graph: Graph, cluster: Cluster, state: Mapping[str, torch.Tensor]) -> None:
        self.cluster, self.state, self.up = cluster, state, False

    def __enter__(self) -> Opened:
        self.up = True
        return self


def test_a_snapshot_takes_what_steps_change() -> None:
    """Parameters and buffers, in bytes; not the batch."""
    _, training_job = job()
    assert isinstance(training_job.graph.program, Program)
    changed = [
        training_job.state[item.name] for item in training_job.graph.program.inputs if item.mutated
    ]
    assert training_job.state_bytes == sum(t.numel() * t.element_size() for t in changed) > 0


def test_a_session_is_on_those_who_are_named_with_what_has_changed() -> None:
    """Their links, the state as it was but for what is given; up when it is returned."""
    _, training_job = job()
    name = next(iter(training_job.state))
    new = training_job.state[name] + 1
    made: Any = replace(training_job, open=Opened).session(("c", "a"), {name: new})
    assert made.up
    assert made.cluster.device_names == ("a", "c")
    assert {link.source for link in made.cluster.links} == {"a", "c"}
    assert made.state.keys() == training_job.state.keys()
    assert made.state[name] is new
    assert training_job.state[name] is not new


def test_workers_that_do_not_come_up_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start has a limit like every order; here it is none at all."""
    _, training_job = job()
    monkeypatch.setattr(LocalGroup, "start_limit_s", 0.0)
    with pytest.raises(WorkerError, match=r"'a', 'b'.*no answer in time"):
        training_job.session(("a", "b"), {})


PROBLEM = tiny([[1.0, 1.05, 1.1, 2.9], [1.0, 1.05, 1.1, 2.9]], [(0, 0.0, [1])])
KNOWN = InterferenceProfile.alike(PROBLEM)


@dataclass
class Acted:
    """Takes the seconds that are given for the first operator's device."""

    step_s: tuple[float, ...]
    at_step: Callable[[int], None] = lambda _: None
    noise: tuple[float, ...] = (1.0,)
    device: int = 0
    loads: list[int] = field(default_factory=list)
    steps: int = 0

    def load(self, placement: list[int], order: list[int], *_: Any, **settings: Any) -> None:
        """Take in the plan."""
        assert sorted(order) == [0, 1]
        self.device = placement[0]
        self.loads.append(self.device)

    def run(self, steps: int) -> list[StepRecord]:
        """One record."""
        assert steps == 1
        self.steps += 1
        self.at_step(self.steps)
        factor = self.noise[(self.steps - 1) % len(self.noise)]
        return [StepRecord(0.0, factor * self.step_s[self.device], ())]


def plan(device: int) -> OperatorPlan:
    """Everything on one device."""
    return OperatorPlan(np.full(2, device))


def held(session: Acted, *devices: int) -> TrialOutcome[OperatorPlan]:
    """Trials of these single devices."""
    return try_plans(session, KNOWN, [plan(d) for d in devices])  # type: ignore[arg-type]


def test_only_close_plans_take_part_and_each_once() -> None:
    """The favourite stays the first one, even where it is far behind."""
    found = closest(KNOWN, [plan(1), plan(0), plan(1), plan(3), plan(2), plan(0)])
    assert [int(p.placement[0]) for p in found] == [1, 0, 2]
    assert [int(p.placement[0]) for p in closest(KNOWN, [plan(3), plan(0)])] == [3, 0]
    assert CLOSE < 1.9


def test_the_plan_measured_fastest_is_taken() -> None:
    """Against the prediction; turns come in rounds."""
    session = Acted((6.0, 5.9, 5.0, 1.0))
    found = held(session, 0, 1, 2)
    assert (found.best, found.plan.placement[0]) == (2, 2)
    assert found.step_s == pytest.approx((6.0, 5.9, 5.0))
    assert session.loads[:3] == [0, 1, 2]


def test_trials_of_equal_plans_end_after_some_rounds() -> None:
    """Steps before a run train nothing; of plans without a difference any is taken."""
    session = Acted((6.0, 6.0, 6.0, 1.0))
    found = held(session, 0, 1)
    assert found.step_s == pytest.approx((6.0, 6.0))
    assert session.steps >= LEAST_ROUNDS * ShortTrials.least_steps + WARM_UP_STEPS


def test_one_plan_is_not_tried() -> None:
    """Nor is one that is slow."""
    session = Acted((6.0, 6.0, 6.0, 1.0))
    assert held(session, 0, 0, 3).best == 0
    slow = PROBLEM.replace(compute_s=100 * PROBLEM.compute_s)
    found = try_plans(session, InterferenceProfile.alike(slow), [plan(1), plan(0)])  # type: ignore[arg-type]
    assert (found.best, session.steps) == (0, 0)
    assert found.step_s == (float("inf"),)


def test_a_small_lead_does_not_decide() -> None:
    """The prediction counts: another plan must be clearly ahead of the favourite."""
    assert held(Acted((6.0, 5.9, 6.0, 1.0)), 0, 1).best == 0
    assert held(Acted((6.0, 5.8, 6.0, 1.0)), 0, 1).best == 1


def test_a_machine_that_is_busy_for_a_turn_decides_nothing() -> None:
    """The favourite's first turn takes twice as long, the others are as they are."""
    busy = (2.0,) * (WARM_UP_STEPS + ShortTrials.least_steps) + (1.0,) * 100
    found = held(Acted((6.0, 6.6, 6.0, 1.0), noise=busy), 0, 1)
    assert found.best == 0
    assert found.step_s == pytest.approx((6.0, 6.6))


def test_what_was_measured_until_a_worker_died_counts() -> None:
    """Its plan is not taken."""
    for step, taken in {1: 1, 15: 1, 10: 0}.items():
        acted = Acted((6.0, 3.0, 6.0, 1.0), _raising(WorkerError("it died"), step))
        found = held(acted, 0, 1, 2)
        assert (step, found.best) == (step, taken)
        assert "it died" in found.ended


def test_ctrl_c_ends_more_than_the_trials() -> None:
    """It is raised, and says what was measured."""
    acted = Acted((6.0, 3.0, 6.0, 1.0), _raising(KeyboardInterrupt(), 15))
    with pytest.raises(KeyboardInterrupt, match=r"plans were tried.* s, .*not yet"):
        held(acted, 0, 1, 2)


def _raising(error: BaseException, step: int) -> Callable[[int], None]:
    """At that step."""

    def stop(now: int) -> None:
        if now == step:
            raise error

    return stop
