"""Check that training on workers equals an ordinary PyTorch loop bit for bit.

    python benchmarks/training_equality.py
    python benchmarks/training_equality.py --faults       two workers are killed or stopped

Twelve combinations of optimizer, schedule, clipping and accumulation, on three models, two and
three workers under random placements, 20 steps with odd batches among them. Each number is the
largest absolute difference of any loss, parameter, buffer or tensor of the optimizer's state.
"""

from __future__ import annotations

import copy
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler as schedules

from harness import Table, joined, run
from placewright import OperatorPlan, TrainingRecipe, profile
from placewright.adapt.training_loop import TrainingLoop
from placewright.capturing.model import capture_call
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.deployment.training import OperatorTraining
from placewright.operators.adaptive.run import AdaptiveJob, AdaptiveRun
from placewright.runtime.engines.local import LocalGroup

STEPS = 20
LOSS = functional.cross_entropy

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Lion(torch.optim.Optimizer):
    """Sign of an average of gradients (arXiv:2302.06675)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((average * first + p.grad * (1 - first)).sign(), alpha=-group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


class Conv(nn.Module):
    """Convolutions, batch norm (buffers) and dropout (random numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, stride=2)
        self.norm, self.drop, self.head = nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = functional.relu(self.second(functional.relu(self.norm(self.first(x)))))
        return self.head(self.drop(x.mean((2, 3))))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Two layers of attention over tokens; the embedding is the head's weight, too."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, tokens last."""
        h = self.tokens(x)
        for qkv, out, norm in zip(self.qkv, self.out, self.norm, strict=True):
            q, k, v = qkv(norm(h)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.drop(out(mixed.transpose(1, 2).flatten(2)))
        return functional.linear(h, self.tokens.weight).transpose(1, 2)


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(20, 12), nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, tokens last."""
        return self.head(self.cell(self.tokens(x))[0]).transpose(1, 2)  # type: ignore[no-any-return]


MODELS = {"convolutions": Conv, "attention": Attention, "LSTM": Recurrent}


def model_and_batches(name: str, steps: int) -> tuple[nn.Module, Batches]:
    """A model with fixed weights and so many batches, every fifth of them an odd one."""
    torch.manual_seed(0)
    model = MODELS[name]()
    draw = torch.Generator().manual_seed(1)
    batches = []
    for step in range(1, steps + 1):
        size = 6 if step % 5 else 4
        if name == "convolutions":
            x = torch.randn(size, 3, 12, 12, generator=draw)
            y = torch.randint(0, 5, (size,), generator=draw)
        else:
            x, y = (torch.randint(0, 20, (size, 7), generator=draw) for _ in range(2))
        batches.append((x, y))
    return model, batches


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
    sent, started
        Signals so far, and how often workers were started again.
    """

    due: dict[int, int]
    victim: random.Random
    sent: int = 0
    started: int = 0

    def before(self, step: int, run: AdaptiveRun) -> None:
        """Send what is due."""
        for at in sorted(s for s in self.due if s <= step):
            if run.session is not None and isinstance(group := run.session.group, LocalGroup):
                process = self.victim.choice(group.processes)
                os.kill(process.pid or 0, self.due.pop(at))
                self.sent += 1


def train(
    model: nn.Module,
    batches: Batches,
    combination: Combination,
    workers: int,
    folder: Path,
    faults: Faults,
) -> list[torch.Tensor]:
    """The same on workers, with snapshots in `folder`; it adapts where faults are due."""
    losses: dict[int, float] = {}
    _, scheduler, recipe = combination.made(model)
    optimizer = recipe.optimizer
    source = ModelSource(model, batches[0][0], LOSS, batches[0][1], "net", recipe)
    captured = capture_call(source, training=True)
    cluster = joined("workers", {f"d{k}": 1.0 for k in range(workers)}, 1e9, 5e-5)
    problem = profile(captured.graph, cluster, method="analytic")
    draw = np.random.default_rng(workers)
    groups = draw.integers(0, workers, size=int(problem.colocation.max()) + 1)
    job = AdaptiveJob(captured.graph, cluster, problem, initial_state(source, captured.program))
    run = AdaptiveRun(
        job,
        folder,
        plan=OperatorPlan(groups[problem.colocation]),
        adapt=bool(faults.due),
        snapshot_every=4,
        rejoin_every=3,
    )
    try:
        with TrainingLoop(OperatorTraining(captured, run, schedulers=(scheduler,))) as trainer:
            for x, y in trainer.remaining(batches):
                step = trainer.steps_done + 1
                faults.before(step, run)
                losses[step] = trainer.step(x, y)
            trainer.finish()
    finally:
        faults.started += max(0, run.timeline.plans - 1)
    assert isinstance(optimizer, optim.Optimizer)
    return [*(torch.tensor(losses[k]) for k in sorted(losses)), *trained(model, optimizer)]


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest absolute difference."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def main(
    *,
    steps: int = STEPS,
    workers: tuple[int, ...] = (2, 3),
    models: tuple[str, ...] = tuple(MODELS),
    only: tuple[int, ...] = tuple(range(len(COMBINATIONS))),
    faults: bool = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table("combination", *(f"{m}, {w} workers" for m in models for w in workers))
    start, all_faults = time.perf_counter(), []
    for number, (name, combination) in enumerate(COMBINATIONS.items()):
        cells = []
        for model_name in models if number in only else ():
            model, batches = model_and_batches(model_name, steps)
            expected = eager(copy.deepcopy(model), batches, combination)
            for count in workers:
                draw = random.Random(100 * number + count)
                at = draw.sample(range(2, steps + 1), 2) if faults else []
                due = {s: int(draw.choice([signal.SIGKILL, signal.SIGSTOP])) for s in at}
                all_faults.append(own := Faults(due, random.Random(count)))
                with tempfile.TemporaryDirectory() as folder:
                    place = (copy.deepcopy(model), batches, combination, count, Path(folder))
                    found = train(*place, own)
                cells.append(f"{difference(found, expected):g}")
        if cells:
            table.row(name, *cells)
    sent, started = (sum(getattr(f, name) for f in all_faults) for name in ("sent", "started"))
    seconds = f"{time.perf_counter() - start:.0f} s"
    print(f"\n{seconds}; {sent} signals were sent, plans loaded anew {started} times")


if __name__ == "__main__":
    run(main)
