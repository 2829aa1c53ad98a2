"""A device map of modules becomes a device for every operator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placewright.graph.modules import ModuleTree, parent_of
from placewright.numerics.arrays import IntArray
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.groups import Groups, groups_of


def mapped_device(found: Mapping[str, int], name: str) -> int | None:
    """The device of a module, parameter or buffer, or of the nearest module around it."""
    while name not in found:
        if not name:
            return None
        name = parent_of(name)
    return found[name]


def placement(problem: OperatorProblem, tree: ModuleTree, found: Mapping[str, int]) -> IntArray:
    """Shape (n,): the device of every operator under a device map.

    What holds parameters runs where the map has them: the largest decides for its colocation
    group. Other operators follow their module. Those of a module whose parts have gone apart
    run where their first input is made, else where their first result is read. What the device
    of a group cannot run goes to the first that can.
    """
    groups = groups_of(problem)
    device = np.full(len(groups.first), -1, dtype=np.int64)
    for g, d in _held(problem, groups, tree, found).items():
        device[g] = d
    for i in problem.topology.order.tolist():
        g = groups.group[i]
        if device[g] < 0:
            near = mapped_device(found, problem.operator_modules[i])
            device[g] = _producers_device(problem, groups, device, i) if near is None else near
    for i in problem.topology.order[::-1].tolist():
        if device[groups.group[i]] < 0:
            device[groups.group[i]] = _readers_device(problem, groups, device, i)
    device[device < 0] = 0
    refused = ~groups.allowed[np.arange(len(device)), device]
    device[refused] = groups.allowed[refused].argmax(axis=1)
    result: IntArray = device[groups.group]
    return result


def _held(
    problem: OperatorProblem, groups: Groups, tree: ModuleTree, found: Mapping[str, int]
) -> dict[int, int]:
    """Device of every group that holds a parameter or buffer: that of the largest."""
    operator = {name: i for i, name in enumerate(problem.operator_names)}
    most: dict[int, int] = {}
    device: dict[int, int] = {}
    for module in tree.modules:
        for tensor in module.tensors:
            if not tensor.operator or tensor.same_as:
                continue
            g = int(groups.group[operator[tensor.operator]])
            d = mapped_device(found, module.key(tensor))
            if d is not None and tensor.bytes > most.get(g, -1):
                most[g], device[g] = tensor.bytes, d
    return device


def _producers_device(p: OperatorProblem, groups: Groups, device: IntArray, i: int) -> int:
    top = p.topology
    for k in top.in_tensors[top.in_offsets[i] : top.in_offsets[i + 1]].tolist():
        d = int(device[groups.group[p.tensor_producer[k]]])
        if d >= 0:
            return d
    return -1


def _readers_device(p: OperatorProblem, groups: Groups, device: IntArray, i: int) -> int:
    top = p.topology
    for k in top.out_tensors[top.out_offsets[i] : top.out_offsets[i + 1]].tolist():
        for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]].tolist():
            d = int(device[groups.group[j]])
            if d >= 0:
                return d
    return -1
