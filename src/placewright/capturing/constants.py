"""Which tensors may become constants of a program.

What a step reads and is not given becomes a constant: a table, a scale. A constant never changes,
so nothing may become one that training changes or that a gradient should flow to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.named_state import Loss, named_state
from placewright.errors import UnsupportedError


def check_constants(recorded: fx.GraphModule, model: nn.Module, loss_fn: Loss | None) -> None:
    """Look at every tensor that a trace has taken in as a constant.

    Raises
    ------
    UnsupportedError
        It is a parameter or a buffer, shares memory with one, or requires a gradient.
    """
    owners = _owners(model, loss_fn)
    for node in recorded.graph.nodes:
        value = getattr(recorded, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        module = (node.meta.get("custom") or {}).get("module", "")
        where = f"model {type(model).__name__}" + (f", module {module!r}" if module else "")
        owner = owners.get(_memory(value))
        if owner is not None:
            raise UnsupportedError(
                f"{owner} is read past its name, so that a change of it would not be seen",
                where=where,
                by=f"shape {tuple(value.shape)}, read by {_readers(node)}",
                hint="read it as an attribute of its module in forward, not through a list, a "
                "closure or a view that was made before",
            )
        if value.requires_grad:
            raise UnsupportedError(
                "a tensor that requires a gradient is no parameter of the model or the loss",
                where=where,
                by=f"shape {tuple(value.shape)}, read by {_readers(node)}",
                hint="make it an nn.Parameter attribute of a module, or detach it",
            )


def _owners(model: nn.Module, loss_fn: Loss | None) -> dict[int, str]:
    parameters, buffers = named_state(model, loss_fn)
    named = [("buffer", m) for m in buffers] + [("parameter", m) for m in parameters]
    return {_memory(m.value): f"{role} {m.key!r}" for role, m in named}


def _memory(value: Tensor) -> int:
    """Which memory it is: the storage stands for it, views included."""
    real: Any = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if real is None or real.layout is not torch.strided:
        return 0
    key: int = real.untyped_storage()._cdata
    return key


def _readers(node: fx.Node) -> str:
    return ", ".join(sorted({str(user.target) for user in node.users})) or "nothing"
