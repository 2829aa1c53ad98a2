"""Every strategy gives the loss and the gradients of one process, on gloo workers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.updates import SETTINGS, current_settings, update_of
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError
from placewright.layers.execution.session import LayerSession, loss_of
from placewright.layers.execution.stage_orders import TracedModel, check_executable
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, Strategy
from placewright.layers.run import checked
from tests.layers.models import language_model, one_process

DATA, REPLICATED, TENSOR = Strategy.DATA, Strategy.REPLICATED, Strategy.TENSOR


def stage(first: int, last: int, workers: list[list[int]], shares: list[int], **more) -> Stage:
    """Layers on replicas of workers."""
    replicas = tuple(Replica(tuple(w), s) for w, s in zip(workers, shares, strict=True))
    return Stage(first, last, replicas, len(workers[0]), **more)


MIX = (TENSOR, DATA, REPLICATED, TENSOR) * 2

PLANS = {
    "one worker": LayerPlan((stage(0, 7, [[1]], [12]),)),
    "data, uneven": LayerPlan((stage(0, 7, [[0], [1]], [7, 5]),)),
    "data, micro-batches": LayerPlan((stage(0, 7, [[2], [0], [1]], [3, 1, 2]),), 2),
    "recompute": LayerPlan((stage(0, 7, [[0], [1]], [7, 5], recompute=True),)),
    "zero 1": LayerPlan((stage(0, 7, [[0], [1], [2]], [3, 2, 1], zero_stage=1),), 2),
    "a grid, zero 1": LayerPlan(
        (
            stage(0, 2, [[0], [1]], [2, 1], zero_stage=1),
            stage(3, 7, [[2], [3]], [2, 1], zero_stage=1),
        ),
        4,
    ),
    "zero 2": LayerPlan((stage(0, 7, [[0], [1]], [4, 2], zero_stage=2),), 2),
    "zero 3": LayerPlan((stage(0, 7, [[0], [1]], [7, 5], zero_stage=3),)),
    "gpipe": LayerPlan((stage(0, 2, [[0]], [3]), stage(3, 7, [[1]], [3])), 4, Schedule.GPIPE),
    "1f1b, four stages": LayerPlan(
        (
            stage(0, 0, [[3]], [2]),
            stage(1, 4, [[1]], [2]),
            stage(5, 6, [[0]], [2]),
            stage(7, 7, [[2]], [2]),
        ),
        6,
    ),
    "interleaved": LayerPlan(
        tuple(stage(2 * s, 2 * s + 1, [[1 - s % 2]], [3]) for s in range(4)),
        4,
        Schedule.INTERLEAVED,
    ),
    "interleaved, a grid, zero 1": LayerPlan(
        tuple(
            stage(2 * s, 2 * s + 1, [[[0], [1]], [[2], [3]]][s % 2], [2, 1], zero_stage=1)
            for s in range(4)
        ),
        4,
        Schedule.INTERLEAVED,
    ),
    "1f1b, one micro-batch": LayerPlan((stage(0, 2, [[0]], [12]), stage(3, 7, [[1]], [12]))),
    "a pipeline behind a split layer": LayerPlan(
        (
            stage(0, 2, [[0, 1]], [4], strategies=(TENSOR, REPLICATED, DATA)),
            stage(3, 7, [[2, 3]], [4], strategies=(DATA, DATA, DATA, TENSOR, REPLICATED)),
        ),
        3,
    ),
    "data inside a replica": LayerPlan((stage(0, 7, [[0, 1]], [12], strategies=(DATA,) * 8),)),
    "tensor": LayerPlan((stage(0, 7, [[0, 1, 2, 3]], [12]),)),
    "a mix per layer": LayerPlan((stage(0, 7, [[0, 1], [2, 3]], [7, 5], strategies=MIX),)),
    "a grid": LayerPlan((stage(0, 2, [[0], [1]], [2, 1]), stage(3, 7, [[2], [3]], [2, 1])), 4),
    "a grid, sharded": LayerPlan(
        (
            stage(0, 2, [[0], [1]], [2, 1], zero_stage=3),
            stage(3, 7, [[2], [3]], [2, 1], zero_stage=3),
        ),
        4,
    ),
    "a pipeline of mixes": LayerPlan(
        (
            stage(0, 2, [[0, 1]], [6], strategies=(DATA, REPLICATED, TENSOR)),
            stage(3, 7, [[2, 3]], [6], strategies=(TENSOR, *(DATA,) * 4)),
        ),
        2,
    ),
}


@pytest.fixture(scope="module")
def session() -> Iterator[LayerSession]:
    """Four workers; plans for fewer leave some out."""
    devices = tuple(Device(f"d{k}", node=f"n{k}") for k in range(4))
    cluster, model = Cluster(devices, (), "four"), TracedModel(language_model())
    # Adam would divide rounding errors of gradients that are zero by their own size.
    with LayerSession(model, cluster, optimizer="sgd", lr=0.1) as session:
        yield session


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_computes_what_one_process_does(name: str, session: LayerSession) -> None:
    """Loss to six digits, gradients to 1e-6."""
    expected_loss, expected = one_process(session.model.source)

    session.load(PLANS[name])
    (times,) = session.train(1, update=False)
    gradients = session.gradients()

    assert loss_of(times) == pytest.approx(expected_loss, abs=1e-6)
    assert gradients.keys() == expected.keys()
    for key, gradient in expected.items():
        assert (gradients[key] - gradient).abs().max() <= 1e-6, key


@pytest.mark.parametrize("momentum", [0.1, None])
def test_layers_that_are_computed_again_update_statistics_once(momentum: float | None) -> None:
    """Batch norm updated its running statistics in the backward pass once more."""
    torch.manual_seed(0)
    norms = (torch.nn.BatchNorm1d(6, momentum=momentum) for _ in range(2))
    parts = [m for norm in norms for m in (torch.nn.Linear(6, 6), norm, torch.nn.Tanh())]
    rows = torch.randn(8, 6)
    source = ModelSource(torch.nn.Sequential(*parts), rows, torch.nn.MSELoss(), rows.flip(0))
    model, devices = TracedModel(source), tuple(Device(f"d{k}", node=f"n{k}") for k in range(2))
    last = len(model.layers) - 1
    first, second = (
        stage(a, b, [[k]], [8], recompute=True)
        for k, (a, b) in enumerate(((0, last // 2), (last // 2 + 1, last)))
    )
    with LayerSession(model, Cluster(devices, (), "two"), optimizer="sgd", lr=0.1) as two:
        for plan in (LayerPlan((first, second)), LayerPlan((replace(first, last_layer=last),))):
            assert checked(two, plan)[1] <= 1e-6


def test_training_ends_with_the_parameters_of_one_process(session: LayerSession) -> None:
    """Also where optimizer states are divided among the workers."""
    ends = []
    for name in ("one worker", "data, uneven", "zero 1", "a grid, zero 1", "a grid, sharded"):
        session.load(PLANS[name])
        session.train(2)
        ends.append(session.parameters())

    start = session.model.state()
    for other in ends[1:]:
        assert other.keys() == ends[0].keys()
        for key, value in ends[0].items():
            assert (other[key] - value).abs().max() <= 1e-6, key
    assert any((ends[0][key] - start[key]).abs().max() > 1e-4 for key in ends[0])


CLIPPED = ("data, uneven", "zero 1", "a grid, sharded", "a pipeline of mixes", "a mix per layer")


@pytest.mark.parametrize("limit", [{"clip_norm": 0.05}, {"clip_value": 1e-3}], ids=str)
@pytest.mark.parametrize("name", [*CLIPPED, "interleaved, a grid, zero 1"])
def test_groups_and_clipping_are_those_of_eager(
    name: str, limit: dict[str, float], session: LayerSession
) -> None:
    """Of the norm of all gradients, wherever they are; also where groups change between steps."""
    source, before = session.model.source, session.update
    model = copy.deepcopy(source.model)
    recipe = TrainingRecipe(_unlike_groups(source.model), **limit)
    given, eager = recipe.optimizer, _unlike_groups(model)
    try:
        session.update = update_of(recipe, model=source.model)
        session.load(PLANS[name])
        for step in range(2):
            for optimizer in (given, eager):
                optimizer.param_groups[1]["lr"] = 0.3 * (step + 1)
            numbers = {SETTINGS: current_settings(given, session.update)}
            session.feed_tensors(session.model.feeds(source) | numbers)
            (times,) = session.train(1)
            norm = _eager_step(model, source, eager, limit)
        found = session.parameters()
    finally:
        session.update = before
    assert all("clip_value" in limit or t.grad_norm == pytest.approx(norm) for t in times if t.loss)
    for key, value in model.named_parameters():
        assert (found[f"model.{key}"] - value).abs().max() <= 1e-6, key


def _unlike_groups(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Without decay for what has one dimension, as language models are trained."""
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": wide, "name": "wide"}, {"params": narrow, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.5, momentum=0.9, weight_decay=0.1)


def _eager_step(
    model: torch.nn.Module,
    source: ModelSource,
    optimizer: torch.optim.Optimizer,
    limit: dict[str, float],
) -> float:
    optimizer.zero_grad()
    _, gradients = one_process(replace(source, model=model))
    for key, p in model.named_parameters():
        p.grad = gradients.get(f"model.{key}")
    norm = 0.0
    if "clip_norm" in limit:
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit["clip_norm"]))
    else:
        torch.nn.utils.clip_grad_value_(model.parameters(), limit["clip_value"])
    optimizer.step()
    return norm


def test_zero_1_divides_the_states_of_the_optimizer(session: LayerSession) -> None:
    """Every parameter's states lie on one replica; gradients and weights stay whole."""
    sgd, session.update = session.update, update_of("adam", 0.1)
    try:
        session.load(PLANS["data, uneven"])
        session.train(1)
        whole = session.state_elements()
        session.load(
            replace(PLANS["data, uneven"], stages=(stage(0, 7, [[0], [1]], [7, 5], zero_stage=1),))
        )
        session.train(1)
        divided = session.state_elements()
    finally:
        session.update = sgd

    assert whole[0] == whole[1] > 0
    assert divided[0] + divided[1] == whole[0]
    assert min(divided[:2]) > 0


def test_sharding_inside_a_replica_is_refused() -> None:
    """The judge divides its memory, and no executor does."""
    plan = LayerPlan((stage(0, 7, [[0, 1]], [12], strategies=(Strategy.SHARDED,) * 8),))

    with pytest.raises(UnsupportedError, match="sharded inside a replica"):
        check_executable(plan)


def test_replicas_of_different_sizes_are_refused() -> None:
    """They can be simulated; workers of one column would have no partners in others."""
    plan = LayerPlan((stage(0, 7, [[0, 1], [2]], [8, 4]),))

    with pytest.raises(UnsupportedError, match="replicas of 1 and 2 workers"):
        check_executable(plan)


@pytest.mark.parametrize(
    ("workers", "micro", "zero", "words"),
    [
        ((0, 1, 1, 0), 4, 0, "go round the workers in one order"),
        ((0, 1, 0), 4, 0, "cannot be interleaved"),
        ((0, 1, 0, 1), 5, 0, "cannot be interleaved"),
        ((0, 0), 4, 0, "cannot be interleaved"),
        ((0, 1, 0, 1), 4, 3, "ZeRO 3 cannot be executed on interleaved stages"),
    ],
)
def test_stages_that_cannot_be_interleaved_are_refused(
    workers: tuple[int, ...], micro: int, zero: int, words: str
) -> None:
    """With the numbers that do not go together."""
    stages = tuple(stage(k, k, [[w]], [2], zero_stage=zero) for k, w in enumerate(workers))

    with pytest.raises(UnsupportedError, match=words):
        check_executable(LayerPlan(stages, micro, Schedule.INTERLEAVED))
