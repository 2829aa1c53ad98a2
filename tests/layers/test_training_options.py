"""Accumulation, autocast, scalers, odd last batches: as an ordinary loop of PyTorch has them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.source import TrainingRecipe
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.layers.adaptive import smaller
from placewright.layers.execution.session import LayerSession
from placewright.layers.placed_training import train
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.training import train_steps

pytestmark = pytest.mark.usefixtures("measured_once")

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")
GENERATOR = torch.Generator().manual_seed(3)
LAYERS, BATCH, ODD, STEPS = 2, 8, 3, 7
DATA = [
    (torch.randn(rows, 6, generator=GENERATOR), torch.randn(rows, 3, generator=GENERATOR))
    for rows in [BATCH] * 3 + [ODD] + [BATCH] * 2 + [ODD]
]
ONE = LayerPlan((Stage(0, LAYERS - 1, (Replica((0,), BATCH),)),))
HALVES = LayerPlan((Stage(0, LAYERS - 1, (Replica((0,), 5), Replica((1,), 3))),))
DIVIDED = LayerPlan((Stage(0, LAYERS - 1, (Replica((0,), 4), Replica((1,), 4)), zero_stage=3),))
OWN_STATES = LayerPlan((replace(DIVIDED.stages[0], zero_stage=1),))
SPLIT = LayerPlan(
    (Stage(0, 1, (Replica((0, 1), BATCH),), 2, strategies=(Strategy.TENSOR, Strategy.DATA)),)
)
CHAIN = LayerPlan(
    (Stage(0, 0, (Replica((0,), 4),)), Stage(1, 1, (Replica((1,), 4),))), micro_batches=2
)
EXACT, ROUNDING = 0.0, 1e-5
"""Of parameters after all steps: bit for bit on one worker; sums in another order on two."""

HALF = 0.02
"""Of sums of parts of a batch in bfloat16: three digits of each gradient."""


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The second is of the rectified first."""
        return self.second(torch.relu(self.first(x)))


def overflowing(x: Tensor, y: Tensor) -> Tensor:
    """A loss whose scaled gradients are infinite until the scale has shrunk."""
    return nn.functional.mse_loss(x, y) * 1e3


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[LayerPlan]:
    """Plans with which workers were given weights."""
    found: list[LayerPlan] = []
    load = LayerSession.load

    def noted(session: LayerSession, plan: LayerPlan, *args: Any, **options: Any) -> None:
        found.append(plan)
        load(session, plan, *args, **options)

    monkeypatch.setattr(LayerSession, "load", noted)
    return found


def eager(
    model: nn.Module, recipe: TrainingRecipe, loss_fn: Any, data: list[tuple[Tensor, Tensor]]
) -> list[float]:
    """An ordinary loop."""
    optimizer: Any = recipe.optimizer
    scaler, losses = recipe.scaler or torch.amp.GradScaler("cpu", enabled=False), list[float]()
    for k, (x, y) in enumerate(data):
        with recipe.casting():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (k + 1) % recipe.accumulate == 0:
            scaler.unscale_(optimizer)
            if recipe.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def scaler() -> torch.amp.GradScaler:
    """One that grows soon and begins too high for `overflowing`."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=2)


OPTIONS: dict[str, tuple[LayerPlan, dict[str, Any], float]] = {
    "an odd batch": (ONE, {}, EXACT),
    "an odd batch of two workers": (HALVES, {}, ROUNDING),
    "an odd batch of a chain": (CHAIN, {}, ROUNDING),
    "an odd batch of divided weights": (DIVIDED, {}, ROUNDING),
    "an odd batch of divided states": (OWN_STATES, {"clip_norm": 0.5}, ROUNDING),
    "an odd batch of split layers": (SPLIT, {}, ROUNDING),
    "accumulation": (ONE, {"accumulate": 3}, EXACT),
    "accumulation and clipping": (HALVES, {"accumulate": 2, "clip_norm": 0.5}, ROUNDING),
    "accumulation of divided weights": (DIVIDED, {"accumulate": 3}, ROUNDING),
    "autocast": (ONE, {"autocast": "bfloat16"}, EXACT),
    "autocast of two workers": (HALVES, {"autocast": torch.bfloat16}, HALF),
    "autocast of a chain": (CHAIN, {"autocast": "bfloat16"}, HALF),
    "clipping": (ONE, {"clip_norm": 0.01}, EXACT),
    "a scaler": (ONE, {"scaler": True}, EXACT),
    "all of a chain": (
        CHAIN,
        {"autocast": "bfloat16", "scaler": True, "accumulate": 2, "clip_norm": 1.0},
        HALF,
    ),
    "all": (
        ONE,
        {"autocast": "bfloat16", "scaler": True, "accumulate": 2, "clip_norm": 1.0},
        EXACT,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_steps_are_those_of_an_ordinary_loop(name: str, loads: list[LayerPlan]) -> None:
    """Losses, weights, the optimizer's state and the scaler; smaller batches among the others.

    Weights are loaded for the first one: smaller batches are computed with what the workers hold.
    """
    plan, options, most = OPTIONS[name]
    loss_fn = overflowing if "scaler" in options else nn.functional.mse_loss
    torch.manual_seed(0)
    model = Net()
    known = copy.deepcopy(model)
    recipes = []
    for each in (model, known):
        own = options | ({"scaler": scaler()} if "scaler" in options else {})
        recipes.append(TrainingRecipe(torch.optim.AdamW(each.parameters(), lr=0.01), **own))
    expected = eager(known, recipes[1], loss_fn, DATA)
    how: Any = {"loss_fn": loss_fn, "targets": DATA[0][1], "optimizer": recipes[0]}
    with (
        train(model, DATA[0][0], TWO, plan=plan, trials=False, **how) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        losses = [trainer.step(*DATA[0])]
        loads.clear()
        losses += [trainer.step(x, y) for x, y in DATA[1:]]
        trainer.finish()
    assert not loads
    for found, right in zip(losses, expected, strict=True):
        assert math.isclose(found, right, rel_tol=most)
    for (key, value), right in zip(model.state_dict().items(), known.parameters(), strict=True):
        assert torch.allclose(value, right, rtol=most, atol=most), key
    if "scaler" in options:
        assert recipes[0].scaler is not None
        assert recipes[1].scaler is not None
        assert recipes[0].scaler.state_dict() == recipes[1].scaler.state_dict()
        assert recipes[0].scaler.get_scale() < 2.0**125


def test_accumulation_survives_a_lost_worker_and_a_new_plan(tmp_path: Path) -> None:
    """Gradients that are kept are part of snapshots; batches that are repeated have their step."""
    torch.manual_seed(0)
    model, known = Net(), Net()
    known.load_state_dict(model.state_dict())
    recipes = [
        TrainingRecipe(torch.optim.SGD(each.parameters(), lr=0.1), accumulate=3)
        for each in (model, known)
    ]
    eager(known, recipes[1], nn.functional.mse_loss, DATA)
    how: Any = {"loss_fn": nn.functional.mse_loss, "targets": DATA[0][1], "optimizer": recipes[0]}
    with (
        train(model, DATA[0][0], TWO, plan=HALVES, trials=False, **how) as placed,
        placed.trainer(tmp_path, snapshot_every=2, disturbances={4: ("b", math.inf)}) as trainer,
    ):
        for x, y in DATA:
            trainer.step(x, y)
        trainer.finish()
        assert any("lost" in event.text or "b" in event.text for event in trainer.timeline.events)
    for value, right in zip(model.parameters(), known.parameters(), strict=True):
        assert torch.allclose(value, right, rtol=1e-5, atol=1e-6)


def test_inputs_may_be_the_targets_and_the_check_knows_the_options() -> None:
    """A language model's batch is both; one process is compared with all options."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), DATA[0][0]
    recipe = TrainingRecipe("sgd", lr=0.1, accumulate=2, autocast="bfloat16", scaler=scaler())
    how: Any = {"loss_fn": overflowing, "targets": x, "optimizer": recipe}
    with (
        train(model, x, TWO, plan=ONE, trials=False, **how) as placed,
        placed.trainer() as trainer,
    ):
        done = train_steps(trainer, 5, check=True)
        assert done.max_rel_error == 0.0
        with pytest.raises(InputError, match="the last may have fewer"):
            trainer.step(torch.cat([x, x]), torch.cat([x, x]))


def test_the_check_begins_with_the_weights_that_training_began_with() -> None:
    """A model that is read after the steps has what they have learned."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), torch.randn(BATCH, 6)
    how: Any = {"loss_fn": nn.functional.mse_loss, "targets": x, "optimizer": "sgd", "lr": 0.1}
    with train(model, x, TWO, plan=ONE, trials=False, **how) as placed:
        with placed.trainer() as trainer:
            done = train_steps(trainer, 4, check=True)
            trainer.finish()
        assert done.losses[0] > done.losses[-1]
        assert done.max_rel_error == 0.0


def test_a_plan_for_fewer_samples_takes_no_more_at_a_time() -> None:
    """Else a worker might lack the memory."""
    for rows in range(1, BATCH):
        for plan in (ONE, HALVES, CHAIN):
            *same, alone = smaller(plan, rows)
            assert alone.micro_batch * alone.micro_batches == rows
            assert alone.micro_batch <= max(plan.stages[0].shares)
            assert [len(stage.replicas) for stage in alone.stages] == [1] * len(plan.stages)
            for found in same:
                assert found.micro_batch * found.micro_batches == rows
                assert found.workers == plan.workers
                shares = zip(found.stages[0].shares, plan.stages[0].shares, strict=True)
                assert all(1 <= share <= most for share, most in shares)
    assert [len(smaller(HALVES, rows)) for rows in range(1, BATCH)] == [1] + [2] * 6


def test_a_batch_of_fewer_samples_than_replicas_goes_to_one_worker(loads: list[LayerPlan]) -> None:
    """It loads that plan, and the former one again."""
    torch.manual_seed(0)
    model = Net()
    known, (x, y) = copy.deepcopy(model), DATA[0]
    optimizer = torch.optim.SGD(known.parameters(), lr=0.1)
    recipe = TrainingRecipe(optimizer)
    data = [(x, y), (x[:1], y[:1]), (x, y)]
    expected = eager(known, recipe, nn.functional.mse_loss, data)
    how: Any = {"loss_fn": nn.functional.mse_loss, "targets": y, "optimizer": "sgd", "lr": 0.1}
    with (
        train(model, x, TWO, plan=HALVES, trials=False, **how) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        losses = [trainer.step(*batch) for batch in data]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert [len(plan.workers) for plan in loads[-2:]] == [1, 2]
