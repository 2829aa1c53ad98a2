"""Train the transfer policy by imitation of `search`.

    python benchmarks/train_transfer.py [--labels FOLDER]

Imitation of `search`, four seconds per graph, on graphs of `transfer_graphs` (seeds 0 to 119; the
last twenty are not trained on and only measured). Two of the network's heads learn, by binary cross
entropy: the price of an operator's outputs from the share of their uses that the search kept on the
device, the weight of an operator's own time from whether it was put on its fastest device. Both are
centred and scaled by `TRUST`; the other heads stay silent, since priorities that imitate the
search's order made schedules worse. Placements are kept in FOLDER and taken from there.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from harness import run
from placewright import Context, OperatorProblem, judge, planners
from placewright.operators.planners.learned.planner import save_parameters
from placewright.operators.planners.learned.transfer import (
    HIDDEN,
    PARAMETERS,
    ROUNDS,
    SCHEMA,
    features,
    shapes,
    uses,
)
from placewright.operators.planners.lists.insertion import set_up
from placewright.planning.contract import proposal_of
from transfer_graphs import generated

GRAPHS, HELD_OUT, SECONDS = 120, 20, 4.0
EPOCHS, RATE, TRUST = 12, 5e-3, 0.3
PRICE, OWN = 2, 3
"""Columns of the heads that learn."""

Parameters = dict[str, torch.nn.Parameter]


def main(*, labels: Path = Path("transfer_labels"), out: Path = PARAMETERS) -> None:
    """Imitate, and write the parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels.mkdir(parents=True, exist_ok=True)
    graphs = [example(seed, labels) for seed in range(GRAPHS)]
    trained, held_out = graphs[:-HELD_OUT], graphs[-HELD_OUT:]
    sizes = shapes().items()
    p = {name: torch.nn.Parameter(torch.randn(s) / np.sqrt(s[0])) for name, s in sizes}
    with torch.no_grad():
        p["heads"].mul_(0.1)
    optimizer, rng = torch.optim.Adam(p.values(), RATE), np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for x in rng.permutation(len(trained)):
            optimizer.zero_grad()
            losses(p, trained[x]).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            price, own = torch.stack([losses(p, g) for g in held_out]).mean(0).tolist()
        print(f"epoch {epoch}: held out {price:.3f} (stays), {own:.3f} (fastest)", flush=True)
    save_parameters(out, centred(p, trained), SCHEMA, graphs=GRAPHS, epochs=EPOCHS)


def example(seed: int, labels: Path) -> list[torch.Tensor]:
    """Features, edges and what the search did on one graph."""
    problem, file = generated(seed), labels / f"{seed}.npz"
    if not file.exists():
        context = Context(deadline_s=time.perf_counter() + SECONDS, judge=judge)
        found = proposal_of(planners(problem)["search"](problem, context)).plan
        np.savez(file, place=found.placement)
    place, edges = np.load(file)["place"], uses(problem)
    same = (place[edges.source] == place[edges.target]).astype(np.float64)
    stays = np.bincount(edges.source, same, problem.n) / np.maximum(edges.made, 1)
    columns = [features(set_up(problem)), stays, fastest(problem, place), edges.read, edges.made]
    floats = [torch.as_tensor(x, dtype=torch.float32) for x in columns]
    return [*floats, torch.as_tensor(edges.source), torch.as_tensor(edges.target)]


def fastest(problem: OperatorProblem, place: np.ndarray) -> np.ndarray:
    """1 for an operator on its fastest device, 0 on its slowest; one half where all are alike."""
    own = problem.compute_s[np.arange(problem.n), place]
    low, high = problem.compute_s.min(axis=1), problem.compute_s.max(axis=1)
    share = 1 - (own - low) / np.maximum(high - low, 1e-300)
    result: np.ndarray = np.where(high > 1.0001 * low, share, 0.5)
    return result


def heads(p: Parameters, graph: list[torch.Tensor]) -> torch.Tensor:
    """`placewright.operators.planners.learned.transfer.network` before its last tanh, in torch."""
    rows, _, _, read, made, source, target = graph
    state = torch.tanh(rows @ p["inputs"])
    for turn in range(ROUNDS):
        empty = torch.zeros(len(rows), HIDDEN)
        before = empty.index_add(0, target, state[source]) / read.clamp(min=1)[:, None]
        after = empty.index_add(0, source, state[target]) / made.clamp(min=1)[:, None]
        state = torch.tanh(torch.cat([rows, state, before, after], dim=1) @ p[f"round{turn}"])
    return torch.cat([rows, state], dim=1) @ p["heads"]


def losses(p: Parameters, graph: list[torch.Tensor]) -> torch.Tensor:
    """Cross entropies of the two heads."""
    logits, (_, stays, fast, _, made, *_) = heads(p, graph), graph
    read = made > 0
    price = binary_cross_entropy_with_logits(logits[read, PRICE], stays[read])
    return torch.stack([price, binary_cross_entropy_with_logits(logits[:, OWN], fast)])


def centred(p: Parameters, graphs: list[list[torch.Tensor]]) -> dict[str, np.ndarray]:
    """The parameters, heads less their mean logit and scaled; the last feature is a constant."""
    arrays = {name: x.detach().numpy().copy() for name, x in p.items()}
    last = arrays["heads"]
    for column, row in ((PRICE, 1), (OWN, 2)):
        mean = float(np.mean([float(g[row].mean()) for g in graphs]))
        last[len(graphs[0][0][0]) - 1, column] -= np.log(mean / (1 - mean))
    keep = np.isin(np.arange(last.shape[1]), (PRICE, OWN))
    arrays["heads"] = last * keep * TRUST
    return arrays


if __name__ == "__main__":
    run(main)
