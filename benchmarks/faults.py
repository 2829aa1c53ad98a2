"""Check that runs lose nothing to kills and cut links: compare every parameter with eager PyTorch.

    python benchmarks/faults.py [--schedules 50] [--steps 40]

As root each schedule runs on a testbed of three nodes whose links are cut and restored; without
root workers of this machine are killed only. Shots come at random moments; those that must hit a
snapshot, a migration or a recovery are in `tests/operators/adaptive/test_run.py`. At the end
testbeds that were left behind are counted. `--first` goes on with later schedules.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import torch

from harness import Table, joined, run
from placewright import PlacedModel, Testbed, place
from placewright.adapt.training_loop import TrainingLoop
from placewright.capturing.source import ModelSource, default_loss
from placewright.operators.adaptive.run import AdaptiveRun
from placewright.operators.check import run_eager
from placewright.runtime.engines.local import LocalGroup

TRIO = joined("faults", {"a": 0.5, "b": 0.5, "c": 1.0})


def net() -> ModelSource:
    """Linear layers with batch norms (buffers) and dropout (random numbers)."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3)]
    return ModelSource(
        torch.nn.Sequential(*layers), (torch.randn(16, 64),), default_loss, None, "faults"
    )


def placed_net(root: bool) -> PlacedModel:
    """The net's training step on the cluster, on a testbed where this is root."""
    return place(
        net(),
        cluster=TRIO,
        training=True,
        engine="testbed" if root else "local",
        method="analytic",
        planner="ceft+pbqp",
        calibrate=False,
    )


def disturb(
    trainer: TrainingLoop[AdaptiveRun],
    bed: Testbed | None,
    chance: random.Random,
    over: threading.Event,
) -> None:
    """Kills and cuts at random moments; every cut is restored a while later."""
    while not over.wait(chance.uniform(0.1, 1.5)):
        if bed is not None and chance.random() < 0.3:
            a, b = chance.sample("abc", 2)
            bed.cut(a, b)
            over.wait(chance.uniform(0.5, 4.0))
            bed.restore(a, b)
        else:
            group = trainer.run.session.group if trainer.run.session else None
            processes = group.processes if isinstance(group, LocalGroup) else []
            victims = [p for p in processes if p.is_alive()]
            if len(victims) > 1:
                os.kill(chance.choice(victims).pid or 0, signal.SIGKILL)


def schedule(seed: int, steps: int, root: bool) -> tuple[bool, TrainingLoop[AdaptiveRun], float]:
    """One run under fire; whether it ended with eager's parameters and buffers."""
    chance, over = random.Random(seed), threading.Event()
    begun = time.perf_counter()
    with placed_net(root) as placed:
        load = placed.workload
        bed = Testbed.find(TRIO.name) if root else None
        with placed.trainer(snapshot_every=4, rejoin_every=5, patience_s=2.0, seed=0) as trainer:
            shooter = threading.Thread(target=disturb, args=(trainer, bed, chance, over))
            shooter.start()
            try:
                for _ in range(steps):
                    trainer.run.step()
                    time.sleep(0.05)
            finally:
                over.set()
                shooter.join()
            state = trainer.run.state()
    expected = run_eager(load.source, training=True, steps=steps).state
    inputs = [i for i in load.graph.program.inputs if i.role in ("parameter", "buffer")]
    equal = all(torch.equal(state[i.name], expected[i.key]) for i in inputs if i.name in state)
    return equal, trainer, time.perf_counter() - begun


def main(*, schedules: int = 50, first: int = 0, steps: int = 40) -> None:
    """Print one row per schedule and what was left behind."""
    root, equal, faults = os.geteuid() == 0, 0, 0
    table = Table("schedule", "faults", "joins", "steps", "equal bit for bit", "seconds")
    for seed in range(first, first + schedules):
        same, trainer, seconds = schedule(seed, steps, root)
        equal += same
        faults += trainer.timeline.count("fault")
        counts = [trainer.timeline.count(kind) for kind in ("fault", "join")]
        table.row(seed, *counts, trainer.steps_done, "yes" if same else "NO", f"{seconds:.0f}")
    print(f"\n{equal} of {schedules} equal, {faults} faults")
    ours = [bed for bed in Testbed.all() if bed.cluster.name == TRIO.name] if root else []
    print(f"testbeds left behind: {len(ours)}")


if __name__ == "__main__":
    run(main)
