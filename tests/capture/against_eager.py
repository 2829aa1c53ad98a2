"""Plain eager PyTorch beside the captured program, from the same start and the same seed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from placewright.capture.model import capture_source
from placewright.capture.source import ModelSource, mean_square
from placewright.capture.state import initial_state
from placewright.graph.graph import Graph
from tests.capture.reference_interpreter import random_order, run

STEPS = 3
SEED = 7


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are split among threads; with one thread they are the same every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)


def call(source: ModelSource, model: nn.Module) -> Any:
    """The model on its inputs, as a user would call it."""
    inputs = source.inputs
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def eager_steps(source: ModelSource, optimizer: str) -> tuple[list[Tensor], nn.Module]:
    """Losses of `STEPS` training steps, and the model afterwards."""
    model = copy.deepcopy(source.model).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    step = (
        torch.optim.Adam(trained, lr=1e-3, fused=True)
        if optimizer == "adam"
        else torch.optim.SGD(trained, lr=1e-3)
    )
    losses, loss_fn = [], source.loss_fn or mean_square
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        step.zero_grad()
        loss = loss_fn(call(source, model), source.targets)
        loss.backward()
        step.step()
        losses.append(loss.detach())
    return losses, model


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
    with one_thread():
        losses, model = eager_steps(source, optimizer)
        torch.manual_seed(SEED)
        ours = [run(graph, state, order)["loss"] for _ in range(STEPS)]
    expected = {f"loss {k}": loss for k, loss in enumerate(losses)}
    got = {f"loss {k}": loss for k, loss in enumerate(ours)}
    kept = {("parameter", k): p.detach() for k, p in model.named_parameters()}
    kept |= {("buffer", k): b for k, b in model.named_buffers()}
    for entry in graph.program.inputs:
        if (entry.role, entry.key) in kept:
            expected[entry.name] = kept[entry.role, entry.key]
            got[entry.name] = state[entry.name]
    return _unequal(expected, got)


def inference_differences(source: ModelSource, graph: Graph | None = None) -> dict[str, float]:
    """What differs between the outputs of the captured and the eager forward pass."""
    graph = graph or capture_source(source)
    state = initial_state(source, graph.program)
    with one_thread(), torch.no_grad():
        torch.manual_seed(SEED)
        leaves = tree_leaves(call(source, copy.deepcopy(source.model).eval()))
        expected = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        torch.manual_seed(SEED)
        got = run(graph, state)
    assert len(got) == len(expected)
    return _unequal(dict(zip(got, expected, strict=True)), got)


def _unequal(expected: dict[str, Tensor], got: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: float((expected[name].double() - got[name].double()).abs().max())
        for name in expected
        if not torch.equal(expected[name], got[name])
    }
