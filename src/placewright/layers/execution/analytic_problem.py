"""A layer problem computed from a model and a cluster's description: nothing is executed.

The passes of every layer, whole and split as plans may split it, are walked through on tensors
without data; each operation's FLOPs and bytes give its seconds on a kind of device (see
`placewright.cluster.roofline`). Memory and collectives come from the same walk, exactly as
they are counted on workers. What only a worker can tell is left out: the processor time of
messages, what the allocator loses, gathering beside messages under ZeRO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from placewright.capturing.flops.counting import work_of
from placewright.capturing.recipe import OptimizerName
from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.roofline import analytic_seconds
from placewright.graph.graph import Operator
from placewright.io.arguments import checked
from placewright.layers.execution.cost_tables import (
    CostTables,
    Network,
    measured_sizes,
    problem_of_tables,
    traced_alike,
)
from placewright.layers.execution.refusals import inexact_layers
from placewright.layers.execution.stage_orders import TracedModel, tied_layers
from placewright.layers.execution.timing import LayerTimer
from placewright.layers.problem import LayerProblem
from placewright.layers.profile.tracing import training_source, with_batch
from placewright.layers.workers import Workers
from placewright.numerics.arrays import FloatArray

FRAMEWORK_BYTES = {"cpu": 280e6, "gpu": 500e6}
"""Held by a worker before any tensor: 274 to 291 MB measured on CPUs (docs/results/layers.md); a
CUDA context and its libraries, our estimate."""

UPDATE = {"sgd": (2.0, 12.0), "adam": (12.0, 28.0)}
"""FLOPs and bytes of an update per element: weight, gradient and both states in single precision
are read, all but the gradient written."""

LOOKUPS = ("aten.embedding.default", "aten.index_select.default")
"""Of their first argument only what indices pick is read: as much as the result."""


@checked
def layer_problem(
    model: Any,
    inputs: Any = None,
    cluster: Cluster | None = None,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    optimizer: OptimizerName = "adam",
    exact: bool = True,
) -> LayerProblem:
    """Compute what every layer of a model costs on every worker of a cluster.

    Nothing is executed, so that the workers need not be there; `placewright.train`
    measures the same on real ones. Costs are those of the roofline model
    (doi:10.1145/1498765.1498785) at the peaks, bandwidths and efficiencies of the devices.

    Parameters
    ----------
    model, inputs, targets, loss_fn, optimizer, exact
        As of `placewright.train`.
    cluster
        The workers; this machine by default.

    Raises
    ------
    UnsupportedError
        The model cannot be traced, or the optimizer is not known.
    """
    traced = TracedModel(training_source(model, inputs, loss_fn, targets, "layer_problem"))
    workers = Workers(cluster or Cluster.detect())
    usual = measured_sizes(traced.batch, whole=bool(inexact_layers(traced)))
    sizes = traced_alike(traced, usual)
    framework = [FRAMEWORK_BYTES.get(d.kind, FRAMEWORK_BYTES["cpu"]) for d in workers.devices]
    return problem_of_tables(
        traced,
        workers,
        _tables(traced, workers, sizes, optimizer),
        Network(*workers.described_links(), np.zeros((len(workers.devices), 3))),
        np.array(framework),
        sizes=sizes,
        moments=0 if optimizer == "sgd" else 2,
        exact=exact,
    )


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation that is executed inside, as an operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        work, name = work_of(function, args, kwargs or {}, made), str(function)
        written = _bytes(tree_leaves(made))
        read = [_bytes([value]) for value in tree_leaves((args, kwargs))]
        if name in LOOKUPS:
            read[0] = written
        self.operators.append(
            Operator(
                str(len(self.operators)),
                name,
                work.flops,
                0.0 if function.is_view else sum(read) + written,
                elementwise_flops=work.elementwise_flops,
            )
        )
        return made


class _LayerCounter(LayerTimer):
    """Runs layers on tensors without data: its clock is the number of operations so far."""

    def __init__(self, counted: _Counted, *args: Any) -> None:
        self.counted = counted
        super().__init__(*args)

    def clock(self) -> float:
        """Operations so far."""
        return float(len(self.counted.operators))

    def passes(self) -> tuple[list[Operator], list[int]]:
        """Operations of all passes, and how many each has: forward, backward, by layer."""
        self.round()  # counts bytes
        self.counted.operators.clear()
        self.round()
        counts = np.array([self.forward[-1], self.backward[-1]], dtype=np.int64)
        return self.counted.operators, counts.T.ravel().tolist()


def _tables(
    model: TracedModel, workers: Workers, sizes: Sequence[int], optimizer: str
) -> CostTables:
    kinds, n, degrees = len(workers.kinds), len(model.layers), len(workers.degrees)
    first = [workers.devices[int(np.argmax(workers.kind == k))] for k in range(kinds)]
    times = np.zeros((2, kinds, degrees, len(sizes), n))
    saved, elements = np.zeros((n, degrees)), np.zeros((n, degrees))
    for b, size in enumerate(sizes):
        for t, degree in enumerate(workers.degrees):
            counter, passes = _walked(model, size, degree)
            for k, device in enumerate(first):
                times[:, k, t, b] = _seconds(*passes, device)
            saved[:, t], elements[:, t] = counter.saved / size, counter.elements
    update = Operator("update", "aten.add.Tensor", 0.0, UPDATE[optimizer][1] * elements[:, 0].sum())
    return CostTables(
        times[0],
        times[1],
        saved,
        counter.sent / sizes[-1],
        elements,
        np.array([analytic_seconds([update], device)[0] for device in first]),
        1.0,
        (math.nan, 1),
    )


def _walked(
    model: TracedModel, size: int, degree: int
) -> tuple[_LayerCounter, tuple[list[Operator], list[int]]]:
    """The layers on so many samples, split over so many workers."""
    feeds, programs = model.feeds(with_batch(model.source, size)), model.programs(size)
    held = model.held()
    trained = {name for program in programs for name in program.parameters.values()}
    counted = _Counted()
    with FakeTensorMode():
        state = _without_data(held)
        parameters = {n: nn.Parameter(x) for n, x in state.items() if n in trained}
        counter = _LayerCounter(
            counted,
            state | parameters,
            torch.device("cpu"),
            1.0,
            programs,
            _without_data(feeds),
            degree,
            frozenset(tied_layers(model.layers)),
        )
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autograd.set_detect_anomaly(False),  # it reads values, which fakes have not
            counted,
        ):
            return counter, counter.passes()


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes, inside a `FakeTensorMode`."""
    return {
        name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for name, x in tensors.items()
    }


def _seconds(operators: Sequence[Operator], counts: Sequence[int], device: Device) -> FloatArray:
    """Shape (2, n): of each layer's forward and backward pass on a device."""
    total = np.concatenate([[0.0], np.cumsum(analytic_seconds(operators, device))])
    ends = np.cumsum([0, *counts])
    taken: FloatArray = np.diff(total[ends]).reshape(-1, 2).T
    return taken


def _bytes(values: Iterable[Any]) -> float:
    return float(sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor)))
