"""Job: a model with its cluster, measured costs and engine, for a run that adapts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from placewright.adapt.connectivity import all_talk
from placewright.cluster.cluster import Cluster
from placewright.graph.graph import TensorSpec
from placewright.layers.execution.orders import OPTIMIZER
from placewright.layers.execution.session import LayerSession
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.problem import LayerProblem
from placewright.runtime.engines.engine import Engine

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, eq=False)
class LayerJob:
    """What is trained, where, and by what.

    Attributes
    ----------
    problem
        As measured on all workers of the cluster.
    optimizer, lr
        ``adam`` or ``sgd``, and its learning rate.
    exact
        Refuse plans that do not compute what one process computes.
    """

    model: TracedModel
    cluster: Cluster
    problem: LayerProblem
    engine: Engine
    optimizer: str = "adam"
    lr: float = 1e-3
    exact: bool = True

    @property
    def name(self) -> str:
        """Of the model."""
        return self.model.source.name

    @property
    def node_names(self) -> tuple[str, ...]:
        """The workers, in the cluster's order."""
        return self.cluster.device_names

    @property
    def reachable(self) -> Callable[[Sequence[str]], Collection[str]]:
        """Which of the named workers can all talk to each other now."""
        engine: Any = self.engine
        if hasattr(engine, "reachable"):
            found: Callable[[Sequence[str]], Collection[str]] = engine.reachable
            return found
        handles = getattr(engine, "handles", None)
        if handles is None:
            return frozenset
        return lambda names: all_talk([handles[name] for name in names])

    def session(self, names: Collection[str]) -> LayerSession:
        """Start workers on the devices called `names`.

        Raises `PlacewrightError`: they cannot be started.
        """
        left = replace(
            self.cluster,
            devices=tuple(d for d in self.cluster.devices if d.name in names),
            links=tuple(k for k in self.cluster.links if {k.source, k.target} <= set(names)),
        )
        session = LayerSession(self.model, left, self.engine, optimizer=self.optimizer, lr=self.lr)
        return session.__enter__()

    @property
    def changing(self) -> dict[str, TensorSpec]:
        """What steps change: parameters, buffers, states of the optimizer."""
        step, state = self.model.step, self.model.state()
        held = {n: _spec(state[n]) for n in {*step.parameters.values(), *step.buffers.values()}}
        if self.optimizer == "adam":
            for name in self.model.trained():
                held[f"{OPTIMIZER}step:{name}"] = TensorSpec((), "float32")
                held |= {f"{OPTIMIZER}{key}:{name}": held[name] for key in MOMENTS}
        return held

    @property
    def state_bytes(self) -> int:
        """Size of a snapshot's tensors."""
        specs = self.changing.values()
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)

    def complete(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state with zeros for moments that no gradient has touched: Adam begins with them."""
        return {
            name: state[name]
            if name in state
            else torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            for name, spec in self.changing.items()
        }


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def problem_of(
    problem: LayerProblem, names: Collection[str], factors: dict[str, float]
) -> LayerProblem:
    """The problem on the workers called `names`, each so many times slower than measured."""
    keep = [w for w, name in enumerate(problem.worker_names) if name in names]
    kinds = problem.worker_kind[keep]
    times = np.array([factors.get(problem.worker_names[w], 1.0) for w in keep])
    slower = times[:, None, None, None]
    return problem.replace(
        worker_names=tuple(problem.worker_names[w] for w in keep),
        # Every worker becomes a kind of its own: they no longer take the same times.
        worker_kind=np.arange(len(keep)),
        worker_node=problem.worker_node[keep],
        memory_bytes=problem.memory_bytes[keep],
        framework_bytes=problem.framework_bytes[keep],
        kind_names=tuple(problem.worker_names[w] for w in keep),
        forward_s=problem.forward_s[kinds] * slower,
        backward_s=problem.backward_s[kinds] * slower,
        begin_s=problem.begin_s[kinds] * times,
        optimizer_s=problem.optimizer_s[kinds] * times,
        optimizer_fixed_s=problem.optimizer_fixed_s[kinds] * times,
        pack_s=problem.pack_s[kinds] * times,
        send_s=problem.send_s[kinds] * times,
        receive_s=problem.receive_s[kinds] * times,
        message_s=problem.message_s[kinds] * times,
    )
