# ruff: noqa: D102 - the docstring of the class describes `forward`
"""Compare executable strategies of layers, on local processes, with training in one process.

    python benchmarks/layer_equality.py [--mixes N] [--seed K]

Prints one markdown table for 2 and one for 4 processes: difference of the loss and largest
difference of any gradient of one step from plain eager PyTorch in one process. Fails where a loss
differs by more than 1e-6 relative, or a gradient by more than 1e-6.
"""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from harness import Table, run
from placewright.capturing.source import ModelSource
from placewright.capturing.updates import update_of
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError
from placewright.layers.execution.session import LayerSession, loss_of
from placewright.layers.execution.stage_orders import (
    TracedModel,
    demand_executable,
    tensor_refusals,
)
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, Strategy
from placewright.layers.run import ReferenceSteps

MOST = 1e-6
BATCH = 12
DATA, TENSOR, REPLICATED = Strategy.DATA, Strategy.TENSOR, Strategy.REPLICATED


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (f(y).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        made = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(made.transpose(1, 2).reshape(x.shape))
        return x + self.down(gelu(self.up(self.between(x))))  # type: ignore[no-any-return]


class Transformer(nn.Sequential):
    """Embedding, three blocks, scores of words."""

    def __init__(self) -> None:
        blocks = (Block(32, 4) for _ in range(3))
        super().__init__(nn.Embedding(50, 32), *blocks, nn.Linear(32, 50))


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean over all words."""
    return cross_entropy(scores.flatten(0, 1), targets.flatten())


def whole(
    n: int, replicas: list[list[int]], shares: list[int], micro: int = 1, **more: object
) -> LayerPlan:
    """One stage of all layers."""
    return LayerPlan((_stage(0, n - 1, replicas, shares, **more),), micro)


def _stage(
    first: int, last: int, replicas: list[list[int]], shares: list[int], **more: object
) -> Stage:
    held = tuple(Replica(tuple(w), s) for w, s in zip(replicas, shares, strict=True))
    return Stage(first, last, held, len(replicas[0]), **more)  # type: ignore[arg-type]


def strategies(n: int, workers: int) -> dict[str, LayerPlan]:
    """Uniform plans on all workers."""
    alone, inside = [[w] for w in range(workers)], [list(range(workers))]
    uneven = [7, 5] if workers == 2 else [5, 4, 2, 1]
    small = [4, 2] if workers == 2 else [2, 2, 1, 1]
    cuts = [round(n * k / workers) for k in range(workers + 1)]
    stages = tuple(_stage(cuts[k], cuts[k + 1] - 1, [[k]], [3]) for k in range(workers))
    twice = [round(n * k / (2 * workers)) for k in range(2 * workers + 1)]
    looped = tuple(
        _stage(twice[k], twice[k + 1] - 1, [[k % workers]], [3]) for k in range(2 * workers)
    )
    pairs = [[[0], [1]], [[2], [3]]]
    both = tuple(
        _stage(cut, end - 1, pairs[k % 2], [2, 1])
        for k, (cut, end) in enumerate(pairwise([0, 2, 4, 6, n]))
    )
    meshes = {"interleaved, 2 replicas": LayerPlan(both, 4, Schedule.INTERLEAVED)}
    return {
        "interleaved": LayerPlan(looped, 4, Schedule.INTERLEAVED),
        **(meshes if workers == 4 else {}),
        "one worker": whole(n, [[0]], [BATCH]),
        "data, uneven": whole(n, alone, uneven),
        "data, uneven, 2 micro-batches": whole(n, alone, small, 2),
        "recompute": whole(n, alone, uneven, recompute=True),
        **{f"ZeRO {z}": whole(n, alone, small, 2, zero_stage=z) for z in (1, 2, 3)},
        "GPipe": LayerPlan(stages, 4, Schedule.GPIPE),
        "1F1B": LayerPlan(stages, 4),
        "tensor": whole(n, inside, [BATCH]),
        "data inside a replica": whole(n, inside, [BATCH], strategies=(DATA,) * n),
        "replicated": whole(n, inside, [BATCH], strategies=(REPLICATED,) * n),
    }


def random_mix(
    n: int, workers: int, refused: set[tuple[int, int]], rng: random.Random
) -> LayerPlan:
    """Random stages, replicas, shares, strategies, ZeRO, micro-batches and schedule."""
    degree = rng.choice([d for d in (1, 2, 4) if d <= workers])
    stages = rng.choice([s for s in (1, 2, 4) if s * degree <= workers])
    replicas = rng.randint(1, workers // (degree * stages))
    micro = rng.choice([m for m in (1, 2, 3) if BATCH // m >= replicas * degree])
    total = BATCH // micro
    shares = [degree] * replicas
    for _ in range(total - degree * replicas):
        shares[rng.randrange(replicas)] += 1
    order = rng.sample(range(workers), workers)
    cuts = [0, *sorted(rng.sample(range(1, n), stages - 1)), n]
    zero = rng.choice((0, 1, 2, 3)) if degree == 1 else 0
    made = []
    for s in range(stages):
        own = order[s * replicas * degree : (s + 1) * replicas * degree]
        groups = [own[k : k + degree] for k in range(0, len(own), degree)]
        chosen = tuple(
            rng.choice(
                [x for x in (DATA, REPLICATED, TENSOR) if x != TENSOR or (k, degree) not in refused]
            )
            for k in range(cuts[s], cuts[s + 1])
        )
        again = rng.random() < 0.3
        made.append(
            _stage(
                cuts[s],
                cuts[s + 1] - 1,
                groups,
                shares,
                strategies=chosen if degree > 1 else (),
                zero_stage=zero,
                recompute=again,
            )
        )
    schedule = rng.choice((Schedule.GPIPE, Schedule.ONE_F_ONE_B))
    return LayerPlan(tuple(made), micro, schedule)


def described(plan: LayerPlan) -> str:
    """A mix in a few words."""
    first = plan.stages[0]
    words = [f"{len(plan.stages)} stages x {len(first.replicas)} replicas x {first.tensor_degree}"]
    words += [f"shares {'+'.join(map(str, first.shares))}", f"{plan.micro_batches} micro-batches"]
    if len(plan.stages) > 1:
        words.append(str(plan.schedule))
    if first.zero_stage:
        words.append(f"ZeRO {first.zero_stage}")
    if first.tensor_degree > 1:
        words.append("".join(str(x)[0] for s in plan.stages for x in s.strategies))
    if any(s.recompute for s in plan.stages):
        words.append("recompute")
    return ", ".join(words)


def plans(model: TracedModel, workers: int, mixes: int, seed: int) -> dict[str, LayerPlan]:
    """Uniform plans that can be executed, and random ones."""
    n, rng, found = len(model.layers), random.Random(seed), {}
    for name, plan in strategies(n, workers).items():
        try:
            demand_executable(model, plan, workers, exact=True)
            found[name] = plan
        except UnsupportedError as error:
            print(f"{name}: refused: {error.what}", file=sys.stderr)
    refused = set(tensor_refusals(model, (2, 4)))
    for k in range(mixes):
        mix = random_mix(n, workers, refused, rng)
        found[f"mix {k + 1}: {described(mix)}"] = mix
    return found


def main(*, mixes: int = 20, seed: int = 0) -> int:
    """Print the tables; 1 where something differs."""
    torch.manual_seed(seed)
    words, targets = (torch.randint(0, 50, (BATCH, 7)) for _ in range(2))
    model = TracedModel(ModelSource(Transformer(), (words,), token_loss, targets, "transformer"))
    reference = ReferenceSteps(model.source, update_of("sgd", 0.1))
    (loss, expected), failed = reference.gradients(), 0
    for workers in (2, 4):
        devices = tuple(Device(f"d{k}", node=f"n{k}") for k in range(workers))
        print(f"\n{workers} processes\n")
        table, cluster = Table("plan", "loss", "gradients"), Cluster(devices, (), "equality")
        with LayerSession(model, cluster, optimizer="sgd", lr=0.1) as session:
            for name, plan in plans(model, workers, mixes, seed).items():
                session.load(plan)
                (times,) = session.train(1, update=False)
                found, most = session.gradients(), float("inf")
                of_loss = abs(loss_of(times) - loss) / abs(loss)
                if found.keys() == expected.keys():
                    most = max(float((found[k] - g).abs().max()) for k, g in expected.items())
                failed += not (of_loss <= MOST and most <= MOST)
                table.row(name, f"{of_loss:.1e}", f"{most:.1e}")
    print(f"\n{failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    run(main)
