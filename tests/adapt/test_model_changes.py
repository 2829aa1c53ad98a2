"""What a loop does with its model and optimizer between steps: as in eager, or refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright import Cluster, Device
from placewright.adapt.training_loop import ModelChanges
from placewright.capturing.guards import Guards
from placewright.capturing.read_watch import GradientsWarning
from placewright.errors import InputError, PlacewrightError
from tests.adapt.loop_changes import clip_after_reading, halve, reset_moments

DUO = Cluster((Device("a"), Device("b")), name="two")
X, Y = torch.randn(8, 6), torch.randn(8, 3)
loss_fn = nn.functional.mse_loss


Change = Callable[[nn.Sequential, torch.optim.Optimizer], Any]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.BatchNorm1d(6), nn.Linear(6, 3))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.state_dict().items())


TAKEN: dict[str, Change] = {
    "a frozen layer": lambda m, o: m[0].requires_grad_(False),
    "a dropout": lambda m, o: setattr(m[1], "p", 1.0),
    "a batch norm in evaluation": lambda m, o: m[2].eval(),
    "a hook": lambda m, o: m[3].register_forward_hook(lambda _m, _x, y: y * 2),
    "loaded weights": halve,
    "clipped weights, after they were read": clip_after_reading,
    "clipped weights": lambda m, o: m[0].weight.data.clamp_(-0.05, 0.05),
    "weights changed by a function": lambda m, o: nn.init.constant_(m[3].bias, 0.5),
    "one row of a large weight": lambda m, o: m[3].weight.data[0, :300].zero_(),
    "decayed weights": lambda m, o: [p.data.mul_(0.9) for p in o.param_groups[0]["params"]],
    "a learning rate": lambda m, o: o.param_groups[0].update(lr=0.01),
    "a cleared state": lambda m, o: o.state.clear(),
    "a changed state": reset_moments,
    "a loaded state": lambda m, o: o.load_state_dict(o.state_dict()),
    "the state of another optimizer": lambda m, o: o.load_state_dict(
        copy.deepcopy(torch.optim.Adam(m.parameters()).state_dict())
    ),
}

REFUSED: dict[str, tuple[Change, str]] = {
    "amsgrad": (lambda m, o: o.param_groups[0].update(amsgrad=True), "amsgrad changed"),
    "a gradient of another loss": (
        lambda m, o: loss_fn(m(X), Y).backward(),
        r"parameter '0\.weight': a gradient has been computed between steps",
    ),
    "a gradient that is set": (
        lambda m, o: setattr(m[3].bias, "grad", torch.ones(3)),
        r"parameter '3\.bias': a gradient has been computed between steps",
    ),
    "another parameter": (
        lambda m, o: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach() * 1)),
        r"'0\.weight' is another parameter",
    ),
    "assigned parameters": (
        lambda m, o: m.load_state_dict(m.state_dict(), assign=True),
        "is another parameter",
    ),
    "another optimizer's parameters": (
        lambda m, o: o.param_groups[0]["params"].pop(),
        "other parameters",
    ),
    "a hook on a weight": (lambda m, o: m[0].weight.register_hook(lambda g: 2 * g), "a hook on a"),
    "a hook on the optimizer's step": (
        lambda m, o: o.register_step_post_hook(lambda *_: None),
        "hooks on the optimizer's step",
    ),
    "a parametrization": (
        lambda m, o: nn.utils.parametrizations.spectral_norm(m[3]),
        "is new",
    ),
    "evaluation": (lambda m, o: m.eval(), "in evaluation mode"),
}


def _losses(change: Change) -> tuple[list[float], list[float]]:
    """Of a placed loop and of an eager one, the change made before the third of five steps."""
    model = _model()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    got, want = [], []
    how: dict[str, Any] = {"loss_fn": loss_fn, "targets": Y, "optimizer": mine}
    with (
        placewright.place(
            model, X, DUO, training=True, planner="only:a", method="analytic", **how
        ) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for step in range(5):
            if step == 2:
                change(model, mine)
            got.append(trainer.step(X, Y))
    for step in range(5):
        if step == 2:
            change(eager, its)
        its.zero_grad()
        value = loss_fn(eager(X), Y)
        value.backward()
        its.step()
        want.append(value.item())
    for (name, one), other in zip(_state(model), eager.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    return got, want


@pytest.mark.parametrize("name", TAKEN)
def test_a_change_between_steps_means_what_it_means_in_eager(name: str) -> None:
    """Losses and trained weights are equal bit for bit."""
    got, want = _losses(TAKEN[name])
    assert got == want


def test_gradients_that_are_added_up_outlive_other_weights() -> None:
    """Weights loaded between the first and the second step of an update; freezing is refused."""
    model = _model()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    recipe = placewright.TrainingRecipe(mine, accumulate=2)
    how: dict[str, Any] = {"loss_fn": loss_fn, "targets": Y, "optimizer": recipe}
    with (
        placewright.place(
            model, X, DUO, training=True, planner="only:a", method="analytic", **how
        ) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        former = type(model[1])
        for step in range(6):
            if step == 3:
                halve(model, mine)
            if step == 5:
                model[0].requires_grad_(False)
                with pytest.raises(InputError, match="added up"):
                    trainer.step(X, Y)
                model[0].requires_grad_(True)
                model[1].__class__ = nn.Sigmoid
                with pytest.raises(InputError, match=r"the class of a module.*added up"):
                    trainer.step(X, Y)
                model[1].__class__ = former
            trainer.step(X, Y)
    for step in range(6):
        if step == 3:
            halve(eager, its)
        loss_fn(eager(X), Y).backward()
        if step % 2:
            its.step()
            its.zero_grad()
    for (name, one), other in zip(_state(model), eager.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_a_change_of_older_values_is_refused() -> None:
    """Through an array that was taken before the step, of which nothing tells."""
    model = _model()
    with _trainer(model) as trainer:
        trainer.step(X, Y)
        array = model[0].weight.detach().numpy()
        trainer.step(X, Y)
        array *= 0.5
        with pytest.raises(InputError, match="the workers have newer values") as caught:
            trainer.step(X, Y)
    assert "'0.weight'" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_cannot_be_taken_over_is_refused(name: str) -> None:
    """With what has changed and what to do."""
    change, says = REFUSED[name]
    with pytest.raises(PlacewrightError, match=says) as caught:
        _losses(change)
    assert caught.value.hint


def test_a_continued_run_has_newer_weights_than_the_model() -> None:
    """Reading them before the first step writes them into the model."""
    model = _model()

    def fetch() -> None:
        with torch.no_grad():
            model[0].weight.fill_(3.0)

    changes = ModelChanges(
        Guards(model, training=True),
        None,
        fetch=fetch,
        put=lambda: None,
        members=lambda: [*model.parameters(), *model.buffers()],
        recapture=lambda: None,
        done=lambda: 5,
    )
    assert (model.state_dict()["0.weight"] == 3.0).all()
    model[0].weight.data.zero_()
    assert changes.follow()
    changes.close()


def _average(model: nn.Module) -> Tensor:
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    return averaged(X)  # type: ignore[no-any-return]


def _exponential(shadow: list[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """An average over parameters that were listed before the first step."""
    with torch.no_grad():
        shadow[:] = shadow or [torch.zeros_like(p) for p in parameters]
        torch._foreach_lerp_(shadow, list(parameters), 0.5)
    return torch.cat([each.flatten() for each in shadow])


def _in_mode(model: nn.Module, training: bool) -> Tensor:
    model.train(training)
    out = model(X)
    model.train()
    return out  # type: ignore[no-any-return]


def _inferred(model: nn.Module) -> Tensor:
    with torch.inference_mode(), torch.device("meta"):
        return model(X)  # type: ignore[no-any-return]


def _pickled(model: nn.Module) -> Tensor:
    return pickle.loads(pickle.dumps(model))(X)  # type: ignore[no-any-return]


def _printed(model: nn.Sequential) -> Tensor:
    return torch.tensor(list(map(ord, repr(model[0].weight))))


READINGS: dict[str, Callable[[nn.Sequential, torch.optim.Optimizer], Tensor]] = {
    "a call": lambda m, o: m(X),
    "a call in evaluation mode": lambda m, o: _in_mode(m, False),
    "a call of a part": lambda m, o: m[0](X),
    "a call of a wrapper": lambda m, o: nn.Sequential(m)(X),
    "an inference, of another default device": lambda m, o: _inferred(m),
    "parameters_to_vector": lambda m, o: nn.utils.parameters_to_vector(m.parameters()),
    "a norm of what the optimizer has": lambda m, o: o.param_groups[0]["params"][0].norm(),
    "a buffer": lambda m, o: m[2].running_mean * 1,
    "an array": lambda m, o: torch.from_numpy(m[0].weight.detach().numpy().copy()),
    "a number": lambda m, o: torch.tensor(m[2].num_batches_tracked.item()),
    "a deep copy": lambda m, o: copy.deepcopy(m)(X),
    "a deep copy of a weight": lambda m, o: copy.deepcopy(m[3].bias),
    "a pickled model": lambda m, o: _pickled(m),
    "a state": lambda m, o: m.state_dict()["0.weight"].clone(),
    "a state of parameters": lambda m, o: m.state_dict(keep_vars=True)["0.weight"] * 2,
    "an average": lambda m, o: _average(m),
    "a text": lambda m, o: _printed(m),
    "a functional call": lambda m, o: torch.func.functional_call(
        m, dict(m.named_parameters()), (X,)
    ),
    "a gradient by the input": lambda m, o: torch.func.grad(lambda x: m[3](x).sum())(X),
    "values that replace others": lambda m, o: (
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(m.parameters()) * 0.5, m.parameters()
        )
        or m[0].weight * 1
    ),
}


def test_whatever_reads_a_model_between_steps_reads_what_it_would_in_eager() -> None:
    """One reading after every second step, and an average after all; classes are as before."""
    model = _model()
    eager = copy.deepcopy(model)
    mine, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, eager))
    listed = [list(m.parameters()) for m in (model, eager)]
    shadows: list[list[Tensor]] = [[], []]
    with _trainer(model, mine) as trainer:
        for name, read in READINGS.items():
            for _ in range(2):
                trainer.step(X, Y)
                its.zero_grad()
                loss_fn(eager(X), Y).backward()
                its.step()
            assert torch.equal(read(model, mine), read(eager, its)), name
            assert type(model[0].weight) is nn.Parameter
            trainer.step(X, Y)
            its.zero_grad()
            loss_fn(eager(X), Y).backward()
            its.step()
            assert torch.equal(*map(_exponential, shadows, listed)), name
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    assert {type(b) for b in model.buffers()} == {Tensor}


def test_what_is_no_value_is_read_without_the_workers() -> None:
    """Shapes, freezing and resetting gradients cost nothing; who reads gradients is warned."""
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    with _trainer(model, optimizer) as trainer:
        trainer.step(X, Y)
        optimizer.zero_grad()
        model.zero_grad()
        model[0].requires_grad_(False)
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 33
        assert model[0].weight.shape == (6, 6)
        assert len({*model.parameters()}) == 6
        assert type(model[0].weight).__name__ == "UnreadParameter"
        with pytest.warns(GradientsWarning, match="clip_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_parameters_that_no_step_has_read_are_refused_where_they_are_read() -> None:
    """Workers do not have them: a layer for evaluation, and one that is used from some step on."""

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.head, self.last = nn.Linear(6, 3), nn.Linear(3, 3)
            self.depth = 1

        def forward(self, x: Tensor) -> Tensor:
            for k in range(self.depth):
                x = self.layers[k](x)
            return self.head(x) if self.training else self.last(self.head(x))

    model = Grows()
    optimizer = torch.optim.Adam(model.parameters())
    with _trainer(model, optimizer) as trainer:
        trainer.step(X, Y)
        with pytest.raises(InputError, match=r"Trainer\.evaluate: .* another parameter 'last"):
            trainer.evaluate(X)
        model.depth = 2
        with pytest.raises(InputError, match=r"Trainer\.step: .* another parameter 'layers\.1"):
            trainer.step(X, Y)
        model.depth = 1
        trainer.step(X, Y)


class Distilled:
    """A loss with a teacher, which is no part of the model nor a module of the loss."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.teacher = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval().requires_grad_(False)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean square of what differs from the teacher's outputs."""
        return nn.functional.mse_loss(outputs, self.teacher(targets))


TAUGHT: dict[str, Callable[[nn.Sequential], object]] = {
    "weights": lambda t: t[0].weight.mul_(0.5),
    "data": lambda t: setattr(t[0].weight, "data", torch.ones(3, 3)),
    "a mode": lambda t: t.train(),
    "a layer": lambda t: t.__setitem__(0, nn.Identity()),
}


@pytest.mark.parametrize("layered", [False, True])
def test_a_teacher_that_a_loop_changes_is_the_newest(layered: bool) -> None:
    """An exponential average, another mode, other layers; in a placed step and in layers."""
    model, mine, its = _model()[:2], Distilled(), Distilled()
    model.append(nn.Linear(6, 3))
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    how: dict[str, Any] = {"loss_fn": mine, "targets": Y, "optimizer": "sgd", "lr": 0.1}
    with (
        placewright.train(model, X, DUO, planner="single", trials=False, **how)
        if layered
        else placewright.place(
            model, X, DUO, training=True, planner="only:a", method="analytic", **how
        ) as placed,
        placed.trainer(adapt=False) as trainer,
    ):
        for name in ("nothing", *TAUGHT) if not layered else ("nothing", "weights", "data"):
            for loss in (mine, its):
                with torch.no_grad():
                    TAUGHT.get(name, len)(loss.teacher)
            optimizer.zero_grad()
            torch.manual_seed(2)
            wanted = its(eager(X), Y)
            wanted.backward()
            optimizer.step()
            torch.manual_seed(2)
            assert trainer.step(X, Y) == pytest.approx(wanted.item(), rel=1e-6), name


def test_gradients_that_a_loop_had_before_or_resets_are_its_own() -> None:
    """Of a step that it has done itself, and of a loss that it does not want to train."""
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    loss_fn(model(X), Y).backward()
    with _trainer(model, optimizer) as trainer:
        trainer.step(X, Y)
        optimizer.zero_grad(set_to_none=False)
        trainer.step(X, Y)
        loss_fn(model(X), Y).backward()
        model.zero_grad()
        trainer.step(X, Y)


def test_two_trainers_of_one_layer_see_each_others_steps() -> None:
    """A shared body that both train in turn, as in one eager loop."""
    torch.manual_seed(0)
    body, heads = nn.Linear(6, 6), [nn.Linear(6, 3), nn.Linear(6, 3)]
    models = [nn.Sequential(body, head) for head in heads]
    eager = copy.deepcopy(models)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (*models, *eager)]
    with (
        _trainer(models[0], optimizers[0]) as one,
        _trainer(models[1], optimizers[1]) as other,
    ):
        for k in (0, 1, 0, 0, 1, 1, 0):
            (one, other)[k].step(X, Y)
            optimizers[k + 2].zero_grad()
            loss_fn(eager[k](X), Y).backward()
            optimizers[k + 2].step()
        for mine, its in zip(models, eager, strict=True):
            assert torch.equal(mine(X), its(X))
    assert torch.equal(body.weight, eager[0][0].weight)


def test_a_model_is_placed_with_the_newest_weights_while_a_trainer_is_open() -> None:
    """And follows later steps."""
    model = _model()
    with _trainer(model) as trainer:
        trainer.step(X, Y)
        with placewright.place(model, X, DUO, planner="only:a", method="analytic") as placed:
            for _ in range(2):
                assert torch.equal(placed(X), trainer.evaluate(X))
                trainer.step(X, Y)


def _trainer(model: nn.Module, optimizer: Any = "sgd", **options: Any) -> Any:
    return placewright.Trainer(
        *(model, X, DUO), loss_fn=loss_fn, targets=Y, optimizer=optimizer, method="analytic",
        planner="only:a", adapt=False, **options,
    )  # fmt: skip


def test_momentum_that_needs_state_is_refused() -> None:
    """The placed step keeps no buffers for it."""
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    with _trainer(model, sgd) as trainer:
        trainer.step(X, Y)
        sgd.param_groups[0]["momentum"] = 0.9
        with pytest.raises(InputError, match="needs the state momentum_buffer"):
            trainer.step(X, Y)


def test_a_layer_that_was_frozen_when_it_was_placed_stays_so() -> None:
    """Workers keep no state for it; a check follows what can be followed."""
    model = _model()
    model[3].requires_grad_(False)
    with _trainer(model, check=True) as trainer:
        trainer.step(X, Y)
        model[0].requires_grad_(False)
        trainer.step(X, Y)
        model[3].requires_grad_(True)
        with pytest.raises(InputError, match=r"'3\.weight' requires a gradient"):
            trainer.step(X, Y)
        model[3].requires_grad_(False)


def test_what_a_loop_reads_is_the_newest() -> None:
    """The model's and the optimizer's state, as many steps as were done."""
    model = _model()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    with _trainer(model, adam) as trainer:
        before = {name: value.clone() for name, value in _state(model)}
        for steps in (1, 2):
            trainer.step(X, Y)
            now = dict(_state(model))
            assert not torch.equal(now["0.weight"], before["0.weight"])
            assert all(torch.equal(now[k], v) for k, v in trainer.state_dict().items())
            state = adam.state_dict()["state"]
            assert {float(kept["step"]) for kept in state.values()} == {float(steps)}
            before = {name: value.clone() for name, value in now.items()}
    assert type(adam.state).__name__ == "defaultdict"
