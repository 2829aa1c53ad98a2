"""Do runs lose anything? Random kills, cut links and returns, then every parameter against eager.

    python benchmarks/faults.py [--schedules 50] [--steps 40]

As root each schedule runs on a testbed of three nodes whose links are cut and restored; without
root workers of this machine are killed only. Shots come at random moments; those that must hit a
snapshot, a migration or a recovery are in `tests/operators/adaptive/test_run.py`. At the end
testbeds that were left behind are counted. `--first` goes on with later schedules.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from placewright.adapt.connectivity import all_talk
from placewright.adapt.timeline import Kind
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.operators.adaptive.run import AdaptiveRun, Job
from placewright.profiling.build import profile
from placewright.runtime.eager import run_eager
from placewright.runtime.engines.local import Local
from placewright.runtime.session import Session
from placewright.testbed.testbed import Testbed

LINKS = tuple(Link(a, b, 1.25e8, 2e-4) for a in "abc" for b in "abc" if a != b)
TRIO = Cluster(
    (Device("a", node="a", speed=0.5), Device("b", node="b", speed=0.5), Device("c", node="c")),
    LINKS,
    name="faults",
)


def net() -> ModelSource:
    """Linear layers with batch norms (buffers) and dropout (random numbers)."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3)]
    return ModelSource(
        torch.nn.Sequential(*layers), (torch.randn(16, 64),), mean_square, None, "faults"
    )


@contextmanager
def where(root: bool) -> Iterator[Testbed | None]:
    """A testbed, or nothing."""
    if not root:
        yield None
        return
    with Testbed.up(TRIO) as bed:
        yield bed


def job_on(bed: Testbed | None, source: ModelSource) -> Job:
    """The net's training step on the cluster."""
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, TRIO, method="analytic")
    if bed is None:
        return Job(graph, TRIO, problem, state)
    handles = {d.name: bed.handle(d.name) for d in TRIO.devices}
    return Job(
        graph,
        TRIO,
        problem,
        state,
        open=partial(Session, engine=Local(handles)),
        reachable=lambda names: all_talk([handles[n] for n in names]),
    )


def disturb(
    run: AdaptiveRun, bed: Testbed | None, chance: random.Random, over: threading.Event
) -> None:
    """Kills and cuts at random moments; every cut is restored a while later."""
    while not over.wait(chance.uniform(0.1, 1.5)):
        if bed is not None and chance.random() < 0.3:
            a, b = chance.sample("abc", 2)
            bed.cut(a, b)
            over.wait(chance.uniform(0.5, 4.0))
            bed.restore(a, b)
        else:
            session = run.session
            victims = [p for p in session.group.processes if p.is_alive()] if session else []
            if len(victims) > 1:
                os.kill(chance.choice(victims).pid or 0, signal.SIGKILL)


def schedule(seed: int, steps: int, root: bool) -> tuple[bool, AdaptiveRun, float]:
    """One run under fire; whether it ended with eager's parameters and buffers."""
    source, chance, over = net(), random.Random(seed), threading.Event()
    begun = time.perf_counter()
    with where(root) as bed, tempfile.TemporaryDirectory() as folder:
        job = job_on(bed, source)
        run = AdaptiveRun(job, Path(folder), snapshot_every=4, rejoin_every=5, patience_s=2.0)
        with run:
            shooter = threading.Thread(target=disturb, args=(run, bed, chance, over))
            shooter.start()
            try:
                for _ in range(steps):
                    run.step()
                    time.sleep(0.05)
            finally:
                over.set()
                shooter.join()
            state = run.state()
    expected = run_eager(source, training=True, steps=steps).state
    inputs = [i for i in job.graph.program.inputs if i.role in ("parameter", "buffer")]
    equal = all(torch.equal(state[i.name], expected[i.key]) for i in inputs if i.name in state)
    return equal, run, time.perf_counter() - begun


def main() -> None:
    """Print one row per schedule and what was left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    root = os.geteuid() == 0
    print("| schedule | faults | joins | steps | equal bit for bit | seconds |")
    print("|---|---|---|---|---|---|")
    equal = faults = 0
    for seed in range(asked.first, asked.first + asked.schedules):
        same, run, seconds = schedule(seed, asked.steps, root)
        equal += same
        faults += run.timeline.count(Kind.FAULT)
        print(
            f"| {seed} | {run.timeline.count(Kind.FAULT)} | {run.timeline.count(Kind.JOIN)} | "
            f"{run.done} | {'yes' if same else 'NO'} | {seconds:.0f} |",
            flush=True,
        )
    print(f"\n{equal} of {asked.schedules} equal, {faults} faults")
    ours = [bed for bed in Testbed.all() if bed.cluster.name == TRIO.name] if root else []
    print(f"testbeds left behind: {len(ours)}")


if __name__ == "__main__":
    main()
