"""What a loop does with its model and optimizer between steps: as in eager, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placewright.adapt.training_loop import TrainingLoop, UnfinishedWarning
from placewright.capturing.guards import Guards
from placewright.capturing.source import ModelSource, TrainingRecipe
from placewright.capturing.updates import update_of
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.placed_training import PlacedTraining, train
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.training import LayerTraining
from tests.adapt.loop_changes import clip_after_reading, halve, reset_moments

pytestmark = pytest.mark.usefixtures("measured_once")

TWO = Cluster((Device("a", node="m"), Device("b", node="n")), (), "two")
WIDTHS = (6, 8, 3)
X, Y = torch.randn(8, WIDTHS[0]), torch.randn(8, WIDTHS[-1])
LAYERS = 2
ONE = LayerPlan((Stage(0, LAYERS - 1, (Replica((0,), 8),)),))
HALVES = LayerPlan((Stage(0, LAYERS - 1, (Replica((0,), 4), Replica((1,), 4)), zero_stage=1),))
loss_fn = nn.functional.mse_loss


class Scaled(nn.Module):
    """Two linear layers around a dropout, with an attribute that `forward` reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:])
        self.dropout, self.scale = nn.Dropout(0.0), 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Its output is scaled."""
        hidden = self.dropout(self.first(x)).relu()
        return self.second(hidden) * self.scale


Change = Callable[[Scaled, torch.optim.Optimizer], Any]


TAKEN: dict[str, Change] = {
    "a frozen layer": lambda m, o: m.first.requires_grad_(False),
    "a dropout": lambda m, o: setattr(m.dropout, "p", 1.0),
    "an attribute": lambda m, o: setattr(m, "scale", 2.0),
    "a mode": lambda m, o: m.dropout.eval(),
    "loaded weights": halve,
    "clamped weights, after they were read": clip_after_reading,
    "a learning rate": lambda m, o: o.param_groups[0].update(lr=0.01, weight_decay=0.2),
    "a cleared state": lambda m, o: o.state.clear(),
    "a changed state": reset_moments,
    "a loaded state": lambda m, o: o.load_state_dict(o.state_dict()),
}

Undo = Callable[[Scaled, torch.optim.Optimizer], Any]

REFUSED: dict[str, tuple[Change, Undo, str]] = {
    "another layer": (
        lambda m, o: setattr(m, "dropout", nn.Linear(8, 8)),
        lambda m, o: setattr(m, "dropout", nn.Dropout(0.0)),
        "has other layers|has other parameters|is new",
    ),
    "amsgrad": (
        lambda m, o: o.param_groups[0].update(amsgrad=True),
        lambda m, o: o.param_groups[0].update(amsgrad=False),
        "amsgrad True",
    ),
    "a group of its own": (
        lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5}),
        lambda m, o: o.param_groups.pop(),
        "other parameters",
    ),
}


def _placed(model: nn.Module, optimizer: Any, plan: LayerPlan = ONE, **how: Any) -> PlacedTraining:
    given = {"loss_fn": loss_fn, "targets": Y, "optimizer": optimizer, **how}
    return train(model, X, TWO, plan=plan, trials=False, **given)


def _trained(
    model: Scaled, optimizer: torch.optim.Optimizer, changes: dict[int, Change], steps: int
) -> list[float]:
    """Losses of eager steps, each change made before its step."""
    losses = []
    for step in range(steps):
        changes.get(step, lambda _m, _o: None)(model, optimizer)
        optimizer.zero_grad()
        loss = loss_fn(model(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _equal_states(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for mine, theirs in zip(one.state.values(), other.state.values(), strict=True):
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-6)


def test_changes_between_steps_mean_what_they_mean_in_eager(tmp_path: Path) -> None:
    """Losses, weights and optimizer state, one change after another, also where a worker dies."""
    model = Scaled()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.AdamW(m.parameters(), lr=0.05) for m in (model, eager))
    changes: dict[int, Change] = dict(enumerate(TAKEN.values(), start=1))
    steps = 2 + len(changes)
    want = _trained(eager, its, changes, steps)
    got = []
    with (
        _placed(model, mine) as placed,
        placed.trainer(tmp_path, adapt=False, disturbances={9: ("a", float("inf"))}) as trainer,
    ):
        for step in range(steps):
            changes.get(step, lambda _m, _o: None)(model, mine)
            got.append(trainer.step(X, Y))
        for name, value in model.state_dict().items():
            assert torch.equal(value, trainer.state_dict()[name]), name
    assert got == pytest.approx(want, rel=1e-5)
    for (name, one), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=name)
    _equal_states(mine, its)


def test_a_change_that_cannot_be_taken_over_is_refused() -> None:
    """With what has changed and what to do, until it is undone."""
    model = Scaled()
    mine = torch.optim.AdamW(model.parameters(), lr=0.05)
    with _placed(model, mine) as placed:
        model.first.requires_grad_(False)
        with pytest.raises(InputError, match=r"requires_grad of 'first.weight'") as caught:
            placed.run(1)
        assert "placed.trainer()" in caught.value.hint
        model.first.requires_grad_(True)
        trainer = placed.trainer(adapt=False)
        before = model.first.weight.detach()
        trainer.step(X, Y)
        for change, undo, says in REFUSED.values():
            change(model, mine)
            with pytest.raises(InputError, match=says) as caught:
                trainer.step(X, Y)
            assert caught.value.hint
            undo(model, mine)
        before.clamp_(-0.05, 0.05)  # of the weights that the workers began the last step with
        with pytest.raises(InputError, match="the workers have newer values"):
            trainer.step(X, Y)
        with pytest.warns(UnfinishedWarning):
            trainer.close()


def test_gradients_that_are_added_up_outlive_other_weights() -> None:
    """Weights loaded between the two steps of an update; to freeze a layer there is refused."""
    model = Scaled()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.AdamW(m.parameters(), lr=0.05) for m in (model, eager))
    with _placed(model, TrainingRecipe(mine, accumulate=2)) as placed:
        trainer = placed.trainer(adapt=False)
        trainer.step(X, Y)
        halve(model, mine)
        model.first.requires_grad_(False)
        with pytest.raises(InputError, match="added up"):
            trainer.step(X, Y)
        model.first.requires_grad_(True)
        trainer.step(X, Y)
        trainer.finish()
        trainer.close()
    loss_fn(eager(X), Y).backward()
    halve(eager, its)
    loss_fn(eager(X), Y).backward()
    its.step()
    for (name, one), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=name)


def test_an_optimizer_object_trains_as_in_eager() -> None:
    """Its state at first, groups, scheduler and clipping; on two workers, ZeRO 1."""
    model = Scaled()
    mine = _grouped(model)
    _trained(model, mine, {}, 2)
    eager = copy.deepcopy(model)
    its = _grouped(eager)
    its.load_state_dict(copy.deepcopy(mine.state_dict()))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (mine, its)]
    its.register_step_pre_hook(
        lambda *_: nn.utils.clip_grad_norm_(eager.parameters(), 0.1) and None
    )
    want = _trained(eager, its, dict.fromkeys((1, 2), lambda _m, _o: schedulers[1].step()), 3)
    got = []
    recipe = TrainingRecipe(mine, clip_norm=0.1)
    with (
        _placed(model, recipe, HALVES) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for step in range(3):
            if step:
                schedulers[0].step()
            got.append(trainer.step(X, Y))
            assert trainer.metrics["grad_norm"] > 0.1
    assert got == pytest.approx(want, rel=1e-5)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    _equal_states(mine, its)


def _grouped(model: Scaled) -> torch.optim.Optimizer:
    groups = [{"params": [*model.first.parameters()]}, {"params": [*model.second.parameters()]}]
    made = torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    made.param_groups[1].update(lr=0.05, weight_decay=0.0)
    return made


def test_a_continued_run_begins_with_the_numbers_of_its_snapshot() -> None:
    """As they were in the optimizer object when it was written."""
    model = Scaled()
    first, second = (torch.optim.SGD(model.parameters(), 0.1, weight_decay=w) for w in (0.2, 0.2))
    first.param_groups[0]["lr"] = 0.03
    log = SimpleNamespace(restored={}, notes=dict)
    high, low = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (64.0, 2.0))
    for given, scaler in ((first, high), (second, low)):
        how: Any = {"scaler": scaler, "update": update_of(second), "states_of_given": dict}
        job = SimpleNamespace(given=given, **how)
        run: Any = SimpleNamespace(job=job, log=log, done=4, recapture=None)
        program = LayerTraining(model, run, Guards(model, training=True))
        trainer = TrainingLoop(program)
        log.restored = log.notes()
        assert trainer._changes is not None
        trainer._changes.close()
    assert second.param_groups[0]["lr"] == 0.03
    assert low.get_scale() == 64.0


def test_a_ctrl_c_leaves_the_scaler_with_its_step() -> None:
    """The step counts, so what it has found out about the scale does too."""
    optimizer = torch.optim.SGD((model := Scaled()).parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    job = SimpleNamespace(given=optimizer, scaler=scaler, update=update_of(optimizer))
    job.states_of_given, job.model = dict, SimpleNamespace(draws=False)
    job.batch = lambda *_: {}
    run: Any = SimpleNamespace(job=job, log=SimpleNamespace(restored={}), done=0, overflow=True)

    def stepped(_: Any) -> None:
        run.done += 1
        raise KeyboardInterrupt

    run.step = stepped
    program = LayerTraining(model, run, Guards(model, training=True))
    with pytest.raises(KeyboardInterrupt):
        program.step(X, Y)
    assert scaler.get_scale() == 32.0


def test_inputs_may_be_the_targets() -> None:
    """As of an autoencoder: losses are those of eager steps; the optimizer comes of a factory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6))
    eager = copy.deepcopy(model)
    its = torch.optim.SGD(eager.parameters(), 0.1)
    want = []
    for _ in range(2):
        its.zero_grad()
        loss = loss_fn(eager(X), X)
        loss.backward()
        its.step()
        want.append(loss.item())
    given: dict[str, Any] = {"optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1)}
    heard = list[str]()

    def progress(*, what: str, **_: float) -> None:
        heard.append(what)

    given |= {"loss_fn": loss_fn, "targets": X, "progress": progress}
    with (
        train(model, X, TWO, planner="single", trials=False, **given) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        assert [trainer.step(X, X) for _ in range(2)] == pytest.approx(want, rel=1e-6)
    assert any("planning layers" in what for what in heard)


def test_parameters_that_no_layer_reads_stay_as_they_are() -> None:
    """A head that is not called keeps its weights, and its place in `state_dict`."""
    model = Scaled()
    model.head = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.head.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _placed(model, optimizer) as placed, placed.trainer(adapt=False) as trainer:
        trainer.step(X, Y)
        assert torch.equal(trainer.state_dict()["head.weight"], before["weight"])
        trainer.finish()
    assert all(torch.equal(value, before[n]) for n, value in model.head.state_dict().items())


class Detached(Scaled):
    """The first layer gets no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """The second is of what the first gives, detached."""
        return self.second(self.first(x).relu().detach())


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_layer_whose_output_is_detached_is_not_waited_for(zero_stage: int) -> None:
    """Replicas add up the gradients of the others all the same; it keeps its weights."""
    model = Detached()
    eager = copy.deepcopy(model)
    _trained(eager, torch.optim.AdamW(eager.parameters(), lr=0.1), {}, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    plan = LayerPlan((replace(HALVES.stages[0], zero_stage=zero_stage),))
    with _placed(model, optimizer, plan) as placed, placed.trainer(adapt=False) as trainer:
        for _ in range(2):
            trainer.step(X, Y)
        trainer.finish()
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-5)


class Named(nn.Module):
    """Inputs by name, a number among them, and a scale that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:])
        self.scale, self.scales = nn.Parameter(torch.ones(WIDTHS[-1])), True
        self.register_buffer("ones", torch.ones(()).expand(WIDTHS[-1]))

    def forward(self, a: Tensor, b: Tensor, times: float = 1.0) -> Tensor:
        """The second input counts twice, less."""
        out: Tensor = self.second(self.first(a - 2 * b).relu()) * self.ones
        return times * out * self.scale if self.scales else 2 * times * out


def named_loss(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """Two terms of unlike weights."""
    return loss_fn(outputs, targets["one"]) + 3 * loss_fn(outputs, targets["other"])


def test_batches_are_read_by_name_and_hold_their_numbers() -> None:
    """In any order of keys; another number than the example's is refused, as a program holds it."""
    model = Named()
    eager = copy.deepcopy(model)
    inputs, targets = {"a": X, "b": X.flip(0), "times": 1.0}, {"one": Y, "other": -Y}
    mine, its = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager))
    other = {k: inputs[k] for k in ("b", "times", "a")}
    how = {"loss_fn": named_loss, "targets": targets, "optimizer": mine, "trials": False}
    with (
        train(model, inputs, TWO, plan=ONE, **how) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for given in (inputs, other):
            trainer.step(given, dict(reversed(targets.items())))
        with pytest.raises(InputError, match=r"input 2 differs.*2.0, the example has 1.0"):
            trainer.step({**inputs, "times": 2.0}, targets)
    for _ in range(2):
        its.zero_grad()
        named_loss(eager(**inputs), targets).backward()
        its.step()
    for one, right in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, right)


def test_what_no_layer_reads_any_more_keeps_what_it_had_learned() -> None:
    """A weight and its moments that are left out for two steps, and taken up again."""
    model, inputs, targets = Named(), {"a": X, "b": X.flip(0)}, {"one": Y, "other": -Y}
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    how = {"loss_fn": named_loss, "targets": targets, "optimizer": mine, "trials": False}
    uses = (True, True, False, False, True)
    with (
        train(model, inputs, TWO, plan=ONE, **how) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for use in uses:
            model.scales = use
            trainer.step(inputs, targets)
    for use in uses:
        eager.scales = use
        its.zero_grad()
        named_loss(eager(**inputs), targets).backward()
        its.step()
    for one, right in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, right)
    _equal_states(mine, its)


class Spectral(nn.Module):
    """Layers on the frequencies of a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTHS[0], 8), nn.Linear(5, WIDTHS[-1])
        self.inner = nn.Linear(5, 5, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        """Of the absolute values."""
        out: Tensor = self.last(self.inner(torch.fft.rfft(self.first(x))).abs())
        return out


def test_complex_values_have_gradients_across_a_cut() -> None:
    """Between stages of a pipeline they went no further back."""
    model = Spectral()
    eager = copy.deepcopy(model)
    stages = (Stage(0, 0, (Replica((0,), 4),)), Stage(1, 2, (Replica((1,), 4),)))
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        _placed(model, mine, LayerPlan(stages, micro_batches=2)) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        trainer.step(X, Y)
    loss_fn(eager(X), Y).backward()
    for one, right in zip(model.parameters(), eager.parameters(), strict=True):
        assert right.grad is not None
        torch.testing.assert_close(one, right - 0.1 * right.grad, rtol=1e-4, atol=1e-6)


class Speech(nn.Module):
    """A recurrent network with time first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.GRU(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of probabilities."""
        return torch.as_tensor(self.last(self.layer(x)[0])).log_softmax(-1)


def spoken(outputs: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """CTC, which knows how long each sequence is."""
    return nn.functional.ctc_loss(outputs, *targets)


def test_a_batch_that_no_part_can_be_taken_of_is_measured_and_trained_whole() -> None:
    """With time first, parts of it end in the loss's own error."""
    model, x = Speech(), torch.randn(12, 4, 6)
    words = torch.tensor([[1, 2, 3], [4, 1, 2], [3, 4, 1], [2, 3, 4]])
    targets = words, torch.full((4,), 12), torch.tensor([3, 2, 1, 3])
    eager = copy.deepcopy(model)
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"loss_fn": spoken, "targets": targets, "optimizer": mine, "time_limit_s": 1.0}
    with (
        train(model, x, TWO, trials=False, **how) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        assert [sum(stage.shares) for stage in placed.plan.stages] == [12] * len(placed.plan.stages)
        trainer.step(x, targets)
    spoken(eager(x), targets).backward()
    for one, right in zip(model.parameters(), eager.parameters(), strict=True):
        assert right.grad is not None
        torch.testing.assert_close(one, right - 0.1 * right.grad, rtol=1e-4, atol=1e-6)


class Taught(nn.Module):
    """A network and the one that teaches it, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:])
        self.teacher = nn.Linear(WIDTHS[0], WIDTHS[-1])

    def forward(self, x: Tensor) -> Tensor:
        """The difference of both."""
        with torch.no_grad():
            taught = self.teacher(x)
        out: Tensor = self.second(self.first(x).relu()) - taught
        return out


@pytest.mark.parametrize("kind", ["one", "halves", "stages"])
def test_what_is_computed_without_gradients_is_trained_by_none(kind: str) -> None:
    """A teacher keeps its weights, and weight decay leaves it alone."""
    model = Taught()
    eager = copy.deepcopy(model)
    mine, its = (
        torch.optim.AdamW(m.parameters(), lr=0.05, weight_decay=0.3) for m in (model, eager)
    )
    last = len(TracedModel(ModelSource(model, X, loss_fn, Y)).layers) - 1
    both = (Replica((0,), 4), Replica((1,), 4))
    stages = {
        "one": (Stage(0, last, (Replica((0,), 8),)),),
        "halves": (Stage(0, last, both),),
        "stages": (Stage(0, 0, (Replica((0,), 8),)), Stage(1, last, (Replica((1,), 8),))),
    }
    with _placed(model, mine, LayerPlan(stages[kind])) as placed, placed.trainer() as trainer:
        got = [trainer.step(X, Y) for _ in range(3)]
    for found in got:
        its.zero_grad()
        loss = loss_fn(eager(X), Y)
        loss.backward()
        its.step()
        assert found == pytest.approx(loss.item(), rel=1e-5)
    for one, right in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-6)
