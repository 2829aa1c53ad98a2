"""Check that training on workers equals an ordinary PyTorch loop bit for bit.

    python benchmarks/training_equality.py
    python benchmarks/training_equality.py --faults       two workers are killed or stopped

With two workers the second fault may come while one is left: the run ends with an error, and a new
one goes on from the last snapshot, with a fresh model and optimizer, as a user would start it.

Twelve combinations of optimizer, schedule, clipping and accumulation, on three models, two and
three workers under random placements, 20 steps with odd batches among them. Each number is the
largest absolute difference of any loss, parameter, buffer or tensor of the optimizer's state.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedules

from placewright import (
    Cluster,
    Device,
    InfeasibleError,
    Link,
    OperatorPlan,
    TrainingRecipe,
    profile,
)
from placewright.adapt.training_loop import TrainingLoop
from placewright.capturing.model import capture_call
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.deployment.training import OperatorTraining
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun
from placewright.runtime.engines.local import LocalGroup
from training_models import MODELS, Batches, Lion, model_and_batches

STEPS = 20
LOSS = nn.functional.cross_entropy


@dataclass(frozen=True)
class Combination:
    """An optimizer, its schedule, and what is done with gradients before."""

    optimizer: Callable[[Any], optim.Optimizer]
    schedule: Callable[[optim.Optimizer], Any]
    recipe: dict[str, Any] = field(default_factory=dict)
    scaled: bool = False

    def made(self, model: nn.Module) -> tuple[optim.Optimizer, Any, TrainingRecipe]:
        """For a model; matrices and the rest are two groups."""
        matrices = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() < 2]
        optimizer = self.optimizer([{"params": matrices}, {"params": rest, "lr": 5e-3}])
        scaler = torch.amp.GradScaler("cpu", growth_interval=3) if self.scaled else None
        recipe = TrainingRecipe(optimizer, **self.recipe, scaler=scaler)
        return optimizer, self.schedule(optimizer), recipe


COMBINATIONS = {
    "SGD momentum, step": Combination(
        lambda g: optim.SGD(g, lr=0.05, momentum=0.9), lambda o: schedules.StepLR(o, 5, 0.5)
    ),
    "SGD Nesterov, weight decay, one cycle, norm": Combination(
        lambda g: optim.SGD(g, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda o: schedules.OneCycleLR(o, 0.05, total_steps=STEPS + 1),
        {"clip_norm": 0.5},
    ),
    "Adam, cosine": Combination(
        lambda g: optim.Adam(g, lr=1e-2), lambda o: schedules.CosineAnnealingLR(o, STEPS)
    ),
    "Adam fused, exponential, value": Combination(
        lambda g: optim.Adam(g, lr=1e-2, fused=True),
        lambda o: schedules.ExponentialLR(o, 0.95),
        {"clip_value": 0.01},
    ),
    "AdamW, warm-up, norm, 2 batches": Combination(
        lambda g: optim.AdamW(g, lr=1e-2),
        lambda o: schedules.LinearLR(o, 0.1, total_iters=8),
        {"clip_norm": 0.2, "accumulate": 2},
    ),
    "AdamW amsgrad, sequential": Combination(
        lambda g: optim.AdamW(g, lr=1e-2, amsgrad=True),
        lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, 0.1, total_iters=4), schedules.ExponentialLR(o, 0.9)], [4]
        ),
    ),
    "Adagrad, polynomial, value, 3 batches": Combination(
        lambda g: optim.Adagrad(g, lr=5e-2),
        lambda o: schedules.PolynomialLR(o, STEPS),
        {"clip_value": 0.05, "accumulate": 3},
    ),
    "RMSprop centred, cyclic": Combination(
        lambda g: optim.RMSprop(g, lr=1e-3, momentum=0.5, centered=True),
        lambda o: schedules.CyclicLR(o, 1e-4, 1e-2, step_size_up=4),
    ),
    "NAdam, multi-step, norm": Combination(
        lambda g: optim.NAdam(g, lr=5e-3),
        lambda o: schedules.MultiStepLR(o, [5, 10], 0.3),
        {"clip_norm": 1.0},
    ),
    "Lion, cosine restarts, norm and value": Combination(
        lambda g: Lion(g, lr=1e-3, weight_decay=0.1),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 6),
        {"clip_norm": 0.5, "clip_value": 0.1},
    ),
    "AdamW, bfloat16 autocast": Combination(
        lambda g: optim.AdamW(g, lr=1e-2),
        lambda o: schedules.ExponentialLR(o, 0.9),
        {"autocast": "bfloat16"},
    ),
    "SGD, scaler, norm, 2 batches": Combination(
        lambda g: optim.SGD(g, lr=0.05, momentum=0.9),
        lambda o: schedules.ConstantLR(o, 0.5, 6),
        {"clip_norm": 0.5, "accumulate": 2},
        scaled=True,
    ),
}


def eager(model: nn.Module, batches: Batches, combination: Combination) -> list[torch.Tensor]:
    """An ordinary loop on one thread; every loss and all that is trained, as tensors."""
    optimizer, scheduler, recipe = combination.made(model)
    scaler = recipe.scaler or torch.amp.GradScaler("cpu", enabled=False)
    losses = []
    torch.manual_seed(0)
    for step, (x, y) in enumerate(batches, start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.autocast is not None):
            loss = LOSS(model(x), y)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().float())
        if step % recipe.accumulate:
            continue
        scaler.unscale_(optimizer)
        if recipe.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), recipe.clip_value)
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    return [*losses, *trained(model, optimizer)]


def trained(model: nn.Module, optimizer: optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, buffers and the optimizer's state."""
    state = optimizer.state_dict()["state"]
    kept = [torch.as_tensor(v) for k in sorted(state) for v in state[k].values() if v is not None]
    return [*(value.detach() for value in model.state_dict().values()), *kept]


@dataclass
class Faults:
    """Signals that random workers get before steps, each once.

    Attributes
    ----------
    due
        Signal by step; one that finds no workers up is sent before the next step.
    sent, started, continued
        Signals so far; how often workers were started again, and runs from their snapshots.
    """

    due: dict[int, int]
    victim: random.Random
    sent: int = 0
    started: int = 0
    continued: int = 0

    def before(self, step: int, run: AdaptiveRun) -> None:
        """Send what is due."""
        for at in sorted(s for s in self.due if s <= step):
            if run.session is not None and isinstance(group := run.session.group, LocalGroup):
                process = self.victim.choice(group.processes)
                os.kill(process.pid or 0, self.due.pop(at))
                self.sent += 1


def placed(
    model: nn.Module, batches: Batches, combination: Combination, workers: int, faults: Faults
) -> list[torch.Tensor]:
    """The same on workers; where no device is left, a new run goes on from the snapshots."""
    losses: dict[int, float] = {}
    adapt = bool(faults.due)
    with tempfile.TemporaryDirectory() as folder:
        while True:
            place = (copy.deepcopy(model), batches, combination, workers, Path(folder))
            try:
                return train(*place, losses, faults, adapt=adapt)
            except InfeasibleError as error:
                if error.what != "no device is left":
                    raise
                faults.continued += 1


def train(
    model: nn.Module,
    batches: Batches,
    combination: Combination,
    workers: int,
    folder: Path,
    losses: dict[int, float],
    faults: Faults,
    *,
    adapt: bool,
) -> list[torch.Tensor]:
    """One run, from the snapshots in `folder` if there are any; every loss goes into `losses`.

    A step that a later run repeats must give the loss that it gave before.
    """
    _, scheduler, recipe = combination.made(model)
    optimizer = recipe.optimizer
    source = ModelSource(model, batches[0][0], LOSS, batches[0][1], "net", recipe)
    captured = capture_call(source, training=True)
    names = [f"d{k}" for k in range(workers)]
    links = tuple(Link(a, b, 1e9, 5e-5) for a in names for b in names if a != b)
    cluster = Cluster(tuple(Device(n, node=n) for n in names), links, name="workers")
    problem = profile(captured.graph, cluster, method="analytic")
    draw = np.random.default_rng(workers)
    groups = draw.integers(0, workers, size=int(problem.colocation.max()) + 1)
    job = AdaptiveJob(captured.graph, cluster, problem, initial_state(source, captured.program))
    run = AdaptiveRun(
        job,
        folder,
        plan=OperatorPlan(groups[problem.colocation]),
        adapt=adapt,
        snapshot_every=4,
        rejoin_every=3,
    )
    try:
        with TrainingLoop(OperatorTraining(captured, run, schedulers=(scheduler,))) as trainer:
            for x, y in trainer.remaining(batches):
                step = trainer.steps_done + 1
                faults.before(step, run)
                loss = trainer.step(x, y)
                assert losses.setdefault(step, loss) == loss
            trainer.finish()
    finally:
        faults.started += max(0, run.timeline.plans - 1)
    assert isinstance(optimizer, optim.Optimizer)
    return [*(torch.tensor(losses[k]) for k in sorted(losses)), *trained(model, optimizer)]


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest absolute difference."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--only", type=int, nargs="*", default=range(len(COMBINATIONS)))
    parser.add_argument("--faults", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = [(m, w) for m in args.models for w in args.workers]
    print("| combination | " + " | ".join(f"{m}, {w} workers" for m, w in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    start, all_faults = time.perf_counter(), []
    for number, (name, combination) in enumerate(COMBINATIONS.items()):
        if number not in args.only:
            continue
        cells = []
        for model_name in args.models:
            model, batches = model_and_batches(model_name, args.steps)
            expected = eager(copy.deepcopy(model), batches, combination)
            for workers in args.workers:
                draw = random.Random(100 * number + workers)
                steps = draw.sample(range(2, args.steps + 1), 2) if args.faults else []
                due = {s: int(draw.choice([signal.SIGKILL, signal.SIGSTOP])) for s in steps}
                all_faults.append(faults := Faults(due, random.Random(workers)))
                found = placed(model, batches, combination, workers, faults)
                cells.append(f"{difference(found, expected):g}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    sent, started, continued = (
        sum(getattr(each, name) for each in all_faults) for name in ("sent", "started", "continued")
    )
    print(
        f"\n{time.perf_counter() - start:.0f} s; {sent} signals were sent, plans loaded anew "
        f"{started} times, runs continued from their snapshots {continued} times"
    )


if __name__ == "__main__":
    main()
