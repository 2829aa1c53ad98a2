"""Nodes as worker processes and as devices of a testbed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError, WorkerError
from placewright.runtime import limits
from placewright.samples.adaptive import Adaptive, Disturbance
from placewright.samples.data import Shard, audit, counted, deal, held_by
from placewright.samples.move import move
from placewright.samples.nodes import SPARE_CORES, NodeLeft, NodeWorkers, cluster_of, nodes_up
from placewright.samples.plan import SamplePlan
from placewright.samples.run import measure, run
from placewright.samples.training.job import write_batch
from placewright.samples.training.node_training import Recipe, TrainingOrder
from placewright.samples.training.train import train, training_orders
from placewright.testbed.testbed import missing
from tests.samples.jobs import digits_job, images
from tests.samples.tiny import tiny


def test_speeds_and_links_are_those_of_the_problem() -> None:
    """In proportion, no more than the machine has to spare; bytes per second from seconds."""
    problem = tiny([9, 1], seconds_per_sample=np.array([0.3, 0.1]), sample_bytes=5_000.0)
    made = cluster_of(problem, 2)
    slow, fast = (device.speed for device in made.devices)
    assert fast == 1.0
    assert slow == pytest.approx(1 / 3, abs=1e-3)
    assert made.links[0].bandwidth == pytest.approx(100_000)
    many = tiny([1] * 8, sample_bytes=5_000.0)
    assert sum(d.speed for d in cluster_of(many, 2).devices) <= 2 - SPARE_CORES


@pytest.mark.parametrize(("size", "message"), [(10.0, "sample_bytes"), (5_000.0, "not joined")])
def test_what_cannot_be_made_real_is_refused(size: float, message: str) -> None:
    """Files smaller than an image; nodes that cannot exchange gradients."""
    pair = np.full((3, 3), 0.05)
    pair[0, 2] = pair[2, 0] = np.inf
    with pytest.raises(InputError, match=message):
        cluster_of(tiny([3, 3, 3], send_s=pair, sample_bytes=size), 2)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped is noticed soon."""
    monkeypatch.setattr(limits, "STOPPED_S", 0.3)
    monkeypatch.setattr(limits, "LOOK_S", 0.05)


NAMES = ("n0", "n1", "n2")


@pytest.mark.parametrize(("how", "text"), [("KILL", "died"), ("STOP", "is stopped")])
def test_a_node_that_is_gone_is_named(how: str, text: str, impatient: None, tmp_path: Path) -> None:
    """Also where the others wait for it; the others get new processes and go on."""
    with NodeWorkers() as workers:
        with workers.group(NAMES) as group:
            before = [process.pid for process in group.processes]

        def lose_one() -> None:
            with workers.group(NAMES) as group:
                os.kill(group.processes[1].pid or 0, getattr(signal, f"SIG{how}"))
                group.order_all("time_steps", *order(tmp_path, 3))

        with pytest.raises(NodeLeft, match=f"node 'n1': the worker process {text}") as error:
            lose_one()
        assert error.value.ranks == (1,)
        with workers.group(("n0", "n2")) as group:
            assert not {process.pid for process in group.processes} & set(before)
            assert len(group.order_all("time_steps", *order(tmp_path, 2))) == 2


def test_a_node_that_raises_has_not_left() -> None:
    """It is an error with its traceback, and the next use has other processes."""
    with NodeWorkers() as workers:
        text = "node 'n.': the worker raised an error .*no order"
        with pytest.raises(WorkerError, match=text) as error, workers.group(NAMES) as group:
            group.order_all("no such order")
        assert not isinstance(error.value, NodeLeft)
        with workers.group(NAMES) as group:
            assert group.dead() == ()


def test_one_set_of_processes_serves_moves_and_training(tmp_path: Path) -> None:
    """The same processes all the time, and none is left at the end."""
    problem = tiny([20, 20, 20])
    shards, digests = deal(problem, images(60, 1), tmp_path)
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([8]))
    back = SamplePlan(np.array([1]), np.array([2]), np.array([8]))
    with NodeWorkers() as workers:
        with workers.group(NAMES) as group:
            before = list(group.processes)
        for moves in (plan, back):
            move(problem, moves, shards, digests, speed=1e4, workers=workers)
            problem = problem.replace(samples=counted(held_by(problem, shards)))
            train(problem, shards, Recipe(epochs=1), digits_job(), 1e6, workers=workers)
        with workers.group(NAMES) as group:
            assert group.processes == before
    assert [len(shard.samples()) for shard in shards] == [12, 20, 28]
    assert not any(process.is_alive() for process in before)


def order(folder: Path, world: int) -> tuple[TrainingOrder, tuple[int, ...]]:
    """Two steps of two samples; the nodes meet in `folder`."""
    problem, job = tiny([1] * world), digits_job()
    (own := folder / f"{world}").mkdir()
    zero, *_ = training_orders(problem, [empty(own)] * world, Recipe(batch=4), job, own)
    rows = write_batch(job.samples, 2, own / "rows")
    programs = {"programs": job.programs([2]), "counts": job.counts([2])}
    return replace(zero, test=rows, **programs), (2, 2)


def empty(folder: Path) -> Shard:
    """A node without samples."""
    shard = Shard(folder / "shard")
    shard.create()
    return shard


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_files_move_over_shaped_links_and_nodes_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 files of 200 kB at 5 MB/s take at least 1.2 s; measuring tells the slower node."""
    monkeypatch.setattr("placewright.samples.run.FILES", 8)
    monkeypatch.setattr("placewright.samples.run.REPEATS", 6)
    problem = tiny(
        [40, 2],
        seconds_per_sample=np.array([0.4, 0.1]),
        send_s=np.array([[np.inf, 0.04], [0.04, np.inf]]),
        sample_bytes=200_000.0,
    )
    recipe = Recipe(epochs=1, batch=20)
    job = digits_job(42, channels=16, depth=2, enlarged=4)  # several quota periods
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([30]))
    with nodes_up(problem) as up:
        for _ in range(3):  # others may keep the faster node from its core for a while
            measured = measure(problem, recipe, job, up.workers).of(problem, recipe.batch)
            if measured.seconds_per_sample[0] > measured.seconds_per_sample[1]:
                break
        assert measured.seconds_per_sample[0] > measured.seconds_per_sample[1]
        [one] = run(measured, plan, job, recipe=recipe, baselines=(), workers=up.workers)
        assert up.bed.links.get("bytes", 0, 1) > 30 * 200_000
    assert one.real
    assert one.move_s >= 0.9 * 30 * 0.04
    assert one.moved_samples == 30


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_a_node_of_a_testbed_slows_down_and_one_leaves(tmp_path: Path) -> None:
    """Its quota falls at its epoch; the others go on without the one that was killed."""
    problem = tiny([20, 20, 20], epochs=2, sample_bytes=2_000.0)
    shards, digests = deal(problem, images(60, 1), tmp_path, file_bytes=2_000.0)
    with nodes_up(problem) as up:
        before = up.bed.cpu_share("n0")

        def slow_down(node: int, times: float) -> None:
            name = problem.node_names[node]
            up.bed.set_device(name, speed=up.bed.cpu_share(name) / times)

        job = Adaptive(
            problem,
            shards,
            digests,
            Recipe(epochs=2, batch=30),
            digits_job(),
            disturbances=(Disturbance(0, 0, 2.0), Disturbance(1, 2, np.inf)),
            workers=up.workers,
            slow_down=slow_down,
        )
        steps = job.run()
        assert up.bed.cpu_share("n0") == pytest.approx(before / 2, abs=1e-3)
    assert [step.left for step in steps] == [(), ("n2",)]
    audit([job.shards[i] for i in job.alive], job.digests)
