"""Measured costs before anything has run: one operator at a time, once per signature.

Operators with equal signatures cost the same, so a ResNet-50 needs about 70 measurements.
Hot caches make this a few per cent faster than reality (see `in_place`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from placewright.arrays import FloatArray
from placewright.capture.program_calls import materialise, resolve_target
from placewright.errors import InputError
from placewright.graph.graph import Graph, TensorSpec
from placewright.graph.program import Instruction, Program, Ref


def isolated_seconds(
    graph: Graph, *, cores: int = 1, repeats: int = 5, budget_s: float = 0.2
) -> dict[str, float]:
    """Median seconds by signature, on `cores` threads of this machine.

    Inputs are made up: positive numbers for floats, zeros for indices. An operator that
    refuses them is left out; the caller falls back to the formula.

    Parameters
    ----------
    repeats
        Measurements per signature, fewer if they take more than `budget_s` seconds.
    """
    if not isinstance(graph.program, Program):
        raise InputError("a graph without a program cannot be measured", where=graph.name)
    specs = value_specs(graph, graph.program)
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        found: dict[str, float] = {}
        for operator, instruction in zip(graph.operators, graph.program.instructions, strict=True):
            if operator.signature not in found:
                found[operator.signature] = _measure(instruction, specs, repeats, budget_s)
    finally:
        torch.set_num_threads(threads)
    return {k: v for k, v in found.items() if np.isfinite(v)}


def by_signature(graph: Graph, seconds: Mapping[str, float], fallback: FloatArray) -> FloatArray:
    """Seconds of each operator, from `fallback` where its signature is unknown."""
    pairs = zip(graph.operators, fallback, strict=True)
    return np.array([seconds.get(op.signature, other) for op, other in pairs])


def value_specs(graph: Graph, program: Program) -> dict[str, TensorSpec]:
    """Spec of every value of the program: inputs and results."""
    specs = {item.name: item.spec for item in program.inputs}
    for operator, instruction in zip(graph.operators, program.instructions, strict=True):
        specs.update(zip(instruction.results, operator.outputs, strict=True))
    return specs


def _measure(
    instruction: Instruction, specs: Mapping[str, TensorSpec], repeats: int, budget_s: float
) -> float:
    """Median seconds of one call, NaN if it refuses made-up inputs."""
    try:
        call = resolve_target(instruction.target)
        args = [_made_up(a, specs) for a in instruction.args]
        kwargs = {k: _made_up(v, specs) for k, v in instruction.kwargs.items()}
        with torch.no_grad():
            call(*args, **kwargs)
            return _median(lambda: call(*args, **kwargs), repeats, budget_s)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return float("nan")


def _median(call: Callable[[], Any], repeats: int, budget_s: float) -> float:
    times: list[float] = []
    while len(times) < repeats and sum(times) < budget_s:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _made_up(argument: Any, specs: Mapping[str, TensorSpec]) -> Any:
    if isinstance(argument, Ref):
        return _tensor(specs[argument.name])
    if isinstance(argument, list | tuple):
        return [_made_up(item, specs) for item in argument]
    return materialise(argument)


def _tensor(spec: TensorSpec) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
    return tensor.fill_(0.5) if dtype.is_floating_point else tensor.zero_()
