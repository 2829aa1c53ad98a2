"""Nodes of wing 3 as devices of a testbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.samples.adaptive.replanning import Adaptive, Trouble
from placewright.samples.data.dealing import deal
from placewright.samples.data.images import images
from placewright.samples.data.shards import audit
from placewright.samples.measuring.speeds import measure
from placewright.samples.nodes.on_testbed import SPARE_CORES, cluster_of, nodes_up
from placewright.samples.plan import SamplePlan
from placewright.samples.run import run
from placewright.samples.training.recipe import Recipe
from placewright.testbed.requirements import missing
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


@pytest.mark.parametrize(("size", "told"), [(10.0, "sample_bytes"), (5_000.0, "not joined")])
def test_what_cannot_be_made_real_is_refused(size: float, told: str) -> None:
    """Files smaller than an image; nodes that cannot exchange gradients."""
    pair = np.full((3, 3), 0.05)
    pair[0, 2] = pair[2, 0] = np.inf
    with pytest.raises(InputError, match=told):
        cluster_of(tiny([3, 3, 3], send_s=pair, sample_bytes=size), 2)


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_files_move_over_shaped_links_and_nodes_train() -> None:
    """30 files of 400 kB at 4 MB/s take at least 3 s; measuring tells the slower node."""
    problem = tiny(
        [40, 2],
        seconds_per_sample=np.array([0.4, 0.1]),
        send_s=np.array([[np.inf, 0.1], [0.1, np.inf]]),
        sample_bytes=400_000.0,
    )
    recipe = Recipe(epochs=1, batch=20, channels=16, depth=2, enlarged=4)  # several quota periods
    plan = SamplePlan(np.array([0]), np.array([1]), np.array([30]))
    with nodes_up(problem) as up:
        measured = measure(problem, recipe, up.handles).of(problem, recipe.batch)
        assert measured.seconds_per_sample[0] > measured.seconds_per_sample[1]
        [one] = run(
            measured, plan, recipe=recipe, baselines=(), handles=up.handles, kind="synthetic"
        )
        assert up.bed.links.get("bytes", 0, 1) > 30 * 400_000
    assert one.real
    assert one.move_s >= 0.9 * 30 * 0.1
    assert one.moved_samples == 30


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_a_node_of_a_testbed_slows_down_and_one_leaves(tmp_path: Path) -> None:
    """Its quota falls when it is told to; the others go on without the one that was killed."""
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
            images(20, 2),
            trouble=(Trouble(0, 0, 2.0), Trouble(1, 2, np.inf)),
            handles=up.handles,
            slow_down=slow_down,
        )
        steps = job.run()
        assert up.bed.cpu_share("n0") == pytest.approx(before / 2, abs=1e-3)
    assert [step.left for step in steps] == [(), ("n2",)]
    audit([job.shards[i] for i in job.alive], job.digests)
