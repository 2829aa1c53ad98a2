"""Compare a captured program with eager PyTorch from the same start and the same seed."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.containers import refilled, tensors_of
from placewright.capturing.model import capture_source
from placewright.capturing.python_state import set_mode
from placewright.capturing.source import ModelAndLoss, ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.graph.graph import Graph
from tests.capturing.reference_interpreter import random_order, run

STEPS = 3
SEED = 7


class StepInputs:
    """A source's inputs and targets, copied once: what is changed in place stays changed."""

    def __init__(self, source: ModelSource) -> None:
        self.inputs = source.arguments
        self.targets = source.targets
        both = (self.inputs, self.targets)
        self.tensors = [tensor.detach().clone() for tensor in tensors_of(both)]

    def call(self, model: nn.Module) -> tuple[Any, Any]:
        """Outputs and targets; containers are as they were at the start in every call."""
        inputs, targets = refilled((self.inputs, self.targets), iter(self.tensors))
        if isinstance(inputs, dict):
            return model(**inputs), targets
        return model(*inputs), targets


def call(source: ModelSource, model: nn.Module) -> Any:
    """The model on a copy of its inputs, as a user would call it."""
    return StepInputs(source).call(model)[0]


def eager_steps(source: ModelSource, optimizer: str) -> tuple[list[Tensor], nn.Module]:
    """Losses of `STEPS` training steps, and the model and loss afterwards."""
    model, loss_fn = copy.deepcopy((source.model, source.loss_fn or default_loss))
    set_mode(model, training=True)
    whole = ModelAndLoss(model, loss_fn)
    trained = [p for p in whole.parameters() if p.requires_grad]
    step = (
        torch.optim.Adam(trained, lr=1e-3, fused=True)
        if optimizer == "adam"
        else torch.optim.SGD(trained, lr=1e-3)
    )
    losses, step_inputs = [], StepInputs(source)
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        step.zero_grad()
        loss = loss_fn(*step_inputs.call(model))
        loss.backward()
        step.step()
        losses.append(loss.detach())
    return losses, whole


def differences(
    source: ModelSource,
    graph: Graph | None = None,
    *,
    optimizer: str = "adam",
    shuffle: int | None = None,
) -> dict[str, float]:
    """What differs from eager after `STEPS` steps: name -> largest absolute difference.

    With `shuffle` the instructions run in a random topological order of that seed.
    """
    graph = graph or capture_source(source, training=True, optimizer=optimizer)
    order = None if shuffle is None else random_order(graph, shuffle)
    state = initial_state(source, graph.program)
    with torch.random.fork_rng(devices=[]):
        losses, model = eager_steps(source, optimizer)
        torch.manual_seed(SEED)
        ours = [run(graph, state, order)["loss"] for _ in range(STEPS)]
    expected = {f"loss {k}": loss for k, loss in enumerate(losses)}
    got = {f"loss {k}": loss for k, loss in enumerate(ours)}
    parameters, buffers = ModelSource(model.model, (), model.loss_fn).members()
    kept = {("parameter", m.key): m.value.detach() for m in parameters}
    kept |= {("buffer", m.key): m.value for m in buffers}
    for entry in graph.program.inputs:
        if (entry.role, entry.key) in kept:
            expected[entry.name] = kept[entry.role, entry.key]
            got[entry.name] = state[entry.name]
    return _unequal(expected, got)


def inference_differences(source: ModelSource, graph: Graph | None = None) -> dict[str, float]:
    """What differs between the outputs of the captured and the eager forward pass."""
    graph = graph or capture_source(source)
    state = initial_state(source, graph.program)
    model, step_inputs = copy.deepcopy(source.model), StepInputs(source)
    set_mode(model, training=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        eager = [[x.clone() for x in tensors_of(step_inputs.call(model)[0])] for _ in range(STEPS)]
        torch.manual_seed(SEED)
        ours = [{n: x.clone() for n, x in run(graph, state).items()} for _ in range(STEPS)]
    assert len(ours[0]) == len(eager[0])
    expected = {f"{n} {k}": x for k, e in enumerate(eager) for n, x in zip(ours[0], e, strict=True)}
    return _unequal(expected, {f"{n} {k}": x for k, o in enumerate(ours) for n, x in o.items()})


def _unequal(expected: dict[str, Tensor], got: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: float((expected[name].double() - got[name].double()).abs().max())
        for name in expected
        if not torch.equal(expected[name], got[name])
    }
