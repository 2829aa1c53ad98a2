"""The device map of Hugging Face accelerate, ``device_map="auto"``, as a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.graph.graph import ModuleTree, parent_of
from placewright.io.units import BYTES, show
from placewright.numerics.arrays import IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.module_maps.device_map import DISK, device_map
from placewright.operators.planners.module_maps.sizes import ModuleSizes, balanced, module_sizes
from placewright.operators.problem import OperatorProblem, pairwise_only
from placewright.operators.structure.groups import Groups, groups_of
from placewright.planning.contract import Context


@final
@dataclass(frozen=True, slots=True)
class AccelerateAuto:
    """Whole modules, devices filled one after another by bytes of weights, GPUs first.

    ``infer_auto_device_map`` under the limits of ``get_balanced_memory``, as in accelerate 1.15
    (https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/modeling.py,
    explained in https://huggingface.co/docs/accelerate/concept_guides/big_model_inference): a
    module goes to the current device if it fits there beside what is tied to it, else it is taken
    apart unless its class is never split, else to the next device. Devices are GPUs (all kinds
    but ``cpu``) in their order, then the first CPU; room for the largest layer is kept on the
    first GPU and the CPU. Never a look at time, at links or at activations. O(modules^2).

    The map is accelerate's own, module by module, for the device memories given as
    ``max_memory``. Departures are in what becomes of it: accelerate copies the weights of modules
    on the CPU to the first GPU in each step and computes there, here the CPU computes them; what
    would go to disk is an error, and so is a map that accelerate itself cannot end. Tied
    parameters that it would put on two devices are on the first one. Other CPUs than the first
    have no place in its maps and stay idle. transformers 5 has a copy of these functions that
    balances by the largest layer of each class and tensor, which is not this one.

    Parameters
    ----------
    balance
        Spread the model evenly over the GPUs (``"auto"``); otherwise fill them one by one
        (``"sequential"``).
    low_zero
        Leave the first GPU as empty as the others allow (``"balanced_low_0"``).
    """

    name: ClassVar[str] = "accelerate-auto"
    balance: bool = True
    low_zero: bool = False

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Problems that say their modules and kinds of devices, with tensors over links."""
        if problem.modules is None or not problem.operator_modules:
            return "places whole modules, and the problem does not say its modules"
        if not problem.device_kinds:
            return "fills GPUs before CPUs, and the problem does not say the kinds of its devices"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises `InfeasibleError` (a group that no device can run; modules that would go to disk).
        """
        assert problem.modules is not None
        sizes = module_sizes(problem.modules)
        found = self.map(problem, sizes)
        _check_disk(problem, sizes, found)
        return OperatorPlan(placement(problem, problem.modules, found))

    def map(self, problem: OperatorProblem, sizes: ModuleSizes) -> dict[str, int]:
        """Device of modules, and of parameters outside of those, by qualified name."""
        room = problem.memory_bytes.tolist()
        kinds = problem.device_kinds
        gpus = [d for d, kind in enumerate(kinds) if kind != "cpu"]
        cpus = [d for d, kind in enumerate(kinds) if kind == "cpu"][:1]
        limits = {k: room[d] for k, d in enumerate(gpus)}
        if self.balance:
            limits = balanced(sizes, limits, low_zero=self.low_zero)
        given = {gpus[k]: limit for k, limit in limits.items()} | {d: room[d] for d in cpus}
        return device_map(sizes, given, [*gpus[:1], *cpus])


def _check_disk(problem: OperatorProblem, sizes: ModuleSizes, found: dict[str, int]) -> None:
    over = [name for name, d in found.items() if d == DISK and sizes.bytes_of[name]]
    if over:
        size = sum(sizes.bytes_of[name] for name in over)
        raise InfeasibleError(
            f"accelerate would leave {over[0]!r} on disk",
            where=problem.name,
            by=f"{len(over)} modules of {show(size, BYTES)}",
            hint="give devices more memory, or take another planner",
        )


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
    groups, top = groups_of(problem), problem.topology
    device = np.full(len(groups.first), -1, dtype=np.int64)
    for g, d in _held(problem, groups, tree, found).items():
        device[g] = d
    for i in top.order.tolist():
        g = groups.group[i]
        if device[g] < 0:
            near = mapped_device(found, problem.operator_modules[i])
            makers = problem.tensor_producer[top.read_by(i)]
            device[g] = _first_device(device[groups.group[makers]]) if near is None else near
    for i in top.order[::-1].tolist():
        if device[groups.group[i]] < 0:
            readers = [j for k in top.made_by(i).tolist() for j in problem.readers(k).tolist()]
            device[groups.group[i]] = _first_device(device[groups.group[readers]])
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


def _first_device(devices: IntArray) -> int:
    """The first that is known, -1 if none is."""
    return next((d for d in devices.tolist() if d >= 0), -1)
