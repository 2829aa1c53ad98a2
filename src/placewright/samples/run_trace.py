"""What a run did, in the format of the judge's trace: moves on links, steps on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.planning.trace import Trace
from placewright.samples.run import SampleRun


def run_trace(run: SampleRun, names: Sequence[str]) -> Trace:
    """The trace of a run, in the problem's own time; `names` are those of the nodes.

    A node's spans are its own gradients. Where it has none it waits or exchanges gradients; between
    two epochs the test images are looked at, which `SampleRun.measured_s` leaves out.
    """
    moves = run.moved.spans if run.moved else ()
    pairs = list(dict.fromkeys((i, j) for i, j, *_ in moves))
    track_of = {pair: len(names) + k for k, pair in enumerate(pairs)}
    nodes, steps = run.trained.spans_s.shape[:2]
    epochs = len(run.trained.epochs)
    begin_s, computed_s = (run.move_s + run.speed * run.trained.spans_s[:, :, k] for k in (0, 1))
    epoch = np.arange(steps) * epochs // max(steps, 1)
    return Trace(
        tracks=(*names, *(f"{names[i]}->{names[j]}" for i, j in pairs)),
        devices=len(names),
        labels=(
            *(f"own gradients, epoch {e + 1}" for e in range(epochs)),
            *(f"{count} samples" for _, _, count, _, _ in moves),
        ),
        track=np.concatenate(
            [
                np.repeat(np.arange(nodes), steps),
                np.array([track_of[i, j] for i, j, *_ in moves], dtype=np.int64),
            ]
        ),
        label=np.concatenate([np.tile(epoch, nodes), epochs + np.arange(len(moves))]),
        start_s=np.concatenate([begin_s.ravel(), [run.speed * m[3] for m in moves]]),
        end_s=np.concatenate([computed_s.ravel(), [run.speed * m[4] for m in moves]]),
        title=run.name,
    )
