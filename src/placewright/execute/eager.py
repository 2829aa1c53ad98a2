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
    """Outputs of the last step, parameters and buffers after it, seconds of every step.

    ``state`` has a tensor that the model holds under several names under each of them.
    """

    outputs: tuple[torch.Tensor, ...]
    state: Mapping[str, torch.Tensor]
    step_s: tuple[float, ...]


class EagerSteps:
    """Plain steps on a copy of the model, one at a time.

    Parameters
    ----------
    threads
        Intra-operator threads; results depend on it in the last bit.
    optimizer
        ``adam`` is ``torch.optim.Adam(fused=True)``, ``sgd`` is ``torch.optim.SGD``.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        training: bool,
        seed: int = 0,
        threads: int = 1,
        optimizer: str = "adam",
        lr: float = 1e-3,
    ) -> None:
        self.model = copy.deepcopy(source.model)
        self._threads = threads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._random = torch.get_rng_state()
        self._step = stepper(self.model, source, training=training, optimizer=optimizer, lr=lr)
        self._times: list[float] = []

    def step(self) -> EagerRun:
        """Execute one step; the caller's random numbers and threads stay as they were."""
        with _threads(self._threads), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            start = time.perf_counter()
            outputs = self._step()
            self._times.append(time.perf_counter() - start)
            self._random = torch.get_rng_state()
        found = tuple(x.detach() for x in tree_leaves(outputs) if isinstance(x, torch.Tensor))
        return EagerRun(found, model_state(self.model), tuple(self._times))


def model_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name that they have."""
    named = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {name: tensor.detach() for name, tensor in named}


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
    """Execute plain steps on a copy of the model, at least one; see `EagerSteps`."""
    eager = EagerSteps(
        source, training=training, seed=seed, threads=threads, optimizer=optimizer, lr=lr
    )
    for _ in range(steps):
        run = eager.step()
    return run


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
