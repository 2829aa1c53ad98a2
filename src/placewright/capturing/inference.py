"""The graph of one forward pass in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import traceback

from placewright.capturing.containers import tensors_of
from placewright.capturing.feed import feed
from placewright.capturing.mode import in_mode
from placewright.capturing.rebound import apart, write_back
from placewright.capturing.tracing import Traced, trace
from placewright.errors import InputError


def trace_inference(model: nn.Module, inputs: Any) -> Traced:
    """The functional graph of ``model(*inputs)`` without gradients."""
    fed = feed(model, inputs)
    names: list[str] = []

    def step(*values: Tensor) -> Sequence[Tensor]:
        with torch.no_grad(), traceback.annotate({"phase": "forward"}):
            made, replaced = fed.run(values, lambda outputs, _: outputs)
            outputs = apart(tensors_of(made), replaced)
            write_back(replaced)
        if not outputs:
            raise InputError(
                "the model returns no tensor",
                where=f"model {type(model).__name__}",
                by=f"got {type(made).__name__}",
                hint="return tensors, alone or in tuples, lists, dicts or dataclasses that "
                "PyTorch's pytrees know",
            )
        names[:] = output_names(len(outputs))
        return outputs

    with in_mode(model, training=False):
        module = trace(step, fed)
    return Traced(module, fed.slots, tuple(names))


def output_names(count: int) -> list[str]:
    """``output`` for one, ``output.0``, ``output.1`` for several."""
    return ["output"] if count == 1 else [f"output.{k}" for k in range(count)]
