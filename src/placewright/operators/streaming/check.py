"""Compare a stream with eager PyTorch, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Device
from placewright.graph.graph import Graph
from placewright.graph.program import Program
from placewright.measurement.check import Check
from placewright.operators.check import Comparison, varied

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.runtime.stream.stream import Delivered, Tensors


def check_stream(
    graph: Graph,
    source: ModelSource,
    run: Callable[[Iterable[Tensors]], Sequence[Delivered]],
    samples: int,
    *,
    seed: int,
    devices: Sequence[Device],
) -> Check:
    """Run samples that differ, several at a time and eagerly one after the other.

    `run`: streams feeds.
    `devices`: that the placement uses.
    """
    program = graph.program
    assert isinstance(program, Program)
    variants = [varied(source.inputs, k) for k in range(samples)]
    names = [item.name for item in program.inputs if item.role == "input"]
    feeds = [initial_state(replace(source, inputs=v), program, names) for v in variants]
    delivered = run(feeds)
    comparison = Comparison.of(graph, source, seed=seed, devices=devices)
    for variant, found in zip(variants, delivered, strict=True):
        comparison.eager.feed(variant)
        comparison.step(found.outputs, None)
    return comparison.check(note=f"{samples} different samples, several in flight")
