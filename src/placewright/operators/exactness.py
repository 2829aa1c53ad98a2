"""Tolerance of a check: 0 where a placed step repeats eager's own arithmetic, else its rounding.

The one place that says how far a placed run may be from plain eager PyTorch.

- CPUs with the same number of cores call the kernels that eager calls, on the same number of
  threads and on tensors with the same strides: every bit is equal, whatever the placement.
- CPUs with different numbers of cores divide sums between other numbers of threads, and a GPU has
  kernels of its own, which may round to TF32. There half of the digits must agree: the square
  root of the unit roundoff of the coarsest type, times the largest magnitude of the tensor. Adam
  divides a gradient by its own size, so that a gradient that is all rounding moves a parameter by
  the learning rate, in either direction: twice the rate is added for parameters. Only the first
  training step is compared, because later ones start from parameters that differ.
- In evaluation mode eager PyTorch replaces ``nn.TransformerEncoderLayer`` and
  ``nn.MultiheadAttention`` by one fused kernel, which a captured program does not have. There half
  of the digits must agree as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from placewright.cluster.cluster import Device
from placewright.graph.graph import Graph, Program
from placewright.measurement import Tolerance

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of the types that a program computes in."""

TF32 = 2.0**-11
"""Unit roundoff of TF32, to which a GPU may round the factors of products of float32."""

EXACT = Tolerance(0.0, 0.0, "every bit, since all devices call eager's own kernels")


def tolerance(graph: Graph, devices: Sequence[Device], source: ModelSource) -> Tolerance:
    """Tolerance of a placed run against eager on the first device's cores.

    Parameters
    ----------
    graph
        With its program.
    devices
        That the placement uses.
    source
        The model that was captured, with its inputs.
    """
    gpus = any(device.kind == "gpu" for device in devices)
    cores = sorted({device.cores for device in devices})
    program = graph.program
    assert isinstance(program, Program)
    if not gpus and len(cores) < 2 and not _fuses(source, training=program.training):
        return EXACT
    if gpus:
        reason = "GPU kernels add up in another order and may round to TF32"
    elif len(cores) > 1:
        reason = f"sums are divided between other numbers of threads ({_listed(cores)} cores)"
    else:
        reason = "eager fuses attention layers of torch.nn in evaluation mode"
    return Tolerance(
        relative=half_of_the_digits(graph, gpus=gpus),
        update=2.0 * float(program.optimizer.get("lr", 0.0)),
        reason=reason,
        steps=1 if program.training else None,
    )


def _fuses(source: ModelSource, *, training: bool) -> bool:
    """Whether eager calls fused kernels that a captured program does not have."""
    import torch  # runtimes of model files have tolerances too, without PyTorch
    from torch import nn

    fused = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    fast = not training and torch.backends.mha.get_fastpath_enabled()
    return fast and any(isinstance(module, fused) for module in source.model.modules())


def half_of_the_digits(graph: Graph, *, gpus: bool = False) -> float:
    """Relative tolerance where other kernels compute a graph, on GPUs or not."""
    return math.sqrt(max(coarsest(graph), TF32 if gpus else 0.0))


def coarsest(graph: Graph) -> float:
    """Unit roundoff of the coarsest type of any operator's output."""
    types = {spec.dtype for operator in graph.operators for spec in operator.outputs}
    return max((ROUNDOFF.get(name, 0.0) for name in types), default=0.0) or ROUNDOFF["float32"]


def _listed(cores: Sequence[int]) -> str:
    return " and ".join(map(str, cores))
