"""DOPPLER: two policies choose the next operator and its device; imitation, then REINFORCE.

Yao, Bourgeois, Jain, Tang, Yao, Ding, Silva, Jermaine, "DOPPLER: Dual-Policy Learning for Device
Assignment in Asynchronous Dataflow Graphs", ICLR 2026, arXiv 2505.23131.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.planners.learned.edits import Edits
from placewright.operators.planners.learned.episodes import (
    DEVICE_FEATURES,
    LOAD,
    NO_RULE,
    NOT_FORCED,
    SENT,
    SHARE,
    START,
    EncodedPolicy,
    EpisodeInstance,
    EpisodeTrace,
    episode_instance,
    new_trace,
    no_policy,
    ruled_episode,
    simulate_episode,
)
from placewright.operators.planners.learned.evaluation import Evaluations
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

PUBLISHED_FEATURES = (LOAD, SENT, SHARE, START)
"""Features of the released device policy, whose starts are loads."""

MOST_OPERATORS = 4000
"""Likelihoods take memory that grows with the square."""


@final
@dataclass(frozen=True, slots=True)
class Doppler(LearnedPlanner):
    """Sequential placement by two policies over one graph network.

    SEL scores operators; in each step one of the ready ones is drawn. PLC then draws its device
    from features of all devices: loads, starts, transfers, memory, and the operators that are
    there. The graph is encoded once per update: messages along and against edges, and the mean
    embeddings of the critical paths above and below each operator. Stages: imitation of a
    critical-path teacher, then REINFORCE on evaluations (the judge, or measured runs where the
    harness measures).

    ``profile="repaired"``: starts in the estimated schedule wait for inputs; PLC also sees
    *siblings*, transfers that are saved later if an operator joins the other producers of its
    consumers; the teacher is the best of the critical-path rules, list schedules and the incumbent,
    as an episode; rewards are minus the logarithm of the makespan, normalised over a batch, with an
    entropy bonus; the best placement so far, which may be an edit (`edits`), is imitated beside.

    ``profile="as_published"`` keeps what the release does: starts are loads, so that teacher and
    features ignore waiting for inputs; ties at random; half of the samples imitate, one update per
    episode; the reward is minus the makespan, less the mean of all before; no siblings.
    Departures: devices are drawn from the policy instead of epsilon-greedily; the trivial plans
    that every learned planner judges first count towards its answer.

    O((n + e) m) per episode, and n^2 for the likelihood of its order.

    Parameters
    ----------
    samples
        Evaluations allowed, trivial plans and teachers included.
    reward, rehearsal
        ``measured``: placements are executed and timed (see `measured.learn_from_runs`), after so
        many evaluations of the judge; `samples` are then measured ones.
    batch
        Episodes per update; 1 in ``as_published``.
    imitation
        Most steps of imitation before the first batch; ``repaired`` only.
    entropy, elite
        Weights of the entropy bonus and of imitating the best placement; ``repaired`` only.
    deviations
        Imitation ends when an episode leaves the teacher in fewer operators than this.
    edits
        Batches of edits of the best placements after every batch of episodes; ``repaired`` only.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    device
        Where its networks are, as PyTorch names it: ``cpu``, ``cuda:0``.
    """

    name: ClassVar[str] = "doppler"
    samples: Count = 500
    profile: Literal["as_published", "repaired"] = "repaired"
    reward: Literal["judge", "measured"] = "judge"
    rehearsal: int = 500
    batch: Count = 8
    learning_rate: float = 2e-3
    hidden: Count = 32
    imitation: int = 150
    entropy: float = 1e-3
    elite: Share = 0.3
    deviations: float = 3.0
    edits: int = 1
    answer: Answer = "best"
    device: str = "cpu"
    checkpoint: str = ""

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Plans that need not be contiguous, not too many operators."""
        if problem.n > MOST_OPERATORS:
            return f"learns orders of up to {MOST_OPERATORS} operators, not {problem.n}"
        return LearnedPlanner.unsupported_reason(self, problem)

    def schema(self, problem: OperatorProblem) -> Schema:
        """Parameters suit every graph and every number of devices."""
        return Schema(self.name, "doppler 2", f"{self.profile}, hidden {self.hidden}")

    def learn(self, evaluations: Evaluations) -> None:
        """Imitate, then draw episodes and learn from them; teachers before torch is imported."""
        if self.profile == "repaired":
            evaluations.teach()
        with torch_session(self, evaluations):
            training = _DualTraining(self, evaluations)
            if self.profile == "as_published":
                training.as_published()
            else:
                training.repaired()


class Likelihood(NamedTuple):
    """Logarithms of chances of episodes, per operator; entropy; chances of the devices chosen."""

    order: Tensor
    device: Tensor
    entropy: Tensor
    chosen: Tensor


class _DualPolicy:
    """The networks: `encoded` for episodes in numpy, `likelihood` of episodes in torch."""

    def __init__(self, planner: Doppler, b: EpisodeInstance) -> None:
        import torch
        from torch.nn import LayerNorm, Linear, ModuleDict, Parameter, ReLU, Sequential

        self.repaired, self.b, width = planner.profile == "repaired", b, planner.hidden
        self.features = torch.as_tensor(_node_features(b), dtype=torch.float32)
        self.source, self.target = torch.as_tensor(b.source), torch.as_tensor(b.target)
        self.paths = [torch.as_tensor(pairs) for pairs in _critical_paths(b)]
        count, columns = len(b.mean_s), len(DEVICE_FEATURES)
        kept = np.ones(columns)
        if not self.repaired:
            kept[:] = 0.0
            kept[list(PUBLISHED_FEATURES)] = 1.0
        self.kept = torch.as_tensor(kept, dtype=torch.float32)
        self.degree_in = torch.bincount(self.target, minlength=count).clamp(min=1)[:, None]
        self.degree_out = torch.bincount(self.source, minlength=count).clamp(min=1)[:, None]
        self.layers = ModuleDict(
            {
                "inputs": Sequential(
                    Linear(self.features.shape[1], width), ReLU(), Linear(width, width)
                ),
                "first": Linear(3 * width, width),
                "second": Linear(3 * width, width),
                "norm": LayerNorm(width),
                "select": Sequential(Linear(3 * width, width), ReLU(), Linear(width, 1)),
                "node": Linear(3 * width, width),
                "held": Linear(width, width, bias=False),
                "hidden": Linear(columns, width, bias=False),
                "out": Linear(width, 1, bias=False),
            }
        )
        self.linear = Parameter(torch.zeros(columns))
        self.urgency = Parameter(torch.tensor(4.0 if self.repaired else 0.0))
        self.parameters = [*self.layers.parameters(), self.linear, self.urgency]
        self.layers.register_parameter("linear", self.linear)
        self.layers.register_parameter("urgency", self.urgency)
        rate = planner.learning_rate if self.repaired else 1e-4
        self.adam = torch.optim.Adam(self.parameters, lr=rate)

    def encode(self) -> tuple[Tensor, ...]:
        """Scores of operators, and what PLC reads of each operator and of those on a device."""
        import torch

        h = self.layers["inputs"](self.features)
        for name in ("first", "second"):
            into = torch.zeros_like(h).index_add(0, self.target, h[self.source]) / self.degree_in
            out = torch.zeros_like(h).index_add(0, self.source, h[self.target]) / self.degree_out
            h = self.layers["norm"](
                h + torch.relu(self.layers[name](torch.cat([h, into, out], dim=1)))
            )
        parts = [h]
        for start, on in self.paths:
            total = torch.zeros_like(h).index_add(0, start, h[on])
            length = torch.bincount(start, minlength=len(h)).clamp(min=1)[:, None]
            parts.append(total / length)
        z = torch.cat(parts, dim=1)
        score = self.layers["select"](z)[:, 0] + self.urgency * self.features[:, 0]
        return score, self.layers["node"](z), self.layers["held"](h)

    def encoded(self) -> EncodedPolicy:
        """The same in numpy, for episodes."""
        import torch

        with torch.no_grad():
            score, node, held = self.encode()
            state = self.layers.state_dict()
            hidden = (state["hidden.weight"] * self.kept).T
            parts = (score, node, held, hidden, state["out.weight"][0])
            arrays = [*parts, self.linear * self.kept * float(self.repaired)]
            return EncodedPolicy(
                *(np.ascontiguousarray(x.numpy(force=True), dtype=np.float64) for x in arrays)
            )

    def likelihood(self, traces: Sequence[EpisodeTrace]) -> Likelihood:
        """Log likelihoods of the choices in episodes."""
        import torch

        score, node, held = self.encode()
        step = torch.as_tensor(np.stack([t.step for t in traces]))
        ready = torch.as_tensor(np.stack([t.ready for t in traces]))
        order = step.argsort(dim=1)
        now = torch.arange(step.shape[1])[None, :, None]
        could = (ready[:, None, :] <= now) & (step[:, None, :] >= now)
        shared = score.expand_as(step)[:, None, :].masked_fill(~could, -torch.inf)
        chosen = score[order] - shared.logsumexp(dim=2)
        rows = torch.arange(len(traces))[:, None]
        seen = torch.as_tensor(np.stack([t.seen for t in traces]), dtype=torch.float32) * self.kept
        place = torch.as_tensor(np.stack([t.place for t in traces]))
        on = torch.nn.functional.one_hot(place[rows, order], seen.shape[2]).float()
        total = (on[..., None] * held[order][:, :, None, :]).cumsum(dim=1)
        count = on.cumsum(dim=1)[..., None]
        before = torch.zeros_like(total)
        before[:, 1:] = total[:, :-1] / count[:, :-1].clamp(min=1)
        seen = seen[rows, order]
        inner = torch.relu(node[order][:, :, None, :] + before + self.layers["hidden"](seen))
        logits = self.layers["out"](inner)[..., 0]
        if self.repaired:
            logits = logits + seen @ self.linear
        allowed = torch.as_tensor(np.stack([t.open for t in traces]))[rows, order]
        logs = logits.masked_fill(~allowed, -1e9).log_softmax(dim=2)
        device = logs.gather(2, place[rows, order][..., None])[..., 0]
        entropy = -(logs.exp() * logs).sum(dim=2)
        return Likelihood(chosen.mean(dim=1), device.mean(dim=1), entropy.mean(), device.exp())

    def step(self, loss: Tensor) -> float:
        """One update; the loss before it."""
        from placewright.operators.planners.learned.networks import stepped

        return stepped(self.adam, loss, self.parameters)

    def load(self, parameters: dict[str, Any]) -> None:
        """Parameters of a checkpoint, if there are any."""
        from placewright.operators.planners.learned.networks import restore

        restore({"policy": self.layers}, parameters, Doppler.name)

    def state(self) -> dict[str, Any]:
        """Parameters by name, for a checkpoint."""
        from placewright.operators.planners.learned.networks import stored

        return stored({"policy": self.layers})


class _DualTraining:
    """Episodes of one problem, and the updates of the policy."""

    def __init__(self, planner: Doppler, evaluations: Evaluations) -> None:
        self.p, self.found, problem = planner, evaluations, evaluations.problem
        published = planner.profile == "as_published"
        if published:
            evaluations.decoder = None
        self.b = episode_instance(problem, by_load=published)
        self.policy = _DualPolicy(planner, self.b)
        self.shape = problem.n, problem.m
        self.random = np.array([evaluations.context.seed * 7919 + 12345], dtype=np.int64)
        self.given = bool(evaluations.parameters)
        self.policy.load(evaluations.parameters)

    def ruled(self, siblings: float, transfers: float, *, noise: float = 0.0) -> EpisodeTrace:
        """An episode of a critical-path teacher: highest rank first, best device by its rule."""
        return ruled_episode(self.b, siblings, transfers, noise, self.random)

    def along(self, place: IntArray) -> EpisodeTrace:
        """An episode that ends at a known placement."""
        trace, policy = new_trace(*self.shape), no_policy(self.shape[0])
        policy.score[:] = self.b.priority
        simulate_episode(self.b, policy, NO_RULE, thawed(place), 0.0, self.random, trace)
        return trace

    def drawn(self, count: int) -> list[EpisodeTrace]:
        """Episodes of the policy."""
        policy, traces = self.policy.encoded(), []
        for _ in range(count):
            trace = new_trace(*self.shape)
            simulate_episode(self.b, policy, NO_RULE, NOT_FORCED, 1.0, self.random, trace)
            traces.append(trace)
        return traces

    def costs(self, traces: Sequence[EpisodeTrace]) -> FloatArray:
        """Evaluate the placements of episodes."""
        return self.found.costs(np.stack([t.place for t in traces]))

    def repaired(self) -> None:
        """Imitation of the best plan, batches of episodes."""
        best = np.array(self.found.best.place)
        elite = [self.along(best)]
        if not self.given:
            self._imitate(elite)
        near = Edits(self.found)
        while count := self.found.room(self.p.batch):
            traces = self.drawn(count)
            costs_s = self.costs(traces)
            costs = np.log(np.maximum(costs_s, 1e-300))
            near.judged(self.p.edits * self.p.batch)
            gain = (costs.mean() - costs) / (costs.std() + 1e-9)
            if not np.array_equal(best, self.found.best.place):
                best = np.array(self.found.best.place)
                elite = [self.along(best)]
            entropy, loss = self._update(traces, gain, elite)
            self.found.updated(costs_s, entropy, loss)
            self.found.keep(**self.policy.state())

    def _imitate(self, elite: Sequence[EpisodeTrace]) -> None:
        for _ in range(self.p.imitation):
            if self.found.context.remaining_s() <= 0:
                return
            likely = self.policy.likelihood(elite)
            if float((1.0 - likely.chosen.detach()).sum(dim=1).mean()) < self.p.deviations:
                return
            self.policy.step(-(likely.device + 0.1 * likely.order).mean())
        self.found.keep(**self.policy.state())

    def _update(
        self, traces: Sequence[EpisodeTrace], gain: FloatArray, elite: Sequence[EpisodeTrace]
    ) -> tuple[float, float]:
        """Entropy and loss before the update."""
        import torch

        likely, best = self.policy.likelihood(traces), self.policy.likelihood(elite)
        advantage = torch.as_tensor(gain, dtype=torch.float32)
        loss = -(advantage * (likely.device + likely.order)).mean()
        loss = loss - self.p.entropy * likely.entropy
        loss = loss - self.p.elite * (best.device + 0.1 * best.order).mean()
        return float(likely.entropy.detach()), self.policy.step(loss)

    def as_published(self) -> None:
        """Imitation for half of the samples, then REINFORCE, one episode at a time."""
        rewards: list[float] = []
        imitated = 0 if self.given else self.found.room(max(1, self.p.samples // 2))
        while self.found.room(1):
            teaching = imitated > 0
            imitated -= 1
            trace = self.ruled(0.0, 0.0, noise=1.0) if teaching else self.drawn(1)[0]
            costs_s = self.costs([trace])
            reward = -float(costs_s[0]) / self.b.whole_s
            likely = self.policy.likelihood([trace])
            gain = 1.0 if teaching else reward - float(np.mean(rewards or [reward]))
            loss = self.policy.step(-gain * (likely.device + likely.order).mean())
            self.found.updated(costs_s, float(likely.entropy.detach()), loss)
            rewards.append(reward)
            self.found.keep(**self.policy.state())


def _node_features(b: EpisodeInstance) -> FloatArray:
    """Levels from the bottom and the top, times, transfers in and out, degrees; of an operator."""
    n, longest = len(b.mean_s), float(b.priority.max()) or 1.0
    into = np.bincount(b.target, b.edge_s, n) / b.unit_s
    out = np.bincount(b.source, b.edge_s, n) / b.unit_s
    degrees = [np.log1p(np.bincount(x, minlength=n)) for x in (b.target, b.source)]
    columns = [b.priority / longest, _top_levels(b) / longest, b.mean_s / b.unit_s]
    return np.stack([*columns, np.log1p(into), np.log1p(out), *degrees], axis=1)


def _top_levels(b: EpisodeInstance) -> FloatArray:
    """Shape (n,): seconds of the longest path that ends where an operator starts."""
    top = np.zeros(len(b.mean_s))
    for i in b.topological.tolist():
        edges = b.in_edge[b.in_start[i] : b.in_start[i + 1]]
        before = b.source[edges]
        top[i] = (top[before] + b.mean_s[before] + b.edge_s[edges]).max(initial=0.0)
    return top


def _critical_paths(b: EpisodeInstance) -> Iterator[IntArray]:
    """Pairs of an operator and one on its longest path, (2, pairs): downwards, then upwards."""
    n, ends_s = len(b.mean_s), _top_levels(b) + b.mean_s
    for starts, edges, ends, path_s in (
        (b.out_start, b.out_edge, b.target, b.edge_s + b.priority[b.target]),
        (b.in_start, b.in_edge, b.source, b.edge_s + ends_s[b.source]),
    ):
        follow = np.full(n, -1)
        for i in range(n):
            near = edges[starts[i] : starts[i + 1]]
            if len(near):
                follow[i] = ends[near[path_s[near].argmax()]]
        pairs: list[tuple[int, int]] = []
        for i in range(n):
            j = i
            for _ in range(LONGEST_PATH):
                if j < 0:
                    break
                pairs.append((i, j))
                j = int(follow[j])
        yield np.array(pairs, dtype=np.int64).T


LONGEST_PATH = 64
"""Operators of a critical path that are embedded."""
