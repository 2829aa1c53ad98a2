"""`Trainer`: training in five lines, and refusals."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import placewright
from placewright.adapt.snapshot import SnapshotFolder
from placewright.capturing.source import TrainingRecipe
from placewright.errors import CheckError, InputError, RunError, UnsupportedError
from placewright.operators.plan import OperatorPlan
from tests.operators.adaptive.jobs import TRIO, net, starve
from tests.operators.adaptive.test_trainer import LOSS, batches


def test_five_lines_train_the_model_and_its_optimizer(tmp_path: Path) -> None:
    """On workers of this machine; a second trainer goes on where the first one stopped."""
    data = batches()
    for part in (data[:2], data[2:4]):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        half = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        with placewright.Trainer(
            model,
            data[0][0],
            TRIO,
            loss_fn=LOSS,
            targets=data[0][1],
            optimizer=optimizer,
            schedulers=half,
            folder=tmp_path,
            method="analytic",
            planner="heft",
        ) as trainer:
            for x, y in trainer.remaining(data[: trainer.steps_done + len(part)]):
                trainer.step(x, y)
            assert trainer.finish() is model
    assert trainer.steps_done == 4
    assert optimizer.param_groups[0]["lr"] == 1e-2 * 0.5**4
    assert optimizer.state[model[0].weight]["step"] == 4
    with pytest.raises(RunError, match="closed"):
        trainer.step(*data[0])


def test_a_loss_gets_what_its_parameters_have_learned() -> None:
    """As the model does, and a placed model is neither pickled nor copied meanwhile."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return LOSS(outputs * self.scale, targets)

    x, y = batches()[0]
    model, loss_fn = net(), Scaled()
    eager, its_loss = copy.deepcopy((model, loss_fn))
    optimizer, its = (
        torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        for one, other in ((model, loss_fn), (eager, its_loss))
    )
    how = {"loss_fn": loss_fn, "targets": y, "optimizer": optimizer, "planner": "round-robin"}
    with placewright.place(model, x, TRIO, True, method="analytic", trials=False, **how) as placed:
        with pytest.raises(InputError, match="neither pickled nor copied"):
            copy.copy(placed)
        with placed.trainer() as trainer:
            torch.manual_seed(0)
            trainer.step(x, y)
    torch.manual_seed(0)
    its_loss(eager(x), y).backward()
    its.step()
    assert torch.allclose(loss_fn.scale, its_loss.scale)
    assert not torch.equal(loss_fn.scale, torch.ones(3))


@pytest.mark.parametrize("times", [1, 2])
def test_a_ctrl_c_leaves_the_schedule_and_the_comparison_with_its_step(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed while the snapshot of a step is written, once or twice; the loop goes on."""
    data, model = batches()[:4], net()
    plain = copy.deepcopy(model)
    presses, commit = [signal.SIGINT] * times, SnapshotFolder.commit

    def pressed(*args: Any, **keywords: Any) -> Path:
        made = commit(*args, **keywords)
        while presses:
            signal.raise_signal(presses.pop())
        return made

    monkeypatch.setattr(SnapshotFolder, "commit", pressed)
    optimizer, other = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, plain))
    schedule, its = (torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, other))
    how = {"loss_fn": LOSS, "targets": data[0][1], "optimizer": optimizer, "check": True}
    how |= {"schedulers": schedule, "method": "analytic", "planner": "round-robin"}
    with placewright.Trainer(model, data[0][0], TRIO, loop={"snapshot_every": 2}, **how) as trainer:
        torch.manual_seed(0)
        for k, (x, y) in enumerate(data):
            with pytest.raises(KeyboardInterrupt) if k == 1 else nullcontext():
                trainer.step(x, y)
        trainer.finish()
    torch.manual_seed(0)
    for x, y in data:
        other.zero_grad()
        LOSS(plain(x), y).backward()
        other.step()
        its.step()
    check = trainer.timeline.check
    assert check is not None
    assert (check.steps, check.max_abs_error) == (4, 0.0)
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    for one, another in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, another)


def test_outputs_of_a_step_outlive_migrations_and_other_weights_or_are_said_to_be_lost() -> None:
    """With other weights workers are started again; those that are killed take outputs along."""
    (x, y), model = batches()[0], nn.Linear(6, 3)
    recipe = TrainingRecipe(torch.optim.SGD(model.parameters(), 0.1), outputs=True)
    how = {"loss_fn": LOSS, "targets": y, "optimizer": recipe, "loop": {"snapshot_every": 1}}
    how |= {"method": "analytic", "planner": "only:a"}
    with placewright.Trainer(model, x, TRIO, **how) as trainer:
        expected = model(x)
        trainer.step(x, y)
        adaptation = trainer.run.adaptation
        adaptation._switch(OperatorPlan(np.full(adaptation.problem.n, 1)), 0.0)
        trainer.evaluate(x * 2)
        assert torch.equal(trainer.outputs(), expected)
        with torch.no_grad():
            model.weight.zero_()
        trainer.evaluate(x)
        assert torch.equal(trainer.outputs(), expected)
        trainer.step(x, y)
        for process in trainer.run.session.group.processes:
            process.kill()
            process.join()
        with pytest.raises(RunError, match="no outputs of the last step"):
            trainer.outputs()
        trainer.finish()


def test_weights_that_the_loop_sets_after_the_last_step_are_those_that_are_kept(
    tmp_path: Path,
) -> None:
    """As of the best epoch, say: in the model, the trainer's state and the last snapshot."""
    (x, y), model, other = batches()[0], nn.Linear(6, 3), nn.Linear(6, 3)
    how = {"loss_fn": LOSS, "targets": y, "folder": tmp_path, "method": "analytic"}
    how["planner"] = "only:a"
    with placewright.Trainer(model, x, TRIO, optimizer="sgd", **how) as trainer:
        trainer.step(x, y)
        best = copy.deepcopy(model.state_dict())
        trainer.step(x, y)
        model.load_state_dict(best)
        assert torch.equal(trainer.state_dict()["weight"], best["weight"])
    assert torch.equal(model.weight, best["weight"])
    with placewright.Trainer(other, x, TRIO, optimizer="sgd", **how) as trainer:
        trainer.finish()
        assert torch.equal(other.weight, best["weight"])
        assert trainer.step(x, y) == LOSS(model(x), y).item()


class Counted(nn.Module):
    """Counts its calls in a buffer, which changes what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Larger with each call."""
        self.calls += 1
        return self.layer(x) + self.calls


def test_an_evaluation_that_writes_into_buffers_is_refused_and_the_models_own_is_none() -> None:
    """Steps repeated after a fault would not know of it; what the model itself writes is kept."""
    (x, y), model = batches()[0], Counted()
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, plain)]
    how = {"loss_fn": LOSS, "targets": y, "optimizer": optimizers[0], "method": "analytic"}
    with placewright.Trainer(model, x, TRIO, planner="only:a", **how) as trainer:
        for step in range(3):
            loss = LOSS(plain(x), y)
            assert trainer.step(x, y) == loss.item()
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            with pytest.raises(UnsupportedError, match=r"calls: .* writes into buffers"):
                trainer.evaluate(x)
            assert torch.equal(model.eval()(x), plain.eval()(x))
            model.train(), plain.train()
            if step == 1:
                for process in trainer.run.session.group.processes:
                    process.kill()
        trainer.finish()
    assert model.calls == plain.calls == 6
    assert not trainer.run.folder.exists(), "snapshots that nobody has named end with the run"


def test_training_can_be_compared_with_eager_pytorch_step_by_step(tmp_path: Path) -> None:
    """With a scheduler and an odd last batch; a weight that differs is named at the end."""
    data = batches()
    odd = (data[3][0][:3], data[3][1][:3])
    for wrong in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        how = {
            "loss_fn": LOSS,
            "targets": data[0][1],
            "optimizer": optimizer,
            "schedulers": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            "method": "analytic",
            "planner": "round-robin",
            "check": True,
            "folder": tmp_path / str(wrong),
        }
        with placewright.Trainer(model, data[0][0], TRIO, **how) as trainer:
            for x, y in (*data[:3], odd):
                trainer.step(x, y)
            if wrong:
                with torch.no_grad():
                    next(trainer._program.comparison.eager.model.parameters()).add_(1.0)
                with pytest.raises(CheckError, match="parameter"):
                    trainer.finish()
            else:
                trainer.finish()
        check = trainer.timeline.check
        assert check is not None
        assert check.steps == 4
        assert check.max_abs_error == pytest.approx(float(wrong), abs=1e-6 if wrong else 0.0)
        assert set(check.compared) == {"output", "parameter", "buffer"}
    with pytest.raises(InputError, match=r"(?s)goes on after step 4.*give an empty folder"):
        placewright.Trainer(model, data[0][0], TRIO, **how)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"engine": None}, r"engine of .*must be .*'local'.*\(got None\)"),
        ({"steps": "ten"}, r"steps of .*: must be a whole number .*\(got 'ten'\)"),
        ({"steps": -1}, r"steps of .*: must be .*\(got -1\)"),
        ({"steps": float("nan")}, r"steps of .*: must be .*\(got nan\)"),
        ({"loop": {"snapshot_every": 0}}, r"snapshot_every must be a number .*\(got 0\)"),
        ({"loop": {"rejoin_every": 0}}, r"rejoin_every must be a number of at least 1"),
        ({"loop": {"patience_s": -1.0}}, r"patience_s must be a number of at least 0"),
        ({"loop": {"snapshots": 5}}, r"unknown setting 'snapshots'.*did you mean 'snapshot_every'"),
    ],
)
def test_a_bad_setting_is_named_before_any_step(settings: dict[str, Any], text: str) -> None:
    """What, where, by how much, what next: no worker is started for it."""
    model, (x, y) = net(), batches()[0]
    how = {"loss_fn": LOSS, "targets": y, "method": "analytic", "planner": "only:b"}
    with pytest.raises(InputError, match=f"(?s){text}"):
        placewright.Trainer(model, x, TRIO, **how | settings)


def test_an_optimizer_that_workers_cannot_run_is_named() -> None:
    """Before any worker is started, with a way out."""
    model, (x, y) = net(), batches()[0]
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(UnsupportedError, match=r"(?s)optimizer LBFGS: .*closure.*AdamW"):
        placewright.Trainer(model, x, TRIO, loss_fn=LOSS, targets=y, optimizer=optimizer)
    foreign = torch.optim.AdamW(net().parameters())
    with pytest.raises(InputError, match="a parameter that the model does not have"):
        placewright.Trainer(model, x, TRIO, loss_fn=LOSS, targets=y, optimizer=foreign)


def test_a_bad_batch_is_named_in_four_parts_and_nothing_is_lost() -> None:
    """What, where, by how much, what next; the weights stay as they were and the run goes on."""
    model, (x, y) = net(), batches()[0]
    how = {"loss_fn": LOSS, "targets": y, "method": "analytic", "planner": "heft"}
    with placewright.Trainer(model, x, TRIO, **how) as trainer:
        trainer.step(x, y)
        before = trainer.state_dict()
        calls: dict[str, Callable[[], object]] = {
            r"input 0 .*float64, the example has .*\.to\(torch\.float32": lambda: trainer.step(
                x.double(), y
            ),
            r"calling it raised .*\(called with input 0 \(5, 7\) float32": lambda: trainer.step(
                torch.ones(5, 7), y
            ),
            r"no target 0 \(it has input 0\).*the same kinds": lambda: trainer.step(x),
            r"got str\).*next: give what the model": lambda: trainer.step("x", y),
            r"loader of .*remaining\(\): must be .*got 5\)": lambda: list(trainer.remaining(5)),  # type: ignore[arg-type]
            r"target differs from the example's .*the example has": lambda: trainer.step(x, (y, 2)),
            r"evaluate: input 0 has another dtype .*\(torch\.float64": lambda: trainer.evaluate(
                x.double()
            ),
        }
        for text, call in calls.items():
            with pytest.raises(InputError, match=f"(?s){text}") as raised:
                call()
            found = raised.value
            assert all((found.what, found.where, found.by, found.hint)), str(found)
        after = trainer.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert not trainer.timeline.events  # no worker was lost over them
        trainer.step(x, y)
    with pytest.raises(RunError, match=r"closed \(after step 2\)"):
        trainer.state_dict()
    meta = net().to("meta")
    with (
        placewright.place(meta, x, TRIO, method="analytic", planner="heft") as placed,
        pytest.raises(InputError, match=r"no weights.*\(\d+ of its tensors have no values\)"),
    ):
        placed(x)


def test_a_worker_without_memory_says_by_how_much_the_judge_was_wrong() -> None:
    """The event says it, and the step is done by workers that have memory: nothing is lost.

    The step after the limit has a larger batch: one like those before could do with what they have
    left free in the worker.
    """
    x, more = torch.ones(20, 8), torch.ones(1_000_000, 8)
    how = {"loss_fn": LOSS, "targets": x, "method": "analytic", "planner": "only:b"}
    losses = []
    for starved in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        with placewright.Trainer(model, x, TRIO, adapt=False, **how) as trainer:
            trainer.step(x, x)
            if starved:
                starve(trainer.run.session, 1 << 20)
            losses.append(trainer.step(more, more))
    assert losses[0] == losses[1]
    fault = next(event for event in trainer.timeline.events if event.kind == "fault")
    assert "device 'b': the worker ran out of memory, " in fault.text
    assert "the judge expected" in fault.text


class Scaled(torch.nn.Module):
    """Two tensors and a number, known by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """All three count."""
        return self.a(x) * scale + shift


def test_batches_are_told_apart_by_names_and_by_what_is_no_tensor() -> None:
    """Keys in another order, lists for tuples; another number is refused, or evaluated with."""
    x, shift = torch.ones(3, 8), torch.zeros(3, 8)
    model, twin = Scaled(), Scaled()
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    how = {"loss_fn": lambda y, t: LOSS(y, t[0]), "targets": (x,), "method": "analytic"}
    example = {"x": x, "shift": shift, "scale": 2.0}
    turned = {"scale": 2.0, "shift": shift, "x": x}
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    with placewright.Trainer(model, example, TRIO, optimizer=mine, **how) as trainer:
        for _ in range(2):
            loss = LOSS(twin(**turned), x)
            assert trainer.step(turned, [x]) == loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with pytest.raises(InputError, match=r"input 2 differs .*\(3\.0, the example has 2\.0\)"):
            trainer.step({**example, "scale": 3.0}, (x,))
        with torch.no_grad():
            for scale in (1.0, 3.0):
                found = trainer.evaluate({**example, "scale": scale})
                assert torch.equal(found, twin.eval()(x, shift, scale))


class Asking(nn.Module):
    """Computes something else for a batch that is not contiguous, needs gradients, or scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.conv = nn.Linear(4, 4), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor, scale: Tensor, image: Tensor) -> Tensor:
        """Three questions."""
        y = self.layer(x)
        y = y if x.is_contiguous() else y.cos()
        y = y.sin() if x is scale else y
        return (y.tanh() if x.requires_grad else y) * scale + self.conv(image).mean((2, 3))


def test_batches_are_told_apart_by_what_code_may_ask_of_their_tensors() -> None:
    """Strides and gradients, which a capture has built in; that two are one tensor is refused."""
    torch.manual_seed(0)
    model, y = Asking(), torch.randn(4, 4)

    def batch(kind: int) -> tuple[Tensor, Tensor, Tensor]:
        x, image = torch.randn(4, 4), torch.randn(4, 3, 9, 9)
        if kind == 3:
            return x, x, image
        x = x.t() if kind == 1 else x.requires_grad_(kind == 2)
        return x, torch.randn(4, 4), image.to(memory_format=torch.channels_last)

    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    settings = {"loss_fn": nn.functional.mse_loss, "targets": y, "optimizer": optimizers[0]}
    plan = {"method": "analytic", "planner": "round-robin"}
    example = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 3, 9, 9)
    with placewright.Trainer(model, example, TRIO, adapt=False, **settings, **plan) as trainer:
        for x in map(batch, (0, 1, 0, 2, 1)):
            loss = nn.functional.mse_loss(plain(*x), y)
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            assert trainer.step(x, y) == loss.item()
        with pytest.raises(UnsupportedError, match="whether two arguments are one"):
            trainer.step(batch(3), y)
        trainer.finish()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
