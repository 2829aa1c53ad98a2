"""HP3C: a fully connected network groups operators, a sequence network places the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.costs import groups_of
from placewright.operators.planners.learned.edits import Edits
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import (
    VERSION,
    group_features,
    group_operators,
    hp3c_features,
)
from placewright.operators.planners.learned.planner import (
    Answer,
    LearnedPlanner,
    MovingAverage,
    Schema,
    torch_session,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count, Share

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_GROUPS, PER_DEVICE = 256, 20
"""The published number of groups: the lesser of 256 and 20 per device."""

FAILED_S, DECAY = 100.0, 0.9
"""Published: what a placement that fails takes, and the decay of the moving average."""

LAST_DRAW, LAST_NOISE = 500, 750
"""Published: updates after which the likeliest device is taken, and after which noise ends."""


@final
@dataclass(frozen=True, slots=True)
class Hp3c(LearnedPlanner):
    """Grouper and placer, trained by policy gradient on the square root of the run time.

    Liu, Jia, Chen, Lin, Jin, An, HP3C 2019, doi 10.1145/3318265.3318270. There is no code; the
    closest public description, which `as_published` follows, is the hierarchical controller of
    Mirhoseini et al., ICLR 2018, as in TensorFlow's grappler.

    ``profile="as_published"``: a grouper of two linear layers (46 -> 64 -> groups) without
    non-linearity in between, on type number, shapes padded with -1 and signed neighbours; group
    features in which type counts and shapes are added to the columns of the adjacency; an LSTM of
    512 units in each direction, and attention; one placement per update; R = sqrt(run time), moving
    average 0.9 from sqrt(100), 100 s for what does not fit; Adam 0.1, times 0.95 every 50 updates
    after 400; gradient norm 1; noise on the placer's logits until update 750; nothing is drawn
    after update 500. The noise has a standard deviation of 1, which is ours.

    ``profile="repaired"``: chains are joined; features are times, bytes, hashed kinds, degrees and
    topological position (`features.group_features`), with a non-linearity; group features have
    columns of their own; `batch` placements per update with normalised advantages and an entropy
    bonus; ours: both networks first imitate the best list schedule, which is among the features,
    and every update repeats some of the best placement so far; between updates edits of the best
    placements are judged (`edits`).

    O(samples (n + e + groups^2)) and the networks.

    Parameters
    ----------
    samples
        Evaluations allowed, trivial plans and teachers included.
    reward, rehearsal
        ``measured``: placements are executed and timed (see `measured.learn_from_runs`), after so
        many evaluations of the judge; `samples` are then measured ones.
    start
        ``lists``: imitate the best list schedule first; `repaired` only.
    groups, hidden, batch, learning_rate
        ``None`` takes the profile's: 20 per device, 512, 1 and 0.1 as published; 8 per device, 64,
        12 and 0.002 repaired.
    entropy, elite
        Weights of the entropy bonus and of the best placement so far; `repaired` only.
    edits
        Batches of edits of the best placements after every batch that is drawn; `repaired` only,
        and none with ``start="nothing"``.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    device
        Where its networks are, as PyTorch names it: ``cpu``, ``cuda:0``.
    """

    name: ClassVar[str] = "hp3c"
    samples: Count = 2400
    profile: Literal["as_published", "repaired"] = "repaired"
    reward: Literal["judge", "measured"] = "judge"
    rehearsal: int = 1200
    start: Literal["lists", "nothing"] = "lists"
    groups: Count | None = None
    hidden: Count | None = None
    batch: Count | None = None
    learning_rate: float | None = None
    entropy: float = 0.001
    elite: Share = 0.3
    edits: int = 1
    answer: Answer = "best"
    device: str = "cpu"
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Parameters depend on the profile, groups, devices and hidden units."""
        features = VERSION if self._repaired else "published 46"
        size = f"{self.group_count(problem)} groups, {problem.m} devices, {self._hidden} hidden"
        return Schema(f"{self.name} {self.profile}", features, size)

    def learn(self, evaluations: Evaluations) -> None:
        """Draw groupings and placements, reinforce, repeat."""
        with torch_session(self, evaluations):
            _Run(self, evaluations).learn()

    def group_count(self, problem: OperatorProblem) -> int:
        """Groups that the grouper chooses from."""
        usual = 8 * problem.m if self._repaired else min(MOST_GROUPS, PER_DEVICE * problem.m)
        return self.groups or usual

    @property
    def _repaired(self) -> bool:
        return self.profile == "repaired"

    @property
    def _hidden(self) -> int:
        return self.hidden or (64 if self._repaired else 512)

    @property
    def _batch(self) -> int:
        return self.batch or (12 if self._repaired else 1)

    @property
    def _rate(self) -> float:
        return self.learning_rate or (0.002 if self._repaired else 0.1)


class _Draw(NamedTuple):
    """Groupings and placements: shapes (k, units) and (k, groups), and group features."""

    groups: Tensor
    devices: Tensor
    features: Tensor


class _Run:
    """The two networks on one problem; a unit is what the grouper assigns as one."""

    def __init__(self, p: Hp3c, evaluations: Evaluations) -> None:
        import torch
        from torch import nn

        from placewright.operators.planners.learned.networks import SequencePlacer, restore

        self.p, self.evaluations = p, evaluations
        self.repaired = p.profile == "repaired"
        evaluations.repairs = self.repaired
        problem = evaluations.problem
        self.count, self.m = p.group_count(problem), problem.m
        if self.repaired:
            self.units = group_operators(problem, "chains", 600)
            if p.start == "lists":
                evaluations.teach()
            rows = group_features(problem, self.units, evaluations.best.place)
        else:
            self.units = group_operators(problem, "colocation", problem.n)
            first = np.unique(self.units.group, return_index=True)[1]
            rows = hp3c_features(problem)[groups_of(problem).group[first]]
        self.features = torch.tensor(rows, dtype=torch.float32)
        self.columns = rows if self.repaired else _published_columns(rows)
        between = self.units.adjacency_bytes(problem)
        self.source, self.target = np.nonzero(between)
        scale = between.max() if between.size and between.max() > 0 else 1.0
        self.bytes = between[self.source, self.target] / scale
        inner: list[nn.Module] = [nn.ReLU()] if self.repaired else []
        self.grouper = nn.Sequential(
            nn.Linear(self.features.shape[1], 64),
            *inner,
            *([nn.Linear(64, 64), nn.ReLU()] if self.repaired else []),
            nn.Linear(64, self.count),
        )
        own = self.columns.shape[1] if self.repaired else 0
        self.placer = SequencePlacer(2 * self.count + own, p._hidden, self.m)
        self.networks: dict[str, nn.Module] = {"grouper": self.grouper, "placer": self.placer}
        restore(self.networks, evaluations.parameters, p.name)
        self.weights = [*self.grouper.parameters(), *self.placer.parameters()]
        self.adam = torch.optim.Adam(self.weights, p._rate)
        self.anywhere = torch.ones(1, self.count, self.m, dtype=torch.bool)
        self.best: tuple[float, _Draw] | None = None

    def learn(self) -> None:
        """Updates until the budget is spent."""
        from placewright.operators.planners.learned.networks import stored

        fresh = not self.evaluations.parameters
        if self.repaired and self.p.start == "lists" and fresh:
            self._imitate()
        start = None if self.repaired else FAILED_S**0.5
        average, updates = MovingAverage(DECAY, start), 0
        edits = self.p.edits if self.repaired and self.p.start == "lists" else 0
        near = Edits(self.evaluations)
        while count := self.evaluations.room(self.p._batch):
            draw = self._draw(count, updates)
            costs = self.evaluations.costs(self._placements(draw))
            self._update(draw, costs, self._advantage(costs, average), updates)
            self._remember(draw, costs)
            if len(edited := near.judged(edits * self.p._batch)[1]):
                self._remember_best(float(edited.min()))
            updates += 1
            self.evaluations.keep(**stored(self.networks))

    def _draw(self, count: int, updates: int) -> _Draw:
        """Groupings by the grouper's probabilities, devices by the placer's."""
        import torch

        greedy = not self.repaired and updates >= LAST_DRAW
        noise = 1.0 if not self.repaired and updates < LAST_NOISE else 0.0
        with torch.no_grad():
            logits = self.grouper(self.features)
        if greedy:
            groups = logits.argmax(dim=1).expand(count, -1)
        else:
            groups = torch.multinomial(logits.softmax(dim=1), count, replacement=True).T
        features = self._group_features(groups.numpy(force=True))
        allowed = self.anywhere.expand(count, -1, -1)
        devices = self.placer.sample(features, allowed, noise, greedy)
        return _Draw(groups, devices, features)

    def _group_features(self, groups: IntArray) -> Tensor:
        """Shape (k, groups, columns): bytes to and from groups, and what the units have."""
        import torch

        k, size = len(groups), self.count
        row = np.arange(k)[:, None] * size
        pair = (row + groups[:, self.source]) * size + groups[:, self.target]
        weight = np.tile(self.bytes, k)
        # Of no tensors at all `bincount` makes whole numbers, weights or not.
        flat = np.bincount(pair.ravel(), weight, k * size * size).astype(np.float64)
        between = flat.reshape(k, size, size)
        members = np.zeros((k * size, self.columns.shape[1]))
        np.add.at(members, (row + groups).ravel(), np.tile(self.columns, (k, 1)))
        own = members.reshape(k, size, self.columns.shape[1])
        pairs = np.concatenate([between, between.transpose(0, 2, 1)], axis=2)
        if self.repaired:
            found = np.concatenate([np.log1p(pairs), np.sign(own) * np.log1p(np.abs(own))], axis=2)
        else:  # the published features share their columns
            found = pairs
            width = min(found.shape[2], own.shape[2])
            found[:, :, :width] += own[:, :, :width]
        return torch.tensor(found, dtype=torch.float32)

    def _placements(self, draw: _Draw) -> IntArray:
        """Devices of operators; a unit whose group's device it cannot use takes its first one."""
        wanted = np.take_along_axis(
            draw.devices.numpy(force=True), draw.groups.numpy(force=True), axis=1
        )
        allowed: BoolArray = self.units.allowed
        possible = allowed[np.arange(self.units.count), wanted]
        return self.units.placements(np.where(possible, wanted, allowed.argmax(axis=1)))

    def _advantage(self, costs: FloatArray, average: MovingAverage) -> FloatArray:
        """Baseline minus the square root of the run time."""
        if not self.repaired:
            fits = costs < self.evaluations.reference_s  # others carry a penalty
            roots = np.sqrt(np.where(fits | (costs <= FAILED_S), costs, FAILED_S))
            return average.update(float(roots.mean())) - roots
        roots = np.sqrt(costs / self.evaluations.trivial_s)
        spread = roots.std() + 1e-6
        found: FloatArray = (average.update(float(roots.mean())) - roots) / spread
        return found

    def _update(self, draw: _Draw, costs: FloatArray, advantage: FloatArray, updates: int) -> None:
        """One step of Adam up the policy gradient."""
        import torch

        from placewright.operators.planners.learned.networks import stepped

        logs, entropy = self._logs(draw)
        gain = (torch.tensor(advantage, dtype=torch.float32) * logs).mean()
        if self.repaired:
            gain = gain + self.p.entropy * entropy.mean()
            if self.best is not None:
                gain = gain + self.p.elite * self._logs(self.best[1])[0].mean()
        else:
            late = max(0, updates - 400) // 50
            for group in self.adam.param_groups:
                group["lr"] = self.p._rate * 0.95**late
        loss = stepped(self.adam, -gain, self.weights)
        self.evaluations.updated(costs, float(entropy.detach().mean()), loss)

    def _logs(self, draw: _Draw) -> tuple[Tensor, Tensor]:
        """Shape (k,): log probability of groupings and placements, and their entropy."""
        from placewright.operators.planners.learned.networks import chosen_log

        k = len(draw.groups)
        logits = self.grouper(self.features).expand(k, -1, -1)
        everything = logits == logits
        grouped, spread = chosen_log(logits, everything, draw.groups)
        placed, other = chosen_log(
            self.placer.logits(draw.features, draw.devices), self.anywhere, draw.devices
        )
        return grouped + placed, spread + other

    def _remember(self, draw: _Draw, costs: FloatArray) -> None:
        """Keep the best draw, which later updates repeat."""
        k = int(costs.argmin())
        if self.best is None or costs[k] < self.best[0]:
            self.best = float(costs[k]), _Draw(*(part[k : k + 1].clone() for part in draw))

    def _remember_best(self, cost: float) -> None:
        """Repeat the best placement from now on, if an edit of this cost made it."""
        if self.best is None or cost < self.best[0]:
            self.best = cost, self._stretches()

    def _stretches(self) -> _Draw:
        """The best placement so far as a draw: groups are stretches of its devices."""
        import torch

        problem, each = self.evaluations.problem, max(1, self.count // self.m)
        teacher = self.units.devices(problem, self.evaluations.best.place)
        stretch = np.arange(self.units.count) * each // max(1, self.units.count)
        groups = torch.tensor((teacher * each + stretch) % self.count)[None]
        place = torch.tensor(np.minimum(np.arange(self.count) // each, self.m - 1))[None]
        return _Draw(groups, place, self._group_features(groups.numpy(force=True)))

    def _imitate(self) -> None:
        """Both networks learn to draw the best placement."""
        import torch

        from placewright.operators.planners.learned.networks import stepped

        draw = self._stretches()
        adam = torch.optim.Adam(self.weights, 0.005)
        for _ in range(400):
            logs, _ = self._logs(draw)
            stepped(adam, -logs.mean() / self.units.count, self.weights, norm=5.0)
            if float(logs.detach().mean()) > -2.0:  # about two units of a draw are elsewhere
                break


def _published_columns(rows: FloatArray) -> FloatArray:
    """Shape (units, columns): type counts and shapes, added into the same columns."""
    kinds = rows[:, 0].astype(np.int64)
    counts = (kinds[:, None] == np.arange(kinds.max() + 1)).astype(np.float64)
    shapes = np.maximum(rows[:, 1:26], 0.0)
    width = max(counts.shape[1], shapes.shape[1])
    added: FloatArray = np.zeros((len(rows), width))
    added[:, : counts.shape[1]] += counts
    added[:, : shapes.shape[1]] += shapes / (shapes.max() + 1.0)
    return added
