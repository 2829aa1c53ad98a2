"""Pipelines over links as pipelines around host memory: near enough to start from.

Where every pair of devices is linked alike, a tensor that one other device reads costs the same in
both models; one that r others read costs its maker once here and r times there.
"""

from __future__ import annotations

import numpy as np

from placewright.operators.problem import Communication, OperatorProblem


def star_stand_in(problem: OperatorProblem) -> OperatorProblem:
    """The same operators; a tensor's bytes are its mean seconds on a link.

    A device pays for them at the rate of its own links, relative to the mean of all.
    """
    linked = (problem.channel >= 0) & np.isfinite(problem.latency_s + problem.seconds_per_byte)
    if not linked.any():
        return problem.asked(communication=Communication.STAR)
    mean_bytes = float(problem.tensor_bytes.mean()) if problem.t else 0.0
    latency = np.where(linked, problem.latency_s, 0.0)
    per_byte = np.where(linked, problem.seconds_per_byte, 0.0)
    took = latency + mean_bytes * per_byte
    count = np.maximum((linked | linked.T).sum(axis=0), 1)
    own = (took + took.T).sum(axis=0) / count / 2
    mean = float(took[linked].mean())
    return problem.asked(
        communication=Communication.STAR,
        tensor_bytes=latency[linked].mean() + problem.tensor_bytes * per_byte[linked].mean(),
        host_seconds_per_byte=own / mean if mean > 0 else np.zeros(problem.m),
    )
