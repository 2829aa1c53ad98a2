"""Cut a traced step into the programs of its layers."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.errors import UnsupportedError
from placewright.layers.execution.orders import LayerProgram
from placewright.layers.profile.chain import Layer, prelude_of, reads
from placewright.layers.profile.tracing import TracedStep


def layer_programs(step: TracedStep, layers: Sequence[Layer]) -> tuple[LayerProgram, ...]:
    """A program for every layer; `layers` may have been found on another number of samples.

    Raises `UnsupportedError`: the model computes something else on that many samples.
    """
    if layers[-1].end != len(step.instructions):
        raise UnsupportedError(
            "the model computes something else on another number of samples",
            where=f"{step.batch} samples",
            by=f"{len(step.instructions)} calls instead of {layers[-1].end}",
            hint="its code must not depend on the batch size",
        )
    prelude = prelude_of(step)
    return tuple(_program(step, layer, prelude) for layer in layers)


def count_program(step: TracedStep) -> LayerProgram:
    """What the samples of a step count, from the batch alone.

    Raises `UnsupportedError`: it depends on parameters.
    """
    wanted, own = set(step.counts), []
    for k in reversed(range(len(step.instructions))):
        if wanted.intersection(step.instructions[k].results):
            own.append(k)
            wanted.update(reads(step.instructions[k]))
    trained = sorted(step.parameters[v] for v in wanted if v in step.parameters)
    if trained:
        raise UnsupportedError(
            "the loss is divided by a number that depends on parameters",
            where=f"parameter {trained[0]}",
            hint="divide by what depends on targets and inputs alone",
        )
    return _made_of(step, sorted(own), wanted, (), step.counts)


def _program(step: TracedStep, layer: Layer, prelude: frozenset[int]) -> LayerProgram:
    own = [k for k in range(layer.first, layer.end) if k not in prelude]
    wanted = {v for k in own for v in reads(step.instructions[k])} | set(layer.outputs)
    calls = set(own)
    for k in sorted(prelude, reverse=True):  # later ones read earlier ones
        if wanted.intersection(step.instructions[k].results):
            calls.add(k)
            wanted.update(reads(step.instructions[k]))
    return _made_of(step, sorted(calls), wanted, layer.inputs, layer.outputs)


def _made_of(
    step: TracedStep,
    calls: Sequence[int],
    wanted: set[str],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> LayerProgram:
    """The program of these calls, which read what is `wanted`."""
    made = {v for k in calls for v in step.instructions[k].results}

    def of(names: dict[str, str]) -> dict[str, str]:
        return {value: name for value, name in names.items() if value in wanted}

    return LayerProgram(
        samples=step.batch,
        instructions=tuple(step.instructions[k] for k in calls),
        inputs=inputs,
        outputs=outputs,
        feeds=tuple(f for f in step.feeds if f in wanted),
        parameters=of(dict(step.parameters)),
        buffers=of(dict(step.buffers)),
        constants=of({v: f"constant:{v}" for v in step.constants}),
        specs={v: step.specs[v] for v in sorted({*wanted, *made, *inputs}) if v in step.specs},
    )
