"""Stage 6, `assemble`: the Graph with its Program, tensors, costs and the model's module tree.

oneDNN's LSTM kernels need memory beside what they read and make. A layer keeps a workspace for its
backward, whose size only the kernel knows: one call of it tells. While it runs it holds its weights
once more, in the layout of its kernel. The backward holds these, their gradients in that layout,
and the gradients of all gates (PyTorch 2.13; within 3 % of what processes need, over steps from 10
to 400, widths from 256 to 1,500 and batches from 1 to 64).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.dataflow import ColocationGroups, Dataflow
from placewright.capturing.lowering import Call, spec_bytes, storage_bytes
from placewright.capturing.program_calls import RECURRENT, current_settings, resolve_target
from placewright.capturing.source import ModelSource
from placewright.errors import UnsupportedError
from placewright.graph import graph as ir
from placewright.graph.graph import (
    ORDER_ONLY,
    SCRATCH,
    Const,
    Graph,
    Module,
    ModuleTensor,
    ModuleTree,
    Operator,
    Program,
    ProgramInput,
    Ref,
    TensorSpec,
)

_LOOKUPS = (
    "aten.embedding.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.index_select.default",
)
"""Read as much of their first argument as they return, however large it is."""


def assemble(flow: Dataflow, groups: ColocationGroups, source: ModelSource) -> Graph:
    """The graph to plan on and the program to run, operator by operator the same."""
    step, model = flow.step, source.model
    name = source.name or type(model).__name__
    if not step.calls:
        raise UnsupportedError(
            "the model computes nothing", where=f"model {name}", hint="there is nothing to place"
        )
    program = Program(
        inputs=_inputs(flow, groups),
        instructions=tuple(call.instruction for call in step.calls),
        outputs=step.outputs,
        training=bool(step.optimizer),
        optimizer=step.optimizer,
        constants=step.constants,
        settings=current_settings(),
    )
    groups_of = {e.key: e.colocation for e in program.inputs if e.role in ("parameter", "buffer")}
    tensors = (*_tensors(flow), *_order_only(flow), *_scratch(flow))
    return Graph(name, _operators(flow, groups), tensors, program, module_tree(model, groups_of))


def _operators(flow: Dataflow, groups: ColocationGroups) -> tuple[Operator, ...]:
    resident = _resident_bytes(flow)
    return tuple(
        Operator(
            name=call.instruction.name,
            kind=call.instruction.target,
            flops=call.flops,
            elementwise_flops=call.elementwise_flops,
            uncounted=call.uncounted,
            bytes_accessed=0.0 if flow.views[k] else _bytes_accessed(flow, k),
            resident_bytes=resident.get(k, 0),
            phase=call.phase,
            module=call.module,
            signature=_signature(call, flow.specs),
            colocation=groups.operators[k],
            outputs=call.outputs,
            micro_batch=call.micro_batch,
            from_weights=k in flow.derived,
        )
        for k, call in enumerate(flow.step.calls)
    )


def _resident_bytes(flow: Dataflow) -> dict[int, int]:
    """Bytes of parameters, buffers and state, each counted at the first operator that uses it."""
    size = {e.name: spec_bytes(e.spec) for e in flow.resident}
    found: dict[int, int] = {}
    for k, names in enumerate(flow.inputs_used):
        for name in names:
            # Popped at its first user, so that no later one counts it again.
            found[k] = found.get(k, 0) + size.pop(name, 0)
    return found


def _bytes_accessed(flow: Dataflow, k: int) -> float:
    """Bytes read and written, every argument and every result once.

    Of the first argument of a lookup only what the indices pick is read: as much as the result.
    """
    call = flow.step.calls[k]
    made = sum(map(spec_bytes, call.outputs))
    read = [spec_bytes(flow.specs[name]) for name in flow.reads[k]]
    if call.instruction.target in _LOOKUPS:
        read[0] = made
    changed = sum(spec_bytes(flow.specs[name]) for name in call.instruction.mutates)
    return float(sum(read) + changed + made)


def _signature(call: Call, specs: Mapping[str, TensorSpec]) -> str:
    """The operation and a digest of shapes, dtypes, strides and constants."""
    instruction = call.instruction
    keywords = tuple(sorted(instruction.kwargs.items()))
    text = _described((instruction.args, keywords, instruction.results == ()), specs)
    return f"{instruction.target}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _described(argument: Any, specs: Mapping[str, TensorSpec]) -> str:
    if isinstance(argument, Ref):
        spec = specs[argument.name]
        return f"<{spec.dtype}{spec.shape}{spec.stride}>"
    if isinstance(argument, Const):
        return f"<{argument.kind}:{argument.value}>"
    if isinstance(argument, tuple | list):
        return "(" + ",".join(_described(part, specs) for part in argument) + ")"
    return repr(argument)


def _inputs(flow: Dataflow, groups: ColocationGroups) -> tuple[ProgramInput, ...]:
    """All inputs that the program uses, and the model's own inputs and targets."""
    used = {name for names in flow.inputs_used for name in names}
    used |= {output.value for output in flow.step.outputs}
    mutated = flow.step.mutated()
    return tuple(
        replace(e, colocation=groups.inputs.get(e.name, ""), mutated=e.name in mutated)
        for e in flow.step.inputs
        if e.name in used or e.role in ("input", "target")
    )


def _tensors(flow: Dataflow) -> list[ir.Tensor]:
    names = [call.instruction.name for call in flow.step.calls]
    held = _held_bytes(flow)
    return [
        ir.Tensor(
            value,
            names[k],
            held[value],
            tuple(names[c] for c in sorted((*flow.waits.get(value, ()), *flow.consumers[value]))),
            flow.view_of[k],
        )
        for value, k in flow.producer.items()
        if value in flow.consumers
    ]


def _held_bytes(flow: Dataflow) -> dict[str, int]:
    """Bytes of memory behind each value, an upper limit of the bytes that are sent of it.

    Gaps between elements count, although they are not sent. A view counts its elements.
    ``aten.copy`` into a strided view copies all the memory that the view is in.
    """
    held: dict[str, int] = {}
    for value, k in flow.producer.items():
        spec, target = flow.specs[value], flow.step.calls[k].instruction.target
        if flow.view_of[k]:
            held[value] = spec_bytes(spec)
            continue
        held[value] = storage_bytes(spec)
        call = flow.step.calls[k]
        if target == RECURRENT and value in call.instruction.results[WORKSPACE:]:
            held[value] = workspace_bytes(call, flow.specs)
        if target == "aten.copy.default" and held[value] > spec_bytes(spec):
            base = flow.reads[k][0]
            # To the end of a chain of views: the memory that is copied is that of the last one.
            while base in flow.producer and flow.view_of[flow.producer[base]]:
                base = flow.view_of[flow.producer[base]]
            held[value] = max(held[value], held.get(base, spec_bytes(flow.specs[base])))
    return held


def _order_only(flow: Dataflow) -> list[ir.Tensor]:
    names = [call.instruction.name for call in flow.step.calls]
    return [
        ir.Tensor(ORDER_ONLY + names[k], names[k], 0, tuple(names[c] for c in later))
        for k, later in flow.order.items()
    ]


def _scratch(flow: Dataflow) -> list[ir.Tensor]:
    """What kernels hold while they run: tensors without readers."""
    sizes = [(c.instruction.name, scratch_bytes(c, flow.specs)) for c in flow.step.calls]
    return [ir.Tensor(SCRATCH + name, name, size, ()) for name, size in sizes if size]


def module_tree(model: nn.Module, groups_of: Mapping[str, str]) -> ModuleTree:
    """The modules of `model`; `groups_of`: parameter or buffer -> an operator that uses it."""
    first: dict[int, str] = {}
    modules = tuple(_module(path, m, groups_of, first) for path, m in _walk("", model, ()))
    no_split = getattr(model, "_no_split_modules", None) or ()
    return ModuleTree(modules, tuple(sorted({str(kind) for kind in no_split})))


def _walk(
    path: str, module: nn.Module, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """Every path of every module; a module that contains itself is entered once."""
    yield path, module
    for name, child in module.named_children():
        if all(child is not other for other in (*above, module)):
            yield from _walk(f"{path}.{name}" if path else name, child, (*above, module))


def _module(
    path: str, module: nn.Module, groups_of: Mapping[str, str], first: dict[int, str]
) -> Module:
    """One module; `first` remembers under which name each tensor was met first (tied weights)."""
    parameters = module.named_parameters(recurse=False)
    held: list[tuple[str, Tensor, bool]] = [(name, value, False) for name, value in parameters]
    held += [(name, value, True) for name, value in module.named_buffers(recurse=False)]
    tensors = []
    for name, value, buffer in held:
        key = f"{path}.{name}" if path else name
        origin = first.setdefault(id(value), key)
        size, dtype = value.numel() * value.element_size(), str(value.dtype).removeprefix("torch.")
        tied_to, operator = "" if origin == key else origin, groups_of.get(origin, "")
        tensors.append(ModuleTensor(name, int(size), dtype, buffer, tied_to, operator))
    return Module(path, type(module).__name__, tuple(tensors))


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
