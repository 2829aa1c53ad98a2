"""Costs of operators, measured: one at a time, or in place in the whole step.

In isolation: once per signature. Operators with equal signatures cost the same, so a ResNet-50
needs about 70 measurements. The backward of a recurrent layer gets the workspace of a real forward:
its kernel reads whatever size it expects, and an empty one would crash the process. The executor's
overhead around each call on a CPU is measured once and added to all. Hot caches make these costs a
few per cent lower than those of a step.

In place: the whole step is executed here, with a timer at every operator. This is the reference:
caches, allocator and memory are in the state that the step leaves them in. The executor's time
between two operators belongs to the first of them. Steps with timers alternate with steps without,
each started by itself as in a measured run. Operators add up to the median step without timers: it
excludes the cost of reading clocks, and includes the bursts of background load that medians of
single operators leave out. On a CPU they are scaled. On a GPU every mark is one more launch, as
long for a short operator as for a long one: the same time is taken off each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from placewright.capturing.assembly import WORKSPACE
from placewright.capturing.program_calls import (
    RECURRENT,
    check_read_program,
    materialise,
    resolve_target,
)
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.graph.graph import Graph, Instruction, Operator, Program, Ref, TensorSpec
from placewright.io.tensor_files import AnyTensor
from placewright.numerics.arrays import FloatArray
from placewright.profiling.message_cost import copy_chains
from placewright.runtime.messages import Exchange
from placewright.runtime.session import Session
from placewright.runtime.specs import Layout
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import compile_share, shares
from placewright.runtime.step.slots import kernel_on
from placewright.runtime.step_record import StepRecord, occupied_seconds, timer_of


def isolated_seconds(
    graph: Graph,
    *,
    cores: int = 1,
    torch_device: str = "cpu",
    repeats: int = 5,
    budget_s: float = 0.2,
) -> FloatArray:
    """Median seconds of each operator, on `cores` threads of this machine or on a GPU.

    Inputs are synthetic: positive numbers for floats, zeros for indices. A GPU is timed by events
    around several calls in a row, as in a step: one alone would be mostly its launch.

    `torch_device`: ``cpu`` or ``cuda:0``.
    `repeats`: measurements per signature, fewer if they take more than `budget_s` seconds.

    Returns
    -------
    Shape (operators,), NaN where an operator refuses synthetic inputs.
    """
    if not isinstance(graph.program, Program):
        raise InputError("a graph without a program cannot be measured", where=graph.name)
    program, threads = graph.program, torch.get_num_threads()
    check_read_program(program)
    specs, kept = value_specs(graph, program), workspaces(program)
    bench = OperatorTimer(specs, kept, torch_device, repeats, budget_s)
    torch.set_num_threads(cores)
    try:
        found: dict[str, float] = {}
        overhead_s = dispatch_seconds() if torch_device == "cpu" else 0.0
        for operator, instruction in zip(graph.operators, program.instructions, strict=True):
            if _cost_key(operator) not in found:
                found[_cost_key(operator)] = bench.seconds(instruction)
    finally:
        torch.set_num_threads(threads)
    return np.array([found[_cost_key(operator)] + overhead_s for operator in graph.operators])


def dispatch_seconds() -> float:
    """The executor's overhead per call: registers, results, freed memory, the loop.

    Measured as a step of a chain of small copies over their number, less one such call by itself.
    """
    graph, state = copy_chains([1], _COPIES, "float32")
    program = cast(Program, graph.program)
    parts, order = partition(graph, [0] * _COPIES, range(_COPIES), 1), range(_COPIES)
    layout = Layout.of([0], ["cpu"], nccl=False)
    (share,) = shares(parts, order, layout.processes)
    compiled, exchange = compile_share(share, {0: state}, layout), Exchange(layout, 0, {})
    bench = OperatorTimer(value_specs(graph, program), {}, "cpu", repeats=_COPIES, budget_s=0.03)
    whole_s = bench.median(lambda: compiled.run(exchange))
    return max(0.0, whole_s / _COPIES - bench.seconds(program.instructions[0]))


_COPIES = 100


def _cost_key(operator: Operator) -> str:
    """The signature, or a unique key for an operator without one."""
    return operator.signature or f"\0{operator.name}"


def value_specs(graph: Graph, program: Program) -> dict[str, TensorSpec]:
    """Spec of every value of the program: inputs and results."""
    specs = {item.name: item.spec for item in program.inputs}
    for operator, instruction in zip(graph.operators, program.instructions, strict=True):
        specs.update(zip(instruction.results, operator.outputs, strict=True))
    return specs


def workspaces(program: Program) -> dict[str, Instruction]:
    """The recurrent layer behind every workspace: a value whose size only its kernel knows."""
    layers = [i for i in program.instructions if i.target == RECURRENT]
    return {name: layer for layer in layers for name in layer.results[WORKSPACE:] if name}


IN_A_ROW = 10
"""Calls of an operator in one GPU measurement."""


@dataclass(frozen=True, slots=True)
class OperatorTimer:
    """Times one operator at a time on synthetic inputs; `workspaces`: see that function."""

    specs: Mapping[str, TensorSpec]
    workspaces: Mapping[str, Instruction]
    torch_device: str
    repeats: int
    budget_s: float

    def seconds(self, instruction: Instruction) -> float:
        """Median seconds of one call, NaN if it refuses synthetic inputs."""
        try:
            with torch.no_grad():
                call = self._call(instruction)
                call()
                return self.median(call)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return float("nan")

    def _call(self, instruction: Instruction) -> Callable[[], Any]:
        call, given = resolve_target(instruction.target), instruction.kwargs
        if self.torch_device != "cpu":
            call, given = kernel_on(call, instruction, self.torch_device)
        args = [self._synthetic(a) for a in instruction.args]
        return partial(call, *args, **{k: self._synthetic(v) for k, v in given.items()})

    def median(self, call: Callable[[], Any]) -> float:
        """Median seconds of `repeats` calls, fewer where they take too long."""
        timer, in_a_row = timer_of(self.torch_device), 1 if self.torch_device == "cpu" else IN_A_ROW
        times: list[float] = []
        while len(times) < self.repeats and sum(times) * in_a_row < self.budget_s:
            timer.start()
            marks = [timer.mark()]
            for _ in range(in_a_row):
                call()
            marks.append(timer.mark())
            timer.settle()
            start, end = timer.seconds(marks)
            times.append((end - start) / in_a_row)
        return float(np.median(times))

    def _synthetic(self, argument: Any) -> Any:
        if isinstance(argument, Ref) and argument.name in self.workspaces:
            return self._call(self.workspaces[argument.name])()[WORKSPACE]
        if isinstance(argument, Ref):
            return _tensor(self.specs[argument.name]).to(self.torch_device)
        if isinstance(argument, list | tuple):
            return [self._synthetic(item) for item in argument]
        return materialise(argument, self.torch_device)


def _tensor(spec: TensorSpec) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
    return tensor.fill_(0.5) if dtype.is_floating_point else tensor.zero_()


LEAST_STEPS, MOST_STEPS = 5, 60
"""Steps with timers, and as many without: at least, and at most, however short they are."""

LEAST_KEPT = 0.1
"""Part of a GPU operator's time that is never taken for the cost of a mark."""


def in_place_seconds(
    graph: Graph,
    state: Mapping[str, AnyTensor],
    *,
    cores: int = 1,
    gpu: int | None = None,
    steps: int = LEAST_STEPS,
    seconds: float = 2.5,
    warmup: int = 2,
) -> FloatArray:
    """Median seconds of each operator on `cores` threads of this machine, or on one of its GPUs.

    Parameters
    ----------
    state
        Real tensors for the program inputs (see `placewright.capturing.state`).
    gpu
        Number of the GPU.
    steps, seconds
        At least so many steps of each kind, and more until so much time is spent: background load
        comes in bursts, which the median of few short steps would count as their cost.

    Returns
    -------
    Shape (operators,).
    """
    devices = [Device("here", cores=cores)]
    if gpu is not None:
        devices = [Device(f"gpu {k}", kind="gpu") for k in range(gpu + 1)]
    everything = range(len(graph.operators))
    with Session(graph, Cluster(tuple(devices), name="profiling"), state) as session:
        session.load([len(devices) - 1] * len(graph.operators), everything)
        session.run(warmup)
        timed: list[StepRecord] = []
        plain_s: list[float] = []
        # A host that has just woken up keeps a GPU waiting: there the first step does not count.
        first = 0 if gpu is None else 1
        while len(plain_s) < steps or (sum(plain_s) < seconds / 2 and len(plain_s) < MOST_STEPS):
            timed += session.run(first + 1, watched=True)[first:]
            plain_s.append(session.run(first + 1)[first].duration_s)
    found = occupied_seconds(timed, len(graph.operators))
    adjusted = scaled_to_step if gpu is None else without_marks
    return adjusted(found, float(np.median(plain_s)))


def scaled_to_step(seconds: FloatArray, step_s: float) -> FloatArray:
    """The operators' seconds, scaled so that they add up to a step."""
    whole_s = float(seconds.sum())
    return seconds * (step_s / whole_s) if whole_s > 0 else seconds


def without_marks(seconds: FloatArray, step_s: float) -> FloatArray:
    """The operators' seconds less the same time each, so that they add up to a step.

    None loses more than 1 - `LEAST_KEPT` of its time. Where they add up to less than the step, or
    would to more in spite of that, they are scaled.
    """
    least = LEAST_KEPT * seconds
    low, high = 0.0, float(seconds.max(initial=0.0))
    if not least.sum() < step_s < seconds.sum():
        return scaled_to_step(seconds, step_s)
    while (mark_s := (low + high) / 2) not in (low, high):
        above = np.maximum(seconds - mark_s, least).sum() > step_s
        low, high = (mark_s, high) if above else (low, mark_s)
    return scaled_to_step(np.maximum(seconds - mark_s, least), step_s)
