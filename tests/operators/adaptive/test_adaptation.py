"""A device really slows down, and the run migrates from it without losing a bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from placewright.adapt.timeline import Kind
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.graph.program import Program
from placewright.operators.adaptive.policy import Policy
from placewright.operators.adaptive.run import AdaptiveRun, Job
from placewright.operators.plan import OperatorPlan
from placewright.profiling.build import profile
from placewright.runtime.eager import run_eager

DUO = Cluster(
    (Device("a", node="a"), Device("b", node="b", speed=0.5)),
    (Link("a", "b", 1e9, 5e-5), Link("b", "a", 1e9, 5e-5)),
    name="duo",
)


def heavy() -> tuple[ModelSource, Job]:
    """Some ten milliseconds of matrix products, measured costs."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(4)]
    source = ModelSource(
        torch.nn.Sequential(*layers), (torch.randn(96, 384),), mean_square, None, "heavy"
    )
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    return source, Job(graph, DUO, profile(graph, DUO, state=state), state)


def work_on(device: int, job: Job, run: AdaptiveRun) -> float:
    """Share of a step's computation that the plan in force places on a device.

    Weighted, for most operators cost nearly nothing and may stay wherever they are.
    """
    assert run.adaptation is not None
    seconds = job.problem.compute_s[:, 0]
    return float(seconds[run.adaptation.plan.placement == device].sum() / seconds.sum())


def test_a_run_leaves_a_device_that_has_become_slow_and_returns(tmp_path: Path) -> None:
    """Eight times slower after step 10: the next steps see it, plan again and migrate. Fast again
    it changes no step, for nothing runs there; it is looked after, and gets its work back.
    """
    source, job = heavy()
    policy = Policy(sample_every=10, trial_steps=3, look_share=0.5)
    with AdaptiveRun(job, tmp_path, policy=policy, snapshot_every=1000) as run:
        while run.done < 10:
            run.step()
        assert run.session is not None
        assert run.adaptation is not None
        assert run.adaptation.online.knows_usual  # from its first calm steps
        run.session.disturb([8.0, 2.0])
        before = run.timeline.count(Kind.MIGRATE)  # on a busy machine not always none
        while run.done < 150 and work_on(1, job, run) < 0.5:
            run.step()
        assert run.timeline.count(Kind.MIGRATE) > before
        assert work_on(1, job, run) > 0.5
        run.adaptation._switch(OperatorPlan(np.ones(job.problem.n, dtype=np.int64)), 0.0)
        run.session.disturb([1.0, 2.0])
        while run.done < 300 and work_on(0, job, run) < 0.5:
            run.step()
        assert work_on(0, job, run) > 0.5
        steps, state = run.done, run.state()
    assert isinstance(job.graph.program, Program)
    expected = run_eager(source, training=True, steps=steps).state
    for item in job.graph.program.inputs:
        if item.role == "parameter":
            assert torch.equal(state[item.name], expected[item.key])
