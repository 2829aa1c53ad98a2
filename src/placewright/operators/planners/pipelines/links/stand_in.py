"""Pipelines over links as pipelines around host memory: near enough to start from.

Where every pair of devices is linked alike, a tensor that one other device reads costs the same in
both models; one that r others read costs its maker once here and r times there.
"""

from __future__ import annotations

import numpy as np

from placewright.operators.problem import Communication, OperatorProblem
from placewright.operators.structure.links import linked


def star_stand_in(problem: OperatorProblem) -> OperatorProblem:
    """The same operators; a tensor's bytes are its mean seconds on a link.

    A device pays for them at the rate of its own links, relative to the mean of all.
    """
    pair = linked(problem)
    if not pair.any():
        return problem.replace(communication=Communication.STAR)
    mean_bytes = float(problem.tensor_bytes.mean()) if problem.t else 0.0
    latency = np.where(pair, problem.latency_s, 0.0)
    per_byte = np.where(pair, problem.seconds_per_byte, 0.0)
    took = latency + mean_bytes * per_byte
    count = np.maximum((pair | pair.T).sum(axis=0), 1)
    own = (took + took.T).sum(axis=0) / count / 2
    mean = float(took[pair].mean())
    return problem.replace(
        communication=Communication.STAR,
        tensor_bytes=latency[pair].mean() + problem.tensor_bytes * per_byte[pair].mean(),
        host_seconds_per_byte=own / mean if mean > 0 else np.zeros(problem.m),
    )
