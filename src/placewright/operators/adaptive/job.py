"""Job: a placed model with its cluster, profile and initial state, for an adaptive run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from placewright.cluster.cluster import Cluster
from placewright.graph.graph import Graph, TensorSpec
from placewright.graph.program import Program
from placewright.io.tensor_files import AnyTensor
from placewright.operators.adaptive.survivors import cluster_of
from placewright.operators.problem import OperatorProblem
from placewright.runtime.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A placed model with its cluster, profile and initial state.

    Attributes
    ----------
    problem
        The graph on the whole cluster, as profiled.
    state
        A tensor for every program input, here or in a file.
    open
        Starts a session on (graph, cluster, state); where devices are nodes of a testbed, there.
    reachable
        Which of the named devices can all talk to each other now; all by default.
    """

    graph: Graph
    cluster: Cluster
    problem: OperatorProblem
    state: Mapping[str, AnyTensor]
    open: Callable[[Graph, Cluster, Mapping[str, AnyTensor]], AbstractContextManager[Session]] = (
        Session
    )
    reachable: Callable[[Sequence[str]], Collection[str]] = frozenset

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.graph.name

    @property
    def node_names(self) -> tuple[str, ...]:
        """The devices, in the cluster's order."""
        return self.cluster.device_names

    def session(self, names: Collection[str], changed: Mapping[str, torch.Tensor]) -> Session:
        """Start workers on the devices called `names`.

        `changed`: state that steps have changed since the job was made.
        Raises `PlacewrightError`: they cannot be started.
        """
        state = dict(self.state) | dict(changed)
        return self.open(self.graph, cluster_of(self.cluster, names), state).__enter__()

    @property
    def changing(self) -> dict[str, TensorSpec]:
        """Program inputs that steps change: parameters, buffers, optimizer state."""
        program = self.graph.program
        inputs = program.inputs if isinstance(program, Program) else ()
        return {item.name: item.spec for item in inputs if item.mutated}

    @property
    def state_bytes(self) -> int:
        """Size of a snapshot's tensors."""
        specs = self.changing.values()
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)
