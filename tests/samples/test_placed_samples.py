"""`train_samples` gives the results of ``samples run``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.samples.placed_samples import PlacedSamples, placed_job, train_samples
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import Batches, Duplex, Overlap
from placewright.samples.run import SampleRun
from placewright.samples.training import job
from placewright.samples.training.node_training import Recipe, parts
from placewright.samples.training.train import Since
from tests.samples.jobs import digits_job
from tests.samples.tiny import tiny


def moved(count: int) -> SamplePlan:
    """So many samples of the first node go to the second one."""
    return SamplePlan(np.array([0]), np.array([1]), np.array([count]))


def test_a_plan_is_executed_beside_a_baseline(tmp_path: Path) -> None:
    """The plan's samples move; without it none do; a saved plan is judged alike.

    What the file says of epochs, overlap, batches and duplex is replaced by what nodes do.
    """
    pytest.importorskip("torch")
    speeds = np.array([0.04, 0.5])
    asked: Any = {"batches": Batches.EQUAL, "duplex": Duplex.HALF, "epochs": 50}
    problem = tiny([24, 2], seconds_per_sample=speeds, **asked)
    ended: list[SampleRun] = []
    with placed_job(digits_job(26), problem, recipe=Recipe(epochs=1, batch=8), speed=20) as placed:
        result = placed.plan(plan=moved(1))
        saved = result.save(tmp_path / "plan.json")
        assert placed.plan(plan=saved).value == result.value
        ours, still = placed.run(result.plan, baselines=["none"], ended=ended.append)
    assert placed.problem.overlap is Overlap.BARRIER
    assert placed.problem.duplex is Duplex.FULL
    predicted = 0.05 + max(23 * 0.04, 3 * 0.5)
    assert (result.value, ours.predicted_s) == pytest.approx((predicted, predicted))
    assert (ours.moved_samples, still.moved_samples) == (int(result.plan.count.sum()), 0)
    assert ours.moved_samples > 0
    assert ended == [ours, still]


def test_epochs_come_one_by_one() -> None:
    """As many as the recipe says, with all samples in each, and with the numbers of dropout drawn
    as in one go: others in each epoch.
    """
    _, samples = regression()
    recipe, problem = Recipe(epochs=2, batch=30), tiny([20, 10]).replace(epochs=2)

    def placed() -> PlacedSamples:
        model = nn.Sequential(regression()[0], nn.Dropout(), nn.Linear(2, 2).double())
        nn.init.ones_(model[2].weight)
        nn.init.zeros_(model[2].bias)
        given: Any = {"loss_fn": nn.MSELoss(), "lr": 1e-300, "recipe": recipe, "speed": 1e4}
        return train_samples(model, samples, problem, **given)

    with placed() as first, placed() as second:
        (run,) = first.run(None, baselines=["none"])
        steps = list(second.adapt("none"))
    assert [sum(step.held.values()) for step in steps] == [30, 30]
    losses = [step.epoch.loss for step in steps]
    assert losses == [epoch.loss for epoch in run.trained.epochs]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_samples_that_no_node_holds_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """They are left out, and the user hears of it."""
    placed_job(digits_job(26), tiny([15, 9])).close()
    assert "2 of the 26 samples of pictures are not trained on" in caplog.text
    caplog.clear()
    placed_job(digits_job(26), tiny([24, 2])).close()
    assert not caplog.text


def test_a_testbed_is_not_hurried() -> None:
    """Before anything starts."""
    with pytest.raises(InputError, match="real time"):
        placed_job(digits_job(), tiny([3, 1]), engine="testbed", speed=2.0)


def regression() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model with two inputs' worth of features, and its samples one by one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        x, y = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    return model, list(zip(x, y, strict=True))


def test_a_model_of_ones_own_learns_what_one_process_learns() -> None:
    """AdamW on three steps of whole batches: weights and the optimizer's state to twelve digits."""
    model, samples = regression()
    alone = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss_fn = nn.MSELoss()
    with train_samples(
        model,
        samples,
        tiny([25, 5]).replace(epochs=3),
        loss_fn=loss_fn,
        optimizer=optimizer,
        recipe=Recipe(epochs=3, batch=30),
        speed=1e4,
    ) as placed:
        run = placed.train()
    own = torch.optim.AdamW(alone.parameters(), lr=0.01)
    x, y = (torch.stack(each) for each in zip(*samples, strict=True))
    for epoch in run.trained.epochs:
        own.zero_grad()
        loss = loss_fn(alone(x), y)
        loss.backward()
        own.step()
        assert epoch.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
        found, expected = optimizer.state[ours], own.state[theirs]
        torch.testing.assert_close(found["exp_avg_sq"], expected["exp_avg_sq"])


def test_labels_that_are_ignored_count_for_nothing_on_any_node() -> None:
    """Most of one node's labels are ignored; the loss is that of the whole batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(3, 4).double()
        x, y = torch.randn(16, 3).double(), torch.randint(0, 4, (16,))
    y[10:15] = -100
    loss_fn = nn.CrossEntropyLoss()
    expected = float(loss_fn(model(x), y).detach())
    with train_samples(
        model,
        (x, y),
        tiny([10, 6]),
        loss_fn=loss_fn,
        lr=1e-9,
        recipe=Recipe(epochs=1, batch=16),
        speed=1e4,
    ) as placed:
        (run,) = placed.run(None, baselines=["none"])
    assert run.trained.epochs[0].loss == pytest.approx(expected, rel=1e-6)


def _terms(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over labels, and one over rows."""
    return cross_entropy(outputs, targets[:, 0]) + outputs.square().mean()


def _two_means(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each over labels of its own."""
    first, second = outputs.split(2, 1)
    return cross_entropy(first, targets[:, 0].clamp(max=1)) + cross_entropy(second, targets[:, 1])


def _with_sum(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over labels, and a sum over rows."""
    return cross_entropy(outputs, targets[:, 0]) + 0.1 * outputs.square().sum()


@pytest.mark.parametrize("loss_fn", [_terms, _two_means, _with_sum])
def test_losses_of_several_terms_learn_what_one_process_learns(loss_fn: Any) -> None:
    """Labels are ignored in one part, in one step's whole, and the optimizer has momentum."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(3, 4).double()
        x, y = torch.randn(16, 3).double(), torch.randint(0, 2, (16, 2))
    y[11:, 0] = y[:5, 1] = -100
    alone, recipe = copy.deepcopy(model), Recipe(epochs=2, batch=4)
    nodes = [np.arange(10), np.arange(10, 16)]
    steps = [
        np.concatenate(rows)
        for epoch in range(2)
        for rows in zip(*(parts(node, 4, recipe.seed, epoch) for node in nodes), strict=True)
    ]
    y[steps[1], 0] = -100  # a step without any
    mine, own = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone))
    given: Any = {"loss_fn": loss_fn, "optimizer": mine, "recipe": recipe, "speed": 1e4}
    with train_samples(model, (x, y), tiny([10, 6]).replace(epochs=2), **given) as placed:
        placed.train(placed.plan("none").plan)
    for rows in steps:
        own.zero_grad()
        loss_fn(alone(x[rows]), y[rows]).backward()
        own.step()
    torch.testing.assert_close(model.weight, alone.weight, rtol=1e-10, atol=1e-12)
    for one, right in zip(model.parameters(), alone.parameters(), strict=True):
        found, expected = mine.state[one], own.state[right]
        torch.testing.assert_close(found["momentum_buffer"], expected["momentum_buffer"])


def test_all_samples_are_evaluated_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and on a node: parts that count unlike numbers of labels add up."""
    monkeypatch.setattr(job, "TESTED", 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(3, 4).double()
        x, y = torch.randn(16, 3).double(), torch.randint(0, 2, (16, 2))
    y[2:9, 0] = -100
    given: Any = {"loss_fn": _terms, "lr": 0.1, "recipe": Recipe(epochs=1, batch=16), "speed": 1e4}
    with train_samples(model, (x, y), tiny([10, 6]), test=(x, y), **given) as placed:
        (run,) = placed.run(None, baselines=["none"])
        placed.job.write_back(run.trained.state)
        found = placed.evaluate()
    expected = float(_terms(model(x), y).detach())
    assert run.trained.epochs[0].test_loss == pytest.approx(expected, rel=1e-12)
    assert found.loss == pytest.approx(expected, rel=1e-12)


def test_samples_are_read_by_the_keys_of_the_first_one() -> None:
    """Dicts that were filled in another order, in data and test set; eager PyTorch reads names."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2).double()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.layer(a - 2 * b))

    model = Difference()
    x, y = torch.randn(12, 2, 3).double(), torch.randn(12, 2).double()
    samples = [({"a": pair[0], "b": pair[1]}, target) for pair, target in zip(x, y, strict=True)]
    turned = [(dict(reversed(inputs.items())), target) for inputs, target in samples]
    mixed, alone = [*samples[:3], *turned[3:]], copy.deepcopy(model)
    given: Any = {"loss_fn": nn.MSELoss(), "lr": 0.1, "recipe": Recipe(epochs=1, batch=12)}
    with train_samples(model, mixed, tiny([7, 5]), test=turned, speed=1e4, **given) as placed:
        (run,) = placed.run(None, baselines=["none"])
        placed.job.write_back(run.trained.state)
    loss = nn.functional.mse_loss(alone(x[:, 0], x[:, 1]), y)
    (gradient,) = torch.autograd.grad(loss, alone.layer.weight)
    torch.testing.assert_close(model.layer.weight, alone.layer.weight - 0.1 * gradient)
    tested = nn.functional.mse_loss(model(x[:, 0], x[:, 1]), y)
    assert run.trained.epochs[0].test_loss == pytest.approx(float(tested.detach()), rel=1e-9)


class Counting(nn.Module):
    """Computes with how often it was called, as schedules within models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        self.calls += 1
        return self.linear(x) * self.calls + 0.0 * self.norm(self.linear(x)).sum()


def test_a_step_calls_the_model_once() -> None:
    """Counting labels and looking at test samples leaves buffers as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, loss_fn = Counting().double(), nn.CrossEntropyLoss()
        x, y = torch.randn(16, 3).double(), torch.randint(0, 4, (16,))
    y[3] = -100
    alone = copy.deepcopy(model)
    recipe = Recipe(epochs=3, batch=16)
    problem = tiny([10, 6]).replace(epochs=3)
    with train_samples(
        model, (x, y), problem, loss_fn=loss_fn, lr=0.1, recipe=recipe, speed=1e4, test=(x, y)
    ) as placed:
        placed.train()
    own = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        own.zero_grad()
        loss_fn(alone(x), y).backward()
        own.step()
    assert (float(model.calls), int(model.norm.num_batches_tracked)) == (3.0, 3)
    torch.testing.assert_close(model.linear.weight, alone.linear.weight)


def test_each_node_may_have_a_data_set_of_its_own() -> None:
    """Its length replaces the number in the file; a name that no node has is refused."""
    model, samples = regression()
    parts = {"n0": samples[:21], "n1": samples[21:]}
    with train_samples(model, parts, tiny([1, 1]), loss_fn=nn.MSELoss(), speed=1e4) as placed:
        assert placed.problem.held.tolist() == [21, 9]
    with pytest.raises(UnknownNameError, match="n2"):
        train_samples(model, {"n2": samples}, tiny([1, 1]), loss_fn=nn.MSELoss())


def test_models_and_samples_that_cannot_be_shared_are_refused() -> None:
    """A loss over the whole batch; samples that are no pairs; shapes that make no batch."""
    model, samples = regression()
    nodes = tiny([20, 10])
    with pytest.raises(UnsupportedError, match="not made of the losses of its samples"):
        train_samples(model, samples, nodes, loss_fn=lambda o, t: ((o - t) ** 2).mean().sqrt())
    with pytest.raises(InputError, match="no pair of inputs and target"):
        train_samples(model, [x for x, _ in samples], nodes, loss_fn=nn.MSELoss())
    odd = [*samples[:-1], (torch.randn(5).double(), samples[0][1])]
    with pytest.raises(InputError, match="do not make a batch"):
        train_samples(model, odd[-2:], tiny([1, 1]), loss_fn=nn.MSELoss())
    wide = nn.ParameterList([torch.ones(4, 2, dtype=torch.complex128)])
    with pytest.raises(UnsupportedError, match=r"cannot be written.*complex128"):
        train_samples(wide, samples, nodes, loss_fn=nn.MSELoss())
    pair = (torch.zeros(3, 4), torch.zeros(2, 2))
    with pytest.raises(InputError, match="differ in their number of rows"):
        train_samples(model, pair, nodes, loss_fn=nn.MSELoss())


def test_what_is_changed_between_two_trainings_counts() -> None:
    """A layer that was frozen after the first one stays; a lower rate is the optimizer's."""
    model, samples = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recipe = Recipe(epochs=1, batch=30)
    with train_samples(
        model,
        samples,
        tiny([20, 10]),
        loss_fn=nn.MSELoss(),
        optimizer=optimizer,
        recipe=recipe,
        speed=1e4,
    ) as placed:
        placed.train()
        model[0].requires_grad_(False)
        optimizer.param_groups[0]["lr"] = 0.01
        before = [p.detach().clone() for p in model.parameters()]
        placed.train()
    own = copy.deepcopy(model)
    for parameter, value in zip(own.parameters(), before, strict=True):
        parameter.data.copy_(value)
    x, y = (torch.stack(each) for each in zip(*samples, strict=True))
    nn.MSELoss()(own(x), y).backward()
    for found, plain in zip(model.parameters(), own.parameters(), strict=True):
        step = 0.0 if plain.grad is None else 0.01 * plain.grad
        torch.testing.assert_close(found.detach(), plain.detach() - step, rtol=1e-12, atol=1e-14)


def test_steps_that_are_shared_by_speed_have_no_prediction() -> None:
    """Whatever nodes hold each takes half of a step; the recipe stays as it was."""
    model, samples = regression()
    recipe, before = Recipe(epochs=1, batch=10), copy.deepcopy(model)
    given: Any = {"loss_fn": nn.MSELoss(), "recipe": recipe, "speed": 1e4}
    with train_samples(model, samples, tiny([20, 10]), **given) as placed:
        run = placed.train(placed.plan("none").plan, shares="weighted")
        assert run.predicted_s is None
        assert placed.recipe.shares == "data"
        with pytest.raises(InputError, match="shares"):
            placed.train(shares="wieghted")  # type: ignore[arg-type]
    for found, first in zip(model.parameters(), before.parameters(), strict=True):
        assert not torch.equal(found, first)


def test_a_layer_that_rests_for_an_epoch_goes_on_with_its_momentum() -> None:
    """Frozen and thawed between epochs of an adaptive run, and in eager PyTorch."""
    model, samples = regression()
    alone = copy.deepcopy(model)
    mine, own = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone))
    given: Any = {"loss_fn": nn.MSELoss(), "optimizer": mine, "speed": 1e4}
    x, y = (torch.stack(each) for each in zip(*samples, strict=True))
    recipe = Recipe(epochs=3, batch=30)
    with train_samples(model, samples, tiny([20, 10]), recipe=recipe, **given) as placed:
        for step in placed.adapt("none"):
            own.zero_grad()
            nn.MSELoss()(alone(x), y).backward()
            own.step()
            for m in (model, alone):
                m[0].requires_grad_(step.number != 1)
    for found, plain in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


def test_the_optimizers_state_comes_from_a_node_that_has_taken_steps() -> None:
    """The first one has no sample, and nodes exchange no gradients."""
    model, samples = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given: Any = {"loss_fn": nn.MSELoss(), "optimizer": optimizer, "speed": 1e4}
    recipe = Recipe(epochs=1, batch=15, local_steps=2)
    with train_samples(model, samples, tiny([0, 30]), recipe=recipe, **given) as placed:
        placed.train(placed.plan("none").plan)
    assert all(optimizer.state[p]["momentum_buffer"].any() for p in model.parameters())


def test_a_loss_with_parameters_is_refused_unless_they_are_the_models() -> None:
    """Nobody asked for them to be trained."""
    model, samples = regression()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            """A mean."""
            return (self.scale * (outputs - targets) ** 2).mean()

    with pytest.raises(UnsupportedError, match="the loss has parameters of its own"):
        train_samples(model, samples, tiny([20, 10]), loss_fn=Scaled())

    def decayed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).mean() + 0.1 * model[0].weight.square().sum()

    with train_samples(model, samples, tiny([20, 10]), loss_fn=decayed, speed=1e4):
        pass


class Words(nn.Module):
    """The mean of a text's words; padding counts where `masked` is false."""

    def __init__(self, *, masked: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.masked = masked
        self.double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of two kinds."""
        kept = (ids > 0 if self.masked else ids >= 0).double()[..., None]
        scores: torch.Tensor = self.head((self.words(ids) * kept).sum(1) / kept.sum(1))
        return scores


def words(count: int = 12) -> list[tuple[torch.Tensor, int]]:
    """Texts of one to seven words."""
    return [(torch.arange(k % 7 + 1) % 8 + 1, k % 2) for k in range(count)]


def collated(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded to the longest of the batch."""
    ids = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return ids, torch.tensor([kind for _, kind in samples])


def test_ragged_texts_learn_what_one_process_learns_and_go_on_where_they_ended(
    tmp_path: Path,
) -> None:
    """A collate of one's own, a node without one class, an interruption; losses on other texts."""
    model, alone, samples = Words(), Words(), words()
    parts = {"n0": samples[:9], "n1": [s for s in samples[9:] if s[1]]}
    kept, file = [*parts["n0"], *parts["n1"]], tmp_path / "kept.safetensors"
    settings = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": "adam", "lr": 0.01}
    settings |= {"collate": collated, "test": words(20), "speed": 1e4}
    recipe, nodes = Recipe(epochs=3, batch=len(kept)), tiny([[1, 1], [1, 1]]).replace(epochs=3)
    with train_samples(model, parts, nodes, recipe=recipe, **settings) as placed:
        assert placed.problem.samples.tolist() == [[5, 4], [0, 2]]
        next(placed.adapt("none", checkpoint=file))
    with train_samples(Words(), parts, nodes, recipe=recipe, **settings) as placed:
        steps = list(placed.adapt("none", checkpoint=file, resume=True))
        assert len(steps) == 2
        loss, accuracy, count = placed.evaluate()
        assert (loss, accuracy) == pytest.approx(
            (steps[-1].epoch.test_loss, steps[-1].epoch.accuracy)
        )
        assert count == 20
        assert placed.evaluate(words(3)).samples == 3
        model = placed.job.model  # type: ignore[assignment]
        with pytest.raises(InputError, match="all epochs are in the checkpoint"):
            list(placed.adapt(checkpoint=file, resume=True))
    own = torch.optim.Adam(alone.parameters(), lr=0.01)
    x, y = collated(kept)
    for _ in range(3):
        own.zero_grad()
        nn.CrossEntropyLoss()(alone(x), y).backward()
        own.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """So is a file that is none, and to go on without one."""
    file = tmp_path / "kept.safetensors"
    settings = {"loss_fn": nn.CrossEntropyLoss(), "collate": collated, "speed": 1e4}
    with train_samples(Words(), words(), tiny([8, 4]), **settings) as placed:
        with pytest.raises(InputError, match="no checkpoint to go on from"):
            list(placed.adapt(resume=True))
        file.write_bytes(b"12345678" * 9)
        with pytest.raises(InputError, match="is no checkpoint"):
            list(placed.adapt(checkpoint=file, resume=True))
        with pytest.raises(InputError, match="nothing to evaluate on"):
            placed.evaluate()
        state = {name: value[..., :1].contiguous() for name, value in placed.job.state().items()}
        own = placed.job.state()
        name = next(iter(own))
        more = own | {"parameter:more": torch.zeros(3)}
        for other in (state, more, own | {name: own[name].half()}):
            Since(1, other).save(file)
            with pytest.raises(InputError, match="of another model"):
                list(placed.adapt(checkpoint=file, resume=True))
        Since(1, own | {"optimizer:exp_avg:model.head.bias": torch.zeros(3)}).save(file)
        with pytest.raises(InputError, match=r"another optimizer.*keeps exp_avg, SGD as given no"):
            list(placed.adapt(checkpoint=file, resume=True))


def test_a_model_that_sees_padding_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """As nodes pad to the longest text of all."""
    with train_samples(
        Words(masked=False), words(), tiny([8, 4]), loss_fn=nn.CrossEntropyLoss(), collate=collated
    ):
        assert "depends on padding" in caplog.text


def test_what_nodes_would_do_otherwise_each_is_refused() -> None:
    """A parameter that is changed in forward."""
    words, labels = torch.randint(0, 9, (16, 5)), torch.randint(0, 3, (16,))
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(20, 3))
    cross_entropy = nn.CrossEntropyLoss()
    with (
        pytest.raises(UnsupportedError, match="changes a parameter in place"),
        train_samples(model, (words, labels), tiny([10, 6]), loss_fn=cross_entropy) as placed,
    ):
        placed.train()


class Seen(nn.Module):
    """Keeps something of the samples that it has seen, or of how often it was called."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        if self.kind == "samples":
            self.seen.add_(x.shape[0])
        elif self.kind == "largest":
            self.seen = torch.maximum(self.seen, x.detach().max())
        else:
            self.seen.add_(1)
        return torch.as_tensor(self.linear(x))


@pytest.mark.parametrize("kind", ["samples", "largest"])
def test_buffers_of_the_samples_of_a_step_are_refused(kind: str) -> None:
    """Each node would have its own, and one of them, or a mean, would be kept."""
    data = torch.randn(16, 3), torch.randint(0, 4, (16,))
    with pytest.raises(UnsupportedError, match=r"part of a batch \(seen\)"):
        train_samples(Seen(kind), data, tiny([10, 6]), loss_fn=nn.CrossEntropyLoss())


@pytest.mark.parametrize("held", [[2, 14], [14, 2], [0, 16]])
def test_a_node_without_a_sample_in_some_step_counts_no_less(held: list[int]) -> None:
    """Calls are counted once a step, by whoever has a sample in all of them."""
    model, data = Seen("calls"), (torch.randn(16, 3), torch.randint(0, 4, (16,)))
    given: Any = {"loss_fn": nn.CrossEntropyLoss(), "recipe": Recipe(epochs=1, batch=4)}
    with train_samples(model, data, tiny(held), speed=1e4, **given) as placed:
        placed.train(placed.plan("none").plan)
    assert float(model.seen) == 4.0


def test_data_that_nodes_would_not_have_is_refused() -> None:
    """Samples drawn anew each time, models that no trace sees, counts that do not add up."""
    x, y = torch.randn(16, 3), torch.randint(0, 4, (16,))

    class Drawn:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, k: int) -> Any:
            return x[k] + torch.randn(3), y[k]

    nodes, loss_fn, plain = tiny([10, 6]), nn.CrossEntropyLoss(), nn.Linear(3, 4)
    with pytest.raises(InputError, match="sample 0: a sample is another one each time"):
        train_samples(plain, Drawn(), nodes, loss_fn=loss_fn)
    for model, why in (
        (torch.compile(plain, backend="eager"), "a compiled model"),
        (nn.Sequential(nn.LazyLinear(4)), "a lazy module"),
    ):
        with pytest.raises(InputError, match=why):
            train_samples(model, (x, y), nodes, loss_fn=loss_fn)

    def clamped(outputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (outputs.square().sum(1) * mask).sum() / mask.sum().clamp(min=1.0)

    mask = (torch.arange(16) % 4 == 0).float()
    with pytest.raises(UnsupportedError, match="does not add up over samples"):
        train_samples(plain, (x, mask), nodes, loss_fn=clamped)


def test_an_expanded_buffer_is_left_as_it_is() -> None:
    """Nothing can be written into it, and no step changes it."""
    model = nn.Linear(3, 4)
    model.register_buffer("ones", torch.ones(()).expand(4))
    data = torch.randn(16, 3), torch.randint(0, 4, (16,))
    recipe = Recipe(epochs=1, batch=16)
    before = model.weight.detach().clone()
    given: Any = {"loss_fn": nn.CrossEntropyLoss(), "recipe": recipe, "speed": 1e4}
    with train_samples(model, data, tiny([10, 6]), **given) as placed:
        placed.train()
    assert not torch.equal(model.weight, before)
