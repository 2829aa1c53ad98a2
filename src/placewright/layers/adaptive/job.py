"""Job: a model with its cluster, measured costs and engine, for a run that adapts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from placewright.adapt.connectivity import all_talk
from placewright.capturing.updates import (
    OPTIMIZER,
    SETTINGS,
    Update,
    current_settings,
    optimizer_states,
)
from placewright.cluster.cluster import Cluster
from placewright.graph.graph import TensorSpec
from placewright.layers.execution.session import LayerSession, check_batch
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.problem import LayerProblem
from placewright.runtime.engines.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class LayerJob:
    """What is trained, where, and by what.

    Attributes
    ----------
    problem
        As measured on all workers of the cluster.
    update
        What the optimizer does.
    given
        The user's optimizer object, if one was given.
    exact
        Refuse plans that do not compute what one process computes.
    changing
        What steps change, as of when the model was placed: parameters, buffers, states of the
        optimizer. Parameters that are frozen later keep theirs.
    """

    model: TracedModel
    cluster: Cluster
    problem: LayerProblem
    engine: Engine
    update: Update
    given: torch.optim.Optimizer | None = None
    exact: bool = True
    changing: Mapping[str, TensorSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.changing:
            object.__setattr__(self, "changing", self._changing())

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
        session = LayerSession(self.model, left, self.engine, optimizer=self.update)
        return session.__enter__()

    def _changing(self) -> dict[str, TensorSpec]:
        step, state = self.model.step, self.model.held()
        held = {n: _spec(state[n]) for n in {*step.parameters.values(), *step.buffers.values()}}
        for name in self.model.trained():
            held |= {f"{OPTIMIZER}{key}:{name}": held[name] for key in self.update.moments}
            if self.update.counts_steps:
                held[f"{OPTIMIZER}step:{name}"] = TensorSpec((), "float32")
        return held

    def batch(self, inputs: Any, targets: Any) -> dict[str, torch.Tensor]:
        """What workers are fed with for one step: a batch, and the numbers of the optimizer object.

        Raises `InputError`: the batch is another one than was planned with, or the optimizer asks
        for another update.
        """
        source = self.model.source
        batch = self.model.feeds(replace(source, inputs=inputs, targets=targets))
        check_batch(self.model, batch)
        if self.given is not None:
            batch[SETTINGS] = current_settings(self.given, self.update)
        return batch

    def states_of_given(self) -> dict[str, torch.Tensor]:
        """States of the optimizer object before the first step here, by the names of `changing`."""
        if self.given is None:
            return {}
        return optimizer_states(self.given, self.model.source.model, self.update)

    @property
    def state_bytes(self) -> int:
        """Size of a snapshot's tensors."""
        specs = self.changing.values()
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)

    def complete(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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
