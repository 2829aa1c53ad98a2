"""The check of a placed run against eager PyTorch, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import CheckError
from placewright.measurement import Check
from placewright.operators.check import Comparison, difference, run_eager
from placewright.operators.exactness import EXACT, tolerance
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import Runner, execution_order, running
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from small_zoo import small
from tests.capturing.reference_interpreter import run

PAIR = Cluster((Device("a"), Device("b")), name="pair")


class Tied(torch.nn.Module):
    """One weight under two names, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through the same weight twice."""
        out: torch.Tensor = self.second(self.norm(self.first(x)).relu())
        return out


def tied() -> ModelSource:
    """With a loss."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs, targets = torch.randn(8, 4), torch.randn(8, 4)
        return ModelSource(Tied(), (inputs,), torch.nn.functional.mse_loss, targets)


def checked(monkeypatch: pytest.MonkeyPatch | None = None, **spoilt: Any) -> Check:
    """Three steps on two workers; `spoilt` is what to add to a program input after step two."""
    source = tied()
    graph = capture_source(source, training=True)
    problem = profile(graph, PAIR, method="analytic")
    groups = np.arange(problem.colocation.max() + 1) % 2
    plan = OperatorPlan(groups[problem.colocation])
    if monkeypatch is not None:
        spoil(monkeypatch, spoilt)
    with running(graph, PAIR, initial_state(source, graph.program)) as runner:
        order = execution_order(problem, judge(problem, plan))
        runner.session.load(plan.placement.tolist(), order, 3)
        return runner.check(source, 3)


def spoil(monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, float]) -> None:
    """From the second step on, other state comes back from the workers."""
    true, count = Session.state, [0]

    def state(self: Session) -> dict[str, torch.Tensor]:
        found = true(self)
        count[0] += 1
        for end, by in changes.items() if count[0] > 1 else ():
            name = next(n for n in found if n.endswith(end.replace("__", ".")))
            found[name] = found[name] + by
        return found

    monkeypatch.setattr(Session, "state", state)


def test_a_right_run_passes_at_tolerance_zero() -> None:
    """Loss, every parameter under each of its names, every buffer, in three steps."""
    check = checked()
    check.demand()
    assert check.passed
    assert (check.steps, check.max_abs_error, check.first) == (3, 0.0, None)
    assert check.compared == {"output": 1, "parameter": 4, "buffer": 3}
    assert "passed, tolerance 0: every bit" in str(check)


def test_a_wrong_run_names_tensor_step_distance_and_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step that differs, and of its tensors the one that differs most."""
    check = checked(monkeypatch, norm__weight=0.5, norm__bias=0.25)
    assert check.first is not None
    assert (check.first.role, check.first.tensor, check.first.step) == (
        "parameter",
        "norm.weight",
        2,
    )
    assert check.first.max_abs_error == pytest.approx(0.5)
    assert [f.tensor for f in check.failed] == ["norm.weight", "norm.bias"]
    with pytest.raises(CheckError, match=r"'norm.weight' after step 2.*by 0.5, tolerance 0"):
        check.demand()
    assert "FAILED: parameter 'norm.weight' after step 2 differs by 0.5" in str(check)
    report = check.as_json()
    assert not report["passed"]
    assert report["first"]["tensor"] == "norm.weight"
    assert report["beyond"] == 2


def test_what_the_program_lacks_must_not_have_changed() -> None:
    """A parameter that eager trains and the program does not know of is a difference."""
    source = tied()
    graph = capture_source(source, training=True)
    comparison = Comparison.of(graph, source, seed=0, devices=PAIR.devices)
    comparison.step({}, {})
    names = {found.tensor for found in comparison.failed}
    assert {"first.weight", "second.weight", "norm.weight", "norm.running_mean"} <= names


def test_a_loss_may_be_given_as_a_number() -> None:
    """As adaptive runs keep it; a number that is off by one bit is noticed."""
    source = tied()
    graph = capture_source(source, training=True)
    first = Comparison.of(graph, source, seed=0, devices=PAIR.devices)
    loss = float(first.eager.step().outputs[0])
    for number, passes in ((loss, True), (float(np.nextafter(np.float32(loss), 9)), False)):
        comparison = Comparison.of(graph, source, seed=0, devices=PAIR.devices)
        comparison.step({"loss": number}, None)
        assert comparison.check().passed is passes


def test_differences_that_are_no_numbers() -> None:
    """NaN beside NaN is equal, beside a number infinitely far; so are other shapes and types."""
    one, nan = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert difference(nan, nan.clone()) == 0.0
    assert difference(one, nan) == float("inf")
    assert difference(one, torch.ones(3)) == float("inf")
    assert difference(one, one.double()) == float("inf")
    assert difference(torch.tensor([1 + 1j]), torch.tensor([1 + 3j])) == 2.0
    assert difference(torch.tensor([float("inf")]), torch.tensor([float("inf")])) == 0.0


def test_a_runner_checks_on_the_cores_that_the_plan_uses() -> None:
    """Eager gets as many threads as the devices have."""
    wide = Cluster((Device("a"), Device("b", cores=2)), name="wide")
    source = tied()
    graph = capture_source(source)
    problem = profile(graph, wide, method="analytic")
    plan = OperatorPlan(np.ones(problem.n))
    with running(graph, wide, initial_state(source, graph.program)) as runner:
        assert isinstance(runner, Runner)
        order = execution_order(problem, judge(problem, plan))
        runner.session.load(plan.placement.tolist(), order)
        alone = runner.check(source, 0, [wide.devices[1]])
        both = runner.check(source, 0)
    assert alone.tolerance.relative == 0.0
    assert both.tolerance.relative > 0.0
    assert alone.passed
    assert both.passed


def test_equal_cores_promise_every_bit() -> None:
    """Whatever else the devices differ in: speed, memory, node."""
    source = small("alexnet")
    graph = capture_source(source, training=True)
    devices = [Device("a", cores=2), Device("b", cores=2, speed=0.5, node="other")]
    assert tolerance(graph, devices, source) is EXACT
    assert EXACT.absolute("parameter", 1e9, 3) == 0.0
    assert EXACT.steps is None


@pytest.mark.parametrize(
    ("other", "roundoff", "why"),
    [
        (Device("b", cores=4), 2.0**-24, "2 and 4 cores"),
        (Device("b", kind="gpu", cores=2), 2.0**-11, "TF32"),
    ],
)
def test_other_kernels_get_half_of_the_digits(other: Device, roundoff: float, why: str) -> None:
    """Relative to the largest value; Adam adds its rate in either direction; one step."""
    source = small("alexnet")
    graph = capture_source(source, training=True, lr=1e-2)
    allowed = tolerance(graph, [Device("a", cores=2), other], source)
    assert allowed.relative == math.sqrt(roundoff)
    assert allowed.absolute("output", 3.0, 1) == pytest.approx(3.0 * math.sqrt(roundoff))
    assert allowed.absolute("parameter", 0.0, 1) == pytest.approx(2e-2)
    assert allowed.steps == 1
    assert why in allowed.reason
    assert tolerance(capture_source(source), [Device("a"), other], source).steps is None


def encoder() -> ModelSource:
    """Fused by eager in evaluation mode."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return ModelSource(layer, (torch.randn(2, 5, 16),), default_loss, name="encoder")


def masked(mask: torch.Tensor) -> ModelSource:
    """A decoder of transformers with an attention mask."""
    settings = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**settings, **heads, use_cache=False))
    ids = torch.arange(12).view(2, 6)
    return ModelSource(model, {"input_ids": ids, "attention_mask": mask}, default_loss)


def test_kernels_that_eager_fuses_get_half_of_the_digits() -> None:
    """Eager does differ, by less than that; in training it fuses nothing."""
    source = encoder()
    graph = capture_source(source)
    allowed = tolerance(graph, [Device("a")], source)
    assert "fuses" in allowed.reason
    eager = run_eager(source, training=False, steps=1).outputs[0]
    placed = run(graph, initial_state(source, graph.program))["output"]
    assert (eager - placed).abs().max() < allowed.relative * eager.abs().max()
    assert tolerance(capture_source(source, training=True), [Device("a")], source) is EXACT


class Padded(nn.Module):
    """An encoder whose mask is an input."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        """Tokens at padded positions are 0 where eager packs them."""
        made: torch.Tensor = self.encoder(x, src_key_padding_mask=padded)
        return made


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("additive", [False, True])
def test_padded_positions_are_those_of_eager(norm: bool, additive: bool) -> None:
    """Zero where the padding is at the end, whatever mask the program is given later."""
    torch.manual_seed(0)
    model = Padded(nn.LayerNorm(16) if norm else None).eval()
    ends = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1], [0] * 6]).bool()
    inside = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1], [0] * 6]).bool()
    masks = [torch.zeros(3, 6).masked_fill(m, -math.inf) if additive else m for m in (ends, inside)]
    x = torch.randn(3, 6, 16)
    source = ModelSource(model, (x, masks[0]), name="padded")
    graph = capture_source(source)
    for mask in masks:
        given = ModelSource(model, (x, mask), name="padded")
        eager = run_eager(given, training=False, steps=1).outputs[0]
        placed = run(graph, initial_state(given, graph.program))["output"]
        assert (eager - placed).abs().max() < 1e-5
    assert eager[masks[1] != 0].abs().max() > 0.1


def test_a_mask_that_hides_nothing_leaves_every_bit() -> None:
    """Transformers leaves it out by its values, which a program cannot; the kernels agree."""
    source = masked(torch.ones(2, 6, dtype=torch.int64))
    graph = capture_source(source)
    assert tolerance(graph, [Device("a")], source) is EXACT
    eager = run_eager(source, training=False, steps=1).outputs[0]
    placed = run(graph, initial_state(source, graph.program))["output"]
    assert torch.equal(eager, placed)
