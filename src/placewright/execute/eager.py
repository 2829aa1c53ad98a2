"""Plain eager PyTorch: what a placed run is compared with."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from placewright.capture.source import ModelSource


@dataclass(frozen=True, slots=True, eq=False)
class EagerRun:
    """Outputs of the last step, parameters and buffers after it, seconds of every step."""

    outputs: tuple[torch.Tensor, ...]
    state: Mapping[str, torch.Tensor]
    step_s: tuple[float, ...]


def run_eager(
    source: ModelSource,
    *,
    training: bool,
    steps: int,
    seed: int = 0,
    threads: int = 1,
    optimizer: str = "adam",
    lr: float = 1e-3,
) -> EagerRun:
    """Execute plain steps on a copy of the model.

    Parameters
    ----------
    threads
        Intra-operator threads; results depend on it in the last bit.
    optimizer
        ``adam`` is ``torch.optim.Adam(fused=True)``, ``sgd`` is ``torch.optim.SGD``.
    """
    model = copy.deepcopy(source.model)
    times = []
    with _threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        step = stepper(model, source, training=training, optimizer=optimizer, lr=lr)
        for _ in range(steps):
            start = time.perf_counter()
            outputs = step()
            times.append(time.perf_counter() - start)
    state = {k: v.detach() for k, v in (*model.named_parameters(), *model.named_buffers())}
    found = tuple(x.detach() for x in tree_leaves(outputs) if isinstance(x, torch.Tensor))
    return EagerRun(found, state, tuple(times))


def stepper(
    model: torch.nn.Module,
    source: ModelSource,
    *,
    training: bool,
    optimizer: str = "adam",
    lr: float = 1e-3,
) -> Callable[[], Any]:
    """A function that does one plain step of `model` on the source's batch; outputs or loss."""
    if not training:
        model.eval()
        return lambda: _infer(model, source)
    model.train()
    updates = _optimizer(model, optimizer, lr)
    return lambda: _train(model, source, updates)


def _optimizer(model: torch.nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr)
    return torch.optim.Adam(model.parameters(), lr=lr, fused=True)


def _train(
    model: torch.nn.Module, source: ModelSource, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    assert source.loss_fn is not None
    optimizer.zero_grad(set_to_none=True)
    loss = source.loss_fn(_forward(model, source.inputs), source.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


@torch.no_grad()
def _infer(model: torch.nn.Module, source: ModelSource) -> Any:
    return _forward(model, source.inputs)


def _forward(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
