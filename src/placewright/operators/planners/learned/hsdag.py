"""HSDAG: a graph network that groups operators and chooses each group's device, by REINFORCE.

Duan et al., "A Structure-Aware Framework for Learning Device Placements on Computation Graphs",
NeurIPS 2024, arXiv 2405.14185; grouping after Song et al., "Graph Parsing Networks", ICLR 2024,
arXiv 2402.14393.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.learned.edits import Edits
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import (
    CoarseGraph,
    best_edge_groups,
    coarsen,
    cost_features,
    hsdag_features,
    one_hot,
    operator_kinds,
    standardised,
)
from placewright.operators.planners.learned.planner import (
    Answer,
    LearnedPlanner,
    Schema,
    torch_session,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count, Share

if TYPE_CHECKING:
    from torch import Tensor

FORBIDDEN_S = 1e10
"""Seconds that the published code charges for everything on one device."""

FLIPS = 3.0
"""Imitation ends when a sample moves fewer groups than this off the teacher's devices."""


@final
@dataclass(frozen=True, slots=True)
class Hsdag(LearnedPlanner):
    """Learned grouping and placement of one graph, by REINFORCE.

    Five steps: chains are joined (`graph_features.coarsen`); nodes get features; a graph
    convolution embeds them; every edge gets a score, every node keeps its best edge, and connected
    components of kept edges are groups; a network draws a device for every group. The policy
    learns after every window of placements.

    ``profile="repaired"``: one level of parsing, in which a node keeps its best edge only where
    its score is above one half, so that the number of groups is learned; messages along edges and
    against them have weights of their own; the gradient goes straight through the grouping;
    features also hold times on every device and bytes; the advantage is minus the logarithm of the
    makespan, normalised over the window, with an entropy bonus; a start by imitation of the best
    list plan. Ours: after every window edits of the best placements (`edits`), and some imitation
    of the best one so far.

    ``profile="as_published"`` does what the public code does, so that its numbers can be
    understood: it parses until nothing merges, which on a connected graph leaves one group; of its
    features only kind and index are live; it gives the operator at each place of one list
    (topological order) the device of the operator at that place of another (input order);
    everything on one device counts as 1e10 s; a whole window shares one discounted return of
    1/latency, without a baseline; node features grow by their group's embedding from placement to
    placement. Departures: devices that cannot run an operator are not drawn, and the trivial plans
    that every learned planner judges first count towards its answer.

    A window costs O(window (n + e) + (k + e) hidden^2) for k nodes.

    Parameters
    ----------
    samples
        Evaluations allowed, trivial plans and teachers included.
    reward, rehearsal
        ``measured``: placements are executed and timed (see `measured.learn_from_runs`), after so
        many evaluations of the judge; `samples` are then measured ones.
    window, discount, learning_rate, hidden, dropout
        Of the paper, which draws 25 windows.
    entropy, elite
        Weights of the entropy bonus and of imitating the best placement; `repaired` only.
    imitation
        Most steps of imitation before the first window; `repaired` only.
    edits
        Windows of edits of the best placements after every window that is drawn; `repaired` only.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    device
        Where its networks are, as PyTorch names it: ``cpu``, ``cuda:0``.
    """

    name: ClassVar[str] = "hsdag"
    samples: Count = 500
    profile: Literal["as_published", "repaired"] = "repaired"
    reward: Literal["judge", "measured"] = "judge"
    rehearsal: int = 500
    window: Count = 20
    discount: Share = 0.95
    learning_rate: float = 1e-3
    hidden: Count = 128
    dropout: Share = 0.2
    entropy: float = 1e-3
    elite: Share = 0.1
    imitation: int = 100
    edits: int = 1
    answer: Answer = "best"
    device: str = "cpu"
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Its features are those of one problem."""
        shape = f"{self.profile}, hidden {self.hidden}, {problem.m} devices"
        return Schema(self.name, "hsdag 1", shape, problem.hash())

    def learn(self, evaluations: Evaluations) -> None:
        """Draw windows of placements, and learn from each."""
        with torch_session(self, evaluations):
            _GraphTraining(self, evaluations).run()


class _GraphPolicy:
    """The network: node embeddings, edge scores, groups of nodes, logits of devices.

    In `repaired` a convolution has three matrices: of a node, of the mean of its predecessors, of
    the mean of its successors. In `as_published` it has one, of the symmetrically normalised sum
    over neighbours and itself.
    """

    def __init__(self, planner: Hsdag, graph: CoarseGraph, features: int) -> None:
        import torch
        from torch.nn import Dropout, LayerNorm, Linear, ModuleDict, ReLU, Sequential

        self.repaired, self.graph, width = planner.profile == "repaired", graph, planner.hidden
        self.source, self.target = torch.as_tensor(graph.source), torch.as_tensor(graph.target)
        self.refused = torch.as_tensor(~graph.allowed).float()
        mixed = width * (3 if self.repaired else 1)
        self.layers = ModuleDict(
            {
                "inputs": Sequential(Linear(features, width), ReLU(), Linear(width, width)),
                "first": Linear(mixed, width),
                "second": Linear(mixed, width),
                "norm": LayerNorm(width),
                "dropout": Dropout(planner.dropout),
                "edge": Sequential(Linear(width, width), ReLU(), Linear(width, 1)),
                "member": Sequential(Linear(width, width), ReLU()),
                "pooled": Sequential(Linear(width, width), ReLU()),
                "device": Sequential(
                    Linear(width, width), ReLU(), Linear(width, graph.allowed.shape[1])
                ),
            }
        )

    def embed(self, state: Tensor) -> Tensor:
        """Z = LayerNorm(X + GCN(X)), shape (k, hidden); `state` is what ``inputs`` made of X."""
        inside = self.layers["dropout"](self._convolve("first", state).relu())
        embedding: Tensor = self.layers["norm"](state + self._convolve("second", inside))
        return embedding

    def scores(self, embedding: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Sigmoid of an MLP of z_u * z_v for every edge, shape (e,)."""
        return self.layers["edge"](embedding[source] * embedding[target]).squeeze(1).sigmoid()  # type: ignore[no-any-return]

    def parse(self, embedding: Tensor) -> _Groups:
        """Groups of nodes, with pooled embeddings and devices' logits."""
        import torch

        scores = self.scores(embedding, self.source, self.target)
        group = self._best_edges(self.refused, self.source, self.target, scores)
        while not self.repaired:  # the public code goes on until nothing merges
            coarser = self._parse_again(embedding, group)
            if coarser is None:
                break
            group = coarser
        count = int(group.max()) + 1
        members = _sums(torch.ones_like(embedding[:, :1]), group, count)
        pooled = self.layers["pooled"](
            _sums(self.layers["member"](embedding), group, count) / members.sqrt()
        )
        inside = group[self.source] == group[self.target]
        at, kept = group[self.source][inside], scores[inside][:, None]
        edges = _sums(torch.ones_like(kept), at, count)
        mean = (_sums(kept, at, count) + (edges == 0).float()) / edges.clamp(min=1)
        if self.repaired:  # straight through: one on the way forward, the gradient of the scores
            mean = 1 + mean - mean.detach()
        pooled = pooled * mean
        refused = _sums(self.refused, group, count) > 0
        logits = self.layers["device"](pooled).masked_fill(refused, -math.inf)
        return _Groups(group, pooled, logits, scores)

    def _parse_again(self, embedding: Tensor, group: Tensor) -> Tensor | None:
        """Groups of groups; ``None`` where nothing merges."""
        import torch

        count, a, b = int(group.max()) + 1, group[self.source], group[self.target]
        between = a != b
        members = _sums(torch.ones_like(embedding[:, :1]), group, count)
        scores = self.scores(_sums(embedding, group, count) / members, a[between], b[between])
        refused = (_sums(self.refused, group, count) > 0).float()
        merged = self._best_edges(refused, a[between], b[between], scores)
        return None if int(merged.max()) + 1 == count else merged[group]

    def _best_edges(self, refused: Tensor, *edges: Tensor) -> Tensor:
        import torch

        source, target, scores = (x.contiguous().numpy(force=True) for x in edges)
        least = 0.5 if self.repaired else 0.0
        allowed = refused.numpy(force=True) == 0
        return torch.as_tensor(best_edge_groups(allowed, source, target, scores, least))

    def _convolve(self, layer: str, x: Tensor) -> Tensor:
        import torch

        source, target, k = self.source, self.target, len(x)
        one = torch.ones(len(source), 1)
        into, out = _sums(one, target, k), _sums(one, source, k)
        if self.repaired:
            before = _sums(x[source], target, k) / into.clamp(min=1)
            after = _sums(x[target], source, k) / out.clamp(min=1)
            mixed = torch.cat([x, before, after], dim=1)
        else:
            scale = (into + out + 1).rsqrt()
            y = x * scale
            mixed = (_sums(y[source], target, k) + _sums(y[target], source, k) + y) * scale
        convolved: Tensor = self.layers[layer](mixed)
        return convolved


class _Groups(NamedTuple):
    """Group of every node; embedding and logits of every group; score of every edge."""

    group: Tensor
    embedding: Tensor
    logits: Tensor
    scores: Tensor


def _sums(rows: Tensor, at: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, rows.shape[1]).index_add(0, at, rows)


class _GraphTraining:
    """One training run: the policy and the placements that it draws."""

    def __init__(self, planner: Hsdag, evaluations: Evaluations) -> None:
        import torch

        self.planner, self.evaluations = planner, evaluations
        self.problem, self.repaired = evaluations.problem, planner.profile == "repaired"
        if not self.repaired:
            evaluations.decoder = None
        self.graph = coarsen(self.problem)
        self.features = torch.as_tensor(self._features(), dtype=torch.float32)
        self.policy = _GraphPolicy(planner, self.graph, self.features.shape[1])
        parameters = self.policy.layers.parameters()
        self.optimizer = torch.optim.Adam(parameters, planner.learning_rate)

    def run(self) -> None:
        """Windows until the budget is spent."""
        from placewright.operators.planners.learned.networks import restore, stored

        networks, given = {"layers": self.policy.layers}, self.evaluations.parameters
        restore(networks, given, self.planner.name)
        if self.repaired:
            self.evaluations.teach()
            if not given:
                self._imitate()
        near = Edits(self.evaluations)
        while size := self.evaluations.room(self.planner.window):
            self._step(self._window(size) if self.repaired else self._published_window(size))
            if self.repaired:
                near.judged(self.planner.edits * self.planner.window)
            self.evaluations.keep(**stored(networks))

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _features(self) -> FloatArray:
        graph, problem = self.graph, self.problem
        if not self.repaired:
            kinds, index = operator_kinds(problem), np.arange(graph.size)[:, None]
            return np.concatenate([one_hot([kinds[i] for i in graph.first]), index], axis=1)
        published = standardised(hsdag_features(problem, graph))
        return np.concatenate([published, cost_features(problem, graph)], axis=1)

    def _parsed(self) -> _Groups:
        return self.policy.parse(self.policy.embed(self.policy.layers["inputs"](self.features)))

    def _window(self, size: int) -> Tensor:
        """Draw placements from one parse; the loss of `repaired`."""
        import torch

        parsed = self._parsed()
        chance = torch.distributions.Categorical(logits=parsed.logits)
        drawn = chance.sample((size,))  # type: ignore[no-untyped-call]
        places = drawn[:, parsed.group].numpy(force=True)[:, self.graph.node]
        costs = self.evaluations.costs(places)
        gain = -np.log(costs)
        advantage = torch.as_tensor((gain - gain.mean()) / (gain.std() + 1e-9)).float()
        log_chance = chance.log_prob(drawn).sum(dim=1)  # type: ignore[no-untyped-call]
        spread = chance.entropy().sum()  # type: ignore[no-untyped-call]
        loss: Tensor = (
            -(advantage * log_chance).mean()
            - self.planner.entropy * spread
            + self.planner.elite * self._imitation_loss(parsed)
        )
        self.evaluations.updated(costs, float(spread.detach()), float(loss.detach()))
        return loss

    def _published_window(self, size: int) -> Tensor:
        """Draw placements one after the other, the state growing; the loss of `as_published`."""
        import torch

        state, places = self.policy.layers["inputs"](self.features), []
        total, spread = torch.zeros(()), 0.0
        for _ in range(size):
            embedding = self.policy.embed(state)
            parsed = self.policy.parse(embedding)
            chance = torch.distributions.Categorical(logits=parsed.logits)
            drawn = chance.sample()  # type: ignore[no-untyped-call]
            total = total + chance.log_prob(drawn).sum()  # type: ignore[no-untyped-call]
            spread += float(chance.entropy().sum().detach())  # type: ignore[no-untyped-call]
            state = embedding + parsed.embedding[parsed.group]
            places.append(drawn[parsed.group].numpy(force=True)[self.graph.node])
        rows = self._misplaced(np.stack(places))
        took_s = self.evaluations.costs(rows)
        judged_s = took_s.copy()
        took_s[(rows == rows[:, :1]).all(axis=1)] = FORBIDDEN_S
        weight = self.planner.discount ** np.arange(size)
        loss = -total * float((weight / took_s).sum())
        self.evaluations.updated(judged_s, spread / size, float(loss.detach()))
        return loss

    def _misplaced(self, places: IntArray) -> IntArray:
        """Devices by position in another list of operators, where those can run there."""
        groups, position = self.evaluations.groups, self.problem.topology.position
        own = places[:, groups.first]
        moved = np.empty_like(own)
        moved[:, np.argsort(position[groups.first])] = own
        fits = groups.allowed[np.arange(own.shape[1]), moved]
        return np.where(fits, moved, own)[:, groups.group]

    def _imitate(self) -> None:
        """Steps on the teacher's placement until samples are close to it."""
        for _ in range(self.planner.imitation):
            parsed = self._parsed()
            if self._flips(parsed) < FLIPS or not self.evaluations.room(1):
                return
            self._step(self._imitation_loss(parsed))

    def _flips(self, parsed: _Groups) -> float:
        """Groups that a sample moves off the best placement's devices on average."""
        group, count = parsed.group.numpy(force=True), len(parsed.logits)
        chance = parsed.logits.detach().softmax(dim=1)[parsed.group].numpy(force=True)
        moved = 1 - chance[np.arange(self.graph.size), self._elite()]
        return float((np.bincount(group, moved, count) / np.bincount(group)).sum())

    def _elite(self) -> IntArray:
        """Device of every node in the best placement so far."""
        return self.evaluations.best.place[self.graph.first]

    def _imitation_loss(self, parsed: _Groups) -> Tensor:
        """Cross entropy of devices, by node, and of edges that stay on one device."""
        import torch

        place = torch.as_tensor(self._elite())
        chance = parsed.logits.log_softmax(dim=1)[parsed.group, place].clamp(min=-20.0)
        same = (place[self.policy.source] == place[self.policy.target]).float()
        edges = torch.nn.functional.binary_cross_entropy(parsed.scores, same, reduction="sum")
        loss: Tensor = (edges - chance.sum()) / self.graph.size
        return loss
