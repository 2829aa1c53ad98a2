"""`placewright.place`, and the methods of a placed model."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import placewright
from placewright.cluster.cluster import Cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.workers import ModelWorkers
from placewright.errors import InputError, RunError, UnsupportedError
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun
from placewright.operators.run import best_single
from placewright.runtime import session as sessions
from placewright.testbed import Testbed
from placewright.testbed.testbed import missing
from tests.operators.adaptive.jobs import TRIO

DUO = """
devices:
  - {name: left, node: a}
  - {name: right, node: b, speed: 0.5}
links:
  - {from: left, to: right, bandwidth: 1Gbps, latency: 100us}
"""
LOSS = torch.nn.functional.mse_loss


def net() -> torch.nn.Module:
    """Three layers."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers)


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=made), torch.randn(5, 3, generator=made)


def placed(**settings: Any) -> PlacedModel:
    """The training step on three devices of this machine, planned at once."""
    x, y = batch()
    options: dict[str, Any] = {"training": True, "loss_fn": LOSS, "targets": y} | settings
    return placewright.place(net(), x, TRIO, method="analytic", planner="round-robin", **options)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Devices of every session that is started."""
    found: list[tuple[str, ...]] = []
    real = sessions.Session.__enter__

    def enter(self: sessions.Session) -> sessions.Session:
        found.append(self.cluster.device_names)
        return real(self)

    monkeypatch.setattr(sessions.Session, "__enter__", enter)
    return found


def test_a_placed_model_forwards_and_shows_its_result() -> None:
    """The plan can be read without starting anything."""
    with placed() as model:
        assert (model.value, model.lower_bound) == (model.result.value, model.result.lower_bound)
        assert (model.gap, model.status) == (model.result.gap, model.result.status)
        assert model.plan is model.result.plan
        assert repr(model) == repr(model.result)
        assert model._repr_html_() == model.result._repr_html_()
        assert str(model.explain(model.workload.graph.operator_names[0]))


def test_run_train_report_on_one_set_of_workers(
    tmp_path: Path, started: list[tuple[str, ...]]
) -> None:
    """Measured steps, steps that adapt and a trainer; every one of them equals eager."""
    with placed() as model:
        measured = model.run(3, check=True)
        assert measured.check is not None
        measured.check.demand()
        assert measured is model.measurement
        assert "measured" in repr(model)
        model.run(4, adapt=True, check=True)
        assert model.timeline is not None
        assert len(model.timeline.step_s) == 4
        assert model.timeline.check is not None
        model.timeline.check.demand()
        assert started == [TRIO.device_names]  # the steps that adapt took those that were up
        plain = copy.deepcopy(model.workload.source.model)
        with model.trainer() as trainer:
            x, y = batch(2)
            loss = trainer.step(x, y)
            trained = trainer.finish()
        assert loss == pytest.approx(LOSS(plain(x), y).item())
        assert not torch.equal(trained[0].weight, plain[0].weight)
        assert started == [TRIO.device_names] * 2
    page = model.report(tmp_path / "run.html").read_text()
    assert "step times of the run" in page
    assert model.trace(tmp_path / "trace.json.gz").exists()
    kept = model.save(tmp_path / "plan.json")
    with placed(plan=kept) as again:
        assert (again.plan.placement == model.plan.placement).all()
        assert again.result.planner == "plan.json"


def test_ctrl_c_ends_steps_that_adapt_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeating them in eager PyTorch would take as long again; torchrun kills after 30 s."""
    real = AdaptiveRun.step

    def pressed_in_the_second(self: AdaptiveRun, batch: Any = None) -> float:
        seconds = real(self, batch)
        if self.done == 2:
            raise KeyboardInterrupt
        return seconds

    monkeypatch.setattr(AdaptiveRun, "step", pressed_in_the_second)
    with placed() as model:
        model.run(4, adapt=True, check=True)
        assert model.timeline is not None
        assert len(model.timeline.step_s) == 2
        assert model.timeline.check is None


def test_another_plan_runs_on_the_same_workers(started: list[tuple[str, ...]]) -> None:
    """Judged with what was calibrated, measured in turns with the first one."""
    with placed() as model:
        single = best_single(model.interference.alone)
        assert single is not None
        other = model.with_plan(single.plan)
        assert other.value == single.value
        with model.runner() as runner:
            runner.load(other.result.problem, other.plan)
            runner.session.run(1)
            runner.measure(model.result, beside=other.result, steps=1)
        assert other.run(1).step_s
    assert started == [TRIO.device_names]


def test_snapshots_continue_a_run_and_a_trainer(tmp_path: Path) -> None:
    """A trainer goes on where steps that adapt have ended."""
    with placed() as model:
        model.run(2, adapt=True, snapshots=tmp_path)
        with model.trainer(tmp_path) as trainer:
            assert trainer.steps_done == 2


def test_a_full_disk_at_the_end_loses_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the last snapshot is missing is a warning beside what was measured."""
    monkeypatch.setattr(AdaptiveJob, "state_bytes", 1 << 62)
    with placed() as model, pytest.warns(RuntimeWarning, match="the last snapshot is not written"):
        model.run(2, adapt=True, snapshots=tmp_path)
    assert model.timeline is not None
    assert len(model.timeline.step_s) == 2


def test_a_closed_model_says_so_and_still_reports(tmp_path: Path) -> None:
    """Plans outlive the workers."""
    with placed() as model:
        pass
    with pytest.raises(RunError, match="the placed model is closed"):
        model.run(1)
    assert model.save(tmp_path / "plan.json").exists()


def test_workers_end_with_the_object() -> None:
    """Whoever forgets to close leaves no process behind."""
    model = placed()
    with model.workers.session(model.workload) as session:
        processes = session.group.processes
    assert all(process.is_alive() for process in processes)
    del model, session
    assert not any(process.is_alive() for process in processes)


def _lose_a_worker(model: PlacedModel) -> None:
    """In the middle of a step."""
    with model.workers.session(model.workload) as session:
        os.kill(session.group.processes[0].pid or 0, 9)
        session.run(1)


def test_a_session_is_replaced_after_an_error(started: list[tuple[str, ...]]) -> None:
    """A worker that was killed costs the call that meets it, not the next one."""
    with placed() as model:
        with pytest.raises(RunError):
            _lose_a_worker(model)
        assert model.run(1).step_s
    assert len(started) == 2


def _traced(function: Any, x: torch.Tensor) -> Any:
    with torch._subclasses.FakeTensorMode():
        return function(x)


def _without_values(function: Any, x: torch.Tensor) -> Any:
    with torch.device("meta"):
        return function(x)


@pytest.mark.parametrize(
    "transform",
    [
        lambda function, x: torch.vmap(function)(x),
        lambda function, x: torch.func.grad(lambda y: function(x).sum())(x),
        lambda function, x: torch.func.jvp(function, (x,), (x,)),
        lambda function, x: torch.func.functionalize(function)(x),
        lambda function, x: torch.fx.experimental.proxy_tensor.make_fx(function)(x),
        lambda function, x: torch.jit.trace(lambda x: function(x), (x,)),
        _traced,
        _without_values,
    ],
)
def test_calls_inside_transforms_are_refused(transform: Callable[..., Any]) -> None:
    """Workers compute values: not a derivative, a row or a trace of a call; nor none."""
    (x, y), other = batch(), net()
    settings: dict[str, Any] = {"method": "analytic", "planner": "heft"}
    with placewright.place(net(), x, TRIO, True, loss_fn=LOSS, targets=y, **settings) as model:
        for function in (
            model,
            lambda x: next(model.stream([x])),
            lambda x: placewright.place(other, x, TRIO, **settings)(x),
            lambda x: model.trainer().step(x, y),
        ):
            with pytest.raises(UnsupportedError, match="workers compute values"):
                transform(function, x)
        assert model.workers.up is None


def test_unsupported_uses_are_refused() -> None:
    """Each with what to do instead."""
    x, _ = batch()
    with pytest.raises(InputError, match="inputs are missing"):
        placewright.place(net())
    with pytest.raises(InputError, match=r"a torch\.nn\.Module is placed"):
        placewright.place(torch.relu, x)
    with placed() as model, pytest.raises(InputError, match="runs that adapt"):
        model.run(1, snapshots="somewhere")
    with placewright.place(net(), x, TRIO, method="analytic", planner="heft") as model:
        for checked in (False, True):
            with pytest.raises(InputError, match=">= 1"):
                model.run(0, check=checked)
        fake = torch._subclasses.FakeTensorMode().from_tensor(x)
        with pytest.raises(InputError, match="no values that workers could be sent"):
            model(fake)
        for wrong in ({1: x}, {"input": x, None: x}, x.numpy()):
            with pytest.raises(InputError, match="a dict by names"):
                next(model.stream([wrong]))
        with pytest.raises(InputError, match="placed for inference"):
            model.trainer()
    with pytest.raises(InputError, match="unknown engine"):
        ModelWorkers("slurm", TRIO)


@pytest.mark.skipif(missing() is not None, reason="no testbed here")
def test_on_a_testbed_it_does_what_the_command_line_does(
    caplog: pytest.LogCaptureFixture, started: list[tuple[str, ...]]
) -> None:
    """Calibrated, planned, measured, adapted and trained; equal to eager; the testbed goes down."""
    cluster = Cluster.from_text(DUO, where="a test", name=f"placed {os.getpid()}")
    x, y = batch()
    with (
        caplog.at_level(logging.INFO, logger="placewright"),
        placewright.place(
            net(), x, cluster, True, loss_fn=LOSS, targets=y, engine="testbed", time_limit_s=1
        ) as model,
    ):
        measured, adapted = model.run(4, adapt=True, check=True), model.timeline
        with model.trainer() as trainer:
            trainer.step(x, y)
            trainer.finish()
    assert adapted is not None
    for check in (measured.check, adapted.check):
        assert check is not None
        check.demand()
    assert "CPU quotas" in measured.emulated
    assert "whole steps take, beside the profile: left " in caplog.text
    assert "plan 1" in caplog.text
    ours = [names for names in started if names == cluster.device_names]
    assert len(ours) == 2  # one until steps that adapt end, one trains
    assert all(bed.cluster.name != cluster.name for bed in Testbed.all())


def test_micro_batches_run_and_train_as_eager_does() -> None:
    """A step of three workers, and a trainer whose last batch cannot be cut evenly."""
    with placed(micro_batches=2) as model:
        assert model.run(steps=1, warmup=0, check=True).max_abs_error == 0
        assert set(model.result.problem.micro_batch.tolist()) == {0, 1, 2}
        with model.trainer(adapt=False) as trainer:
            x, y = batch()
            trainer.step(x, y)
            trainer.step(x[:3], y[:3])
            trained = trainer.finish()
    eager = net()
    updates = torch.optim.Adam(eager.parameters(), lr=1e-3, fused=True)
    for rows in (5, 3):
        updates.zero_grad()
        parts = zip(x[:rows].tensor_split(2), y[:rows].tensor_split(2), strict=True)
        for own, wanted in parts:
            (LOSS(eager(own), wanted) * (len(own) / rows)).backward()
        updates.step()
    for name, value in eager.named_parameters():
        assert torch.equal(trained.get_parameter(name), value)


def test_micro_batches_are_for_training() -> None:
    """A stream takes several batches for inference."""
    with pytest.raises(InputError, match=r"placed\.stream"):
        placewright.place(net(), batch()[0], TRIO, micro_batches=2)
