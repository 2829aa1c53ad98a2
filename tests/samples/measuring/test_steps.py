"""A few real steps of two processes, as they are timed before a plan."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import WorkerError
from placewright.samples.measuring import steps
from placewright.samples.measuring.steps import take_steps
from placewright.samples.training.recipe import Recipe
from tests.samples.tiny import tiny

pytest.importorskip("torch")


def test_every_step_of_every_node_is_timed_in_two_parts() -> None:
    """As many as were asked for, of the sizes that were asked for, own work and exchange."""
    trials = take_steps(tiny([5, 5]), Recipe(batch=4), (), np.array([[2, 1, 3], [1, 2, 1]]))
    assert len(trials) == 2
    for trial in trials:
        assert trial.compute_s.shape == trial.exchange_s.shape == (3,)
        assert (trial.compute_s > 0).all()
        assert (trial.exchange_s > 0).all()


def test_nodes_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ones, and how long they were waited for."""
    monkeypatch.setattr(steps, "LONGEST_S", 0.001)
    with pytest.raises(WorkerError, match=r"node 0, 1: no answer in time \(0.001 s\)"):
        take_steps(tiny([5, 5]), Recipe(batch=4), (), np.array([[2], [1]]))
