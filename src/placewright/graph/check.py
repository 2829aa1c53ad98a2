"""check_program: a program must match its graph and be executable from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placewright.errors import InputError, UnknownNameError
from placewright.graph.graph import INPUT_MARK, NO_DTYPE, Graph, Operator, TensorSpec
from placewright.graph.program import ORDER_ONLY, Instruction, Program, Ref


def check_program(graph: Graph) -> None:
    """Raise `InputError` where the graph's program contradicts itself or the graph.

    That is an instruction without its operator, or with more or fewer results than that has
    outputs; a value without a dtype, used before it is made or made twice; a tensor of the
    graph that is no value of the program.
    """
    program: Program = graph.program
    where = f"{graph.name}: program"
    names = tuple(call.name for call in program.instructions)
    if names != graph.operator_names:
        raise InputError(
            "its instructions must be the graph's operators in the same order",
            where=where,
            by=f"{len(names)} instructions, {len(graph.operators)} operators",
        )
    for operator, call in zip(graph.operators, program.instructions, strict=True):
        _check_outputs(operator, call, f"{where}: instruction {call.name!r}")
    known = _values(program, where)
    inputs = [entry.name for entry in program.inputs]
    for tensor in graph.tensors:
        if INPUT_MARK in tensor.view_of and tensor.view_of not in inputs:
            raise UnknownNameError("input", tensor.view_of, inputs, where=f"{graph.name}: view_of")
        if not tensor.name.startswith(ORDER_ONLY) and tensor.name not in known:
            raise UnknownNameError("value", tensor.name, known, where=f"{graph.name}: tensors")


def _check_outputs(operator: Operator, call: Instruction, where: str) -> None:
    if len(call.results) != len(operator.outputs):
        raise InputError(
            "its results must be the outputs of its operator, one each",
            where=where,
            by=f"{len(call.results)} results, {len(operator.outputs)} outputs",
            hint='name a result that is None or that nobody reads ""',
        )
    for name, spec in zip(call.results, operator.outputs, strict=True):
        if name:
            _check_dtype(name, spec, where)


def _check_dtype(name: str, spec: TensorSpec, where: str) -> None:
    if spec.dtype == NO_DTYPE:
        raise InputError(f"the value {name!r} has no dtype", where=where)


def _values(program: Program, where: str) -> set[str]:
    """Names of all values, after a walk from top to bottom."""
    known: set[str] = set()
    for entry in program.inputs:
        _check_dtype(entry.name, entry.spec, f"{where}: inputs")
        _make(known, entry.name, f"{where}: inputs")
    for call in program.instructions:
        place = f"{where}: instruction {call.name!r}"
        for name in (*_refs((call.args, tuple(call.kwargs.values()))), *call.mutates):
            if name not in known:
                raise UnknownNameError("value", name, known, where=place)
        for name in filter(None, call.results):
            _make(known, name, place)
    for output in program.outputs:
        if output.value not in known:
            raise UnknownNameError("value", output.value, known, where=f"{where}: outputs")
    return known


def _make(known: set[str], name: str, where: str) -> None:
    if name in known:
        raise InputError(f"the value {name!r} is made twice", where=where)
    known.add(name)


def _refs(argument: Any) -> Iterator[str]:
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _refs(part)
