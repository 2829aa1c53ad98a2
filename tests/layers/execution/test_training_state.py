"""Parameters and optimizer states move from plan to plan."""

from __future__ import annotations

import pytest
import torch

from placewright.capturing.updates import OPTIMIZER
from placewright.cluster.cluster import Cluster, Device
from placewright.layers.execution.session import LayerSession, loss_of
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.run import trained_alone
from tests.layers.models import image_model

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")


@pytest.mark.parametrize("optimizer", ["adam"])
def test_every_strategy_continues_where_another_one_stopped(optimizer: str) -> None:
    """One step under each plan is as many steps of one process."""
    source = image_model()
    model = TracedModel(source)
    n = len(model.layers)
    apart = (Replica((0,), 4), Replica((1,), 8))
    one = (Replica((0,), 6),)
    plans = [LayerPlan((Stage(0, n - 1, apart, zero_stage=z),)) for z in (0, 1, 2, 3)]
    plans.append(LayerPlan((Stage(0, n - 1, (Replica((0, 1), 12),), 2),)))
    plans.append(LayerPlan((Stage(0, 1, one), Stage(2, n - 1, (Replica((1,), 6),))), 2))
    batches = [(source.inputs, source.targets)] * (len(plans) + 1)
    losses, expected = trained_alone(source, batches, optimizer, 1e-2)

    found, state = [], None
    with LayerSession(model, TWO, optimizer=optimizer, lr=1e-2) as session:
        for plan in [*plans, plans[0]]:
            session.load(plan, state)
            (times,) = session.train(1)
            found.append(loss_of(times))
            state = session.training_state()

    assert state is not None
    assert found == pytest.approx(losses, rel=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(state[f"model.{name}"], value, rtol=1e-4, atol=1e-5)
        steps = state[f"{OPTIMIZER}step:model.{name}"]
        assert int(steps) == len(batches)
