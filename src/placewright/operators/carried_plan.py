"""A placement carried over to another capture of the same model, of another batch size for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placewright.errors import InputError
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.runtime.step.partition import references

RESIDENT = ("parameter", "buffer", "state")


def carried_placement(graph: Graph, placement: Sequence[int], other: Graph) -> list[int]:
    """Device of every operator of `other`, so that no parameter changes its device.

    A colocation group goes where its parameters and buffers are in `graph`; else where the
    operator of the same name and kind is; else to the device that most of what it reads comes
    from; else where most of its module is.

    Raises `InputError`: a colocation group of `other` holds parameters from two devices.

    Parameters
    ----------
    graph, placement
        What is placed already, and the device of each of its operators.
    other
        Another capture of the same model: other shapes, or the forward pass of a training step.
    """
    homes = _homes(graph, placement)
    pairs = zip(graph.operators, placement, strict=True)
    named = {(op.name, op.kind): device for op, device in pairs}
    modules = _module_devices(graph, placement)
    most = Counter(placement).most_common(1)[0][0]
    groups = _group_homes(other, homes)
    device_of: dict[str, int] = {}
    reads = _inputs_of(other)
    found: list[int] = []
    for op in other.operators:
        group = op.colocation or f"own {op.name}"
        if group not in groups:
            near = Counter(device_of[name] for name in reads[op.name])
            fallback = near.most_common(1)[0][0] if near else modules.get(op.module, most)
            groups[group] = named.get((op.name, op.kind), fallback)
        device_of[op.name] = groups[group]
        found.append(groups[group])
    return found


def _program(graph: Graph) -> Program:
    if not isinstance(graph.program, Program):
        raise InputError("the graph has no program", where=graph.name, hint="capture a model")
    return graph.program


def _homes(graph: Graph, placement: Sequence[int]) -> dict[str, int]:
    """Device of every parameter, buffer and optimizer state that an operator reads."""
    program = _program(graph)
    resident = {item.name for item in program.inputs if item.role in RESIDENT}
    found: dict[str, int] = {}
    for call, device in zip(program.instructions, placement, strict=True):
        for name in references([call.args, call.kwargs]):
            if name in resident:
                found.setdefault(name, device)
    return found


def _group_homes(graph: Graph, homes: dict[str, int]) -> dict[str, int]:
    """Device of every colocation group that reads something resident."""
    found: dict[str, int] = {}
    for op, call in zip(graph.operators, _program(graph).instructions, strict=True):
        for name in references([call.args, call.kwargs]):
            if name in homes:
                group = op.colocation or f"own {op.name}"
                if found.setdefault(group, homes[name]) != homes[name]:
                    raise InputError(
                        "a group of operators that share a device reads parameters of two devices",
                        where=f"{graph.name}: operator {op.name!r}",
                        by=f"devices {found[group]} and {homes[name]}",
                        hint="place the model with an example of this shape",
                    )
    return found


def _module_devices(graph: Graph, placement: Sequence[int]) -> dict[str, int]:
    counts: dict[str, Counter[int]] = {}
    for op, device in zip(graph.operators, placement, strict=True):
        counts.setdefault(op.module, Counter())[device] += 1
    return {module: count.most_common(1)[0][0] for module, count in counts.items()}


def _inputs_of(graph: Graph) -> dict[str, list[str]]:
    """Producers of what every operator reads."""
    found: dict[str, list[str]] = {op.name: [] for op in graph.operators}
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            found[consumer].append(tensor.producer)
    return found
