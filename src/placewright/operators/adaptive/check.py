"""Compare a run that adapts with plain eager PyTorch: every loss, and the last state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.measurement.check import Check
from placewright.operators.check import Comparison

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
    from placewright.operators.adaptive.run import AdaptiveRun


def check_run(run: AdaptiveRun, source: ModelSource) -> Check:
    """Repeat all steps of a run in eager PyTorch, from its first state and with its seed.

    Only for runs on the batch that the model was captured with. Steps that were done before the
    run began are repeated and not compared.

    Raises `RunError`: the state cannot be fetched.
    """
    outputs, state, timeline = run.outputs(), run.state(), run.timeline
    run.close()  # eager steps get the cores to themselves
    devices = run.job.cluster.devices
    comparison = Comparison.of(run.job.graph, source, seed=run.seed, devices=devices)
    limit = comparison.tolerance.steps
    steps = run.done if limit is None else min(run.done, limit)
    for k in range(steps):
        index = k - timeline.first_step
        losses = timeline.scalars[index] if index >= 0 else {}
        last = k == run.done - 1
        comparison.step({**losses, **outputs} if last else losses, state if last else None)
    return comparison.check(_note(timeline.first_step, steps < run.done))


def _note(before: int, partly: bool) -> str:
    parts = ["the loss of every step, parameters and buffers after the last"]
    if before:
        parts.append(f"steps 1 to {before} belong to the run that was continued")
    if partly:
        parts = ["the loss of the first step only"]
    return "; ".join(parts)
