"""Devices in one process, and messages without tags, give eager's results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import WorkerError
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import Runner
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from small_zoo import small
from tests.runtime.chain import answer, diamond
from tests.runtime.layouts import Laid
from tests.runtime.test_migration import placements
from tests.runtime.test_migration import small as mixed

TRIO = Cluster(tuple(Device(n) for n in "abc"), name="trio")

LAYOUTS = {
    "one process": Laid((0, 0, 0)),
    "two and one": Laid((0, 1, 0)),
    "without tags": Laid((0, 1, 2), gpus=3),
    "two without tags": Laid((0, 1, 2), gpus=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_placement_gives_the_same_bits(layout: str) -> None:
    """All placements of the diamond on three devices, transposed layouts included."""
    graph, state = diamond()
    with Session(graph, TRIO, state, LAYOUTS[layout]) as session:
        for placement in itertools.product(range(3), repeat=4):
            session.load(placement, range(4))
            (record,) = session.run(1, watched=True)
            assert torch.equal(session.outputs()["output"], answer(state))
            for device, log in enumerate(record.logs):
                assert log.operators == tuple(k for k in range(4) if placement[k] == device)
                assert len(log.spans_s) == 2 * len(log.operators)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("rnnlm", "one process"),
        ("bert", "two and one"),
        ("rnnlm", "without tags"),
        ("alexnet", "two without tags"),
    ],
)
def test_training_on_random_placements_equals_eager_bit_for_bit(name: str, layout: str) -> None:
    """Three steps: loss, every parameter and every buffer, random masks included."""
    source = small(name)
    graph = capture_source(source, training=True)
    problem = profile(graph, TRIO, method="analytic")
    rng = np.random.default_rng(1)
    with Session(graph, TRIO, initial_state(source, graph.program), LAYOUTS[layout]) as session:
        for seed in range(2):
            groups = rng.integers(0, 3, size=int(problem.colocation.max()) + 1)
            plan = OperatorPlan(groups[problem.colocation])
            runner = Runner(session)
            runner.load(problem, plan, seed)
            assert runner.check(source, seed).max_abs_error == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_migration_loses_nothing(layout: str) -> None:
    """Rotating placements between steps: the same state as on a placement that stays."""
    source, graph = mixed()
    order, turns = range(len(graph.operators)), placements(graph, 3)
    state = initial_state(source, graph.program)
    with Session(graph, TRIO, state, LAYOUTS[layout]) as session:
        session.load(turns[0], order)
        session.run(4)
        expected = session.state()
        session.load(turns[0], order)
        for turn in (1, 2, 0, 1):
            session.run(1)
            assert session.migrate(turns[turn], order) > 0
        found = session.state()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[k], expected[k]) for k in expected)


def test_a_shared_process_is_named_by_its_devices_and_they_are_lost_together() -> None:
    """The error that an adaptive run gets when the process of two devices dies."""
    graph, state = diamond()
    with Session(graph, TRIO, state, LAYOUTS["two and one"]) as session:
        assert [spec.device_name for spec in session.group.specs] == ["a+c", "b"]
        assert len(session.probe_speeds()) == 3
        assert {(i, j) for i, j, *_ in session.probe_links()} == {(0, 1), (1, 0), (1, 2), (2, 1)}
        assert [link[:2] for link in session.probe_links([(0, 1), (0, 2)])] == [(0, 1)]
    session = Session(graph, TRIO, state, LAYOUTS["two and one"])
    with pytest.raises(WorkerError, match=r"a\+c"):
        _run_without_the_first(session)


def _run_without_the_first(session: Session) -> None:
    with session:
        session.group.processes[0].kill()  # type: ignore[attr-defined]
        session.group.processes[0].join()  # type: ignore[attr-defined]
        assert session.lost() == {"a", "c"}
        session.run(1)
