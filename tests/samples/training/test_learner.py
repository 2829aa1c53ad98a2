"""Gradients that a node sends, against the plain sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.samples.data import deal
from placewright.samples.training.node_training import KEPT, Learner, Recipe
from placewright.samples.training.train import training_orders
from tests.samples.jobs import digits_job
from tests.samples.tiny import tiny

torch = pytest.importorskip("torch")


class Alone:
    """A group of one node."""

    def get_world_size(self) -> int:
        """One."""
        return 1

    def all_gather(self, outputs: list[Any], message: Any) -> None:
        """Its own message; remembers how many bytes that is."""
        outputs[0].copy_(message)
        self.sent_bytes = message.numel() * message.element_size()


def test_what_is_not_sent_is_kept_for_the_next_step(tmp_path: Path) -> None:
    """The largest tenth moves the parameters, the rest is held back, and together they are all."""
    job, recipe = digits_job(12), Recipe(compression="top10")
    shards, _ = deal(tiny([12]), job.samples, tmp_path / "shards")
    (order,) = training_orders(tiny([12]), shards, recipe, job, tmp_path)
    learner = Learner(order)
    learner.load({s: shards[0].read(s) for s in range(12)})
    before, group = learner._flat().numpy().copy(), Alone()
    learner.gradients(np.arange(12), learner.divisors(np.arange(12)))
    gradient = learner.gradient.numpy().copy()
    learner.step_together(group, 12)
    sent = (before - learner._flat().numpy()) / job.lr * 12
    assert np.count_nonzero(np.abs(sent) > 1e-6) <= int(KEPT * len(gradient))
    assert np.abs(sent).max() == pytest.approx(np.abs(gradient).max(), rel=1e-4)
    np.testing.assert_allclose(sent + learner.held_back.numpy(), gradient, atol=1e-4)
    assert group.sent_bytes < 0.21 * gradient.nbytes
    assert learner.save(tmp_path / "saved") == ""
    assert "No space left" in learner.save(Path("/dev/full"))  # an answer: the node goes on
