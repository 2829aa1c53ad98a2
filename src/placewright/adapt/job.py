"""What an adaptive run runs, and on what."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from placewright.adapt.survivors import cluster_of
from placewright.cluster.cluster import Cluster
from placewright.graph.graph import Graph, TensorSpec
from placewright.graph.program import Program
from placewright.operators.problem import OperatorProblem
from placewright.runtime.session import Session

Batch = Mapping[str, torch.Tensor]
"""Inputs and targets by program input."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is run and on what.

    Attributes
    ----------
    problem
        The graph on the whole cluster, as profiled.
    state
        A real tensor for every program input.
    open
        Starts a session on (graph, cluster, state); where devices are nodes of a testbed, there.
    reachable
        Which of the named devices can all talk to each other now; everybody by default.
    """

    graph: Graph
    cluster: Cluster
    problem: OperatorProblem
    state: Mapping[str, torch.Tensor]
    open: Callable[
        [Graph, Cluster, Mapping[str, torch.Tensor]], AbstractContextManager[Session]
    ] = Session
    reachable: Callable[[Sequence[str]], Collection[str]] = frozenset

    def session(self, names: Collection[str], changed: Mapping[str, torch.Tensor]) -> Session:
        """Workers on the devices called `names`, up and waiting for orders.

        Parameters
        ----------
        changed
            State that steps have changed since the job was made.

        Raises
        ------
        PlacewrightError
            They cannot be had.
        """
        state = dict(self.state) | dict(changed)
        return self.open(self.graph, cluster_of(self.cluster, names), state).__enter__()

    @property
    def changing(self) -> dict[str, TensorSpec]:
        """What steps change, by program input: parameters, buffers, optimizer state."""
        program = self.graph.program
        inputs = program.inputs if isinstance(program, Program) else ()
        return {item.name: item.spec for item in inputs if item.mutated}

    @property
    def state_bytes(self) -> int:
        """What a snapshot takes, its note aside."""
        specs = self.changing.values()
        return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)
