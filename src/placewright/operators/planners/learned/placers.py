"""Two published placers of groups, by REINFORCE: a sequence network, and Placeto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import (
    VERSION,
    Grouping,
    How,
    group_features,
    group_operators,
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


@final
@dataclass(frozen=True, slots=True)
class Placeto(LearnedPlanner):
    """Episodes that visit every group once and choose its device, rewarded by what that saves.

    After Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for
    Distributed Machine Learning", NeurIPS 2019 (arXiv 1906.08879). Ours reads, instead of a graph
    embedding, the group's features, the work on every device, and the bytes that the group
    exchanges with every device under the placement as it is. `episodes` run side by side; the
    baseline of a step is their mean return.

    Parameters
    ----------
    samples
        Evaluations allowed: one per move, and the trivial plans.
    episodes
        That run side by side; one step of Adam for all of them.
    discount
        Of rewards of later moves.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    device
        Where its networks are, as PyTorch names it: ``cpu``, ``cuda:0``.
    """

    name: ClassVar[str] = "placeto"
    samples: Count = 2400
    start: Literal["lists", "trivial"] = "trivial"
    grouping: How = "modules"
    groups: Count = 64
    hidden: Count = 64
    episodes: Count = 6
    discount: Share = 0.9
    learning_rate: float = 0.003
    entropy: float = 0.01
    answer: Answer = "best"
    device: str = "cpu"
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Parameters depend on devices and hidden units."""
        return Schema(self.name, VERSION, f"{problem.m} devices, {self.hidden} hidden")

    def learn(self, evaluations: Evaluations) -> None:
        """Episode after episode, each from the best placement so far."""
        with torch_session(self, evaluations):
            self._learn(evaluations)

    def _learn(self, evaluations: Evaluations) -> None:
        import torch
        from torch import nn

        from placewright.operators.planners.learned.networks import (
            chosen_log,
            restore,
            stepped,
            stored,
        )

        problem = evaluations.problem
        grouping = group_operators(problem, self.grouping, self.groups)
        if self.start == "lists":
            evaluations.teach()
        fixed = group_features(problem, grouping, evaluations.best.place)
        scene = _Scene(problem, grouping)
        policy = nn.Sequential(
            nn.Linear(fixed.shape[1] + 4 * problem.m, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, problem.m),
        )
        restore({"policy": policy}, evaluations.parameters, self.name)
        adam = torch.optim.Adam(policy.parameters(), self.learning_rate)
        allowed = torch.tensor(grouping.allowed)
        while evaluations.room(1):
            start = grouping.devices(problem, evaluations.best.place)
            devices = np.tile(start, (self.episodes, 1))
            with evaluations.given_by(evaluations.best_origin):
                again = evaluations.costs(grouping.placements(start))[0]
            cost = np.full(self.episodes, again)
            seen: list[torch.Tensor] = []
            rewards: list[FloatArray] = []
            moved: list[torch.Tensor] = []
            for g in range(grouping.count):
                if evaluations.room(self.episodes) < self.episodes:
                    break
                rows = np.concatenate(
                    [np.tile(fixed[g], (self.episodes, 1)), scene.around(devices, g)], axis=1
                )
                seen.append(torch.tensor(rows, dtype=torch.float32))
                with torch.no_grad():
                    scores = policy(seen[-1]).masked_fill(~allowed[g], -torch.inf)
                moved.append(torch.multinomial(scores.softmax(dim=1), 1))
                devices[:, g] = moved[-1][:, 0].numpy(force=True)
                now = evaluations.costs(grouping.placements(devices))
                rewards.append((cost - now) / evaluations.trivial_s)
                cost = now
            if not seen:
                # Too little room for a step of all episodes: spend it on the policy's last ones.
                left = evaluations.room(self.episodes)
                evaluations.costs(grouping.placements(devices[:left]))
                continue
            returns = self._returns(np.stack(rewards))
            advantage = returns - returns.mean(axis=1, keepdims=True)
            advantage /= advantage.std() + 1e-9
            logits = policy(torch.stack(seen)).unsqueeze(2)  # steps, episodes, 1, m
            logs, entropy = chosen_log(
                logits.flatten(0, 1),
                allowed[: len(seen), None, None].expand(-1, self.episodes, 1, -1).flatten(0, 1),
                torch.stack(moved).flatten(0, 1),
            )
            gain = torch.tensor(advantage.ravel(), dtype=torch.float32) * logs
            loss = -(gain + self.entropy * entropy).mean()
            took = stepped(adam, loss, policy.parameters())
            evaluations.updated(cost, float(entropy.detach().mean()), took)
            evaluations.keep(**stored({"policy": policy}))

    def _returns(self, rewards: FloatArray) -> FloatArray:
        """Shape (steps, episodes): discounted sums of the rewards from each step on."""
        returns = rewards.copy()
        for step in range(len(returns) - 2, -1, -1):
            returns[step] += self.discount * returns[step + 1]
        return returns


class _Scene:
    """Features of a group's surroundings under a placement."""

    def __init__(self, problem: OperatorProblem, grouping: Grouping) -> None:
        between = grouping.adjacency_bytes(problem)
        self.m, self.between = problem.m, between / (between.sum(axis=1).max() + 1e-30)
        self.work = grouping.work_s / (grouping.work_s.sum() + 1e-30)

    def around(self, devices: IntArray, g: int) -> FloatArray:
        """Shape (k, 4 m): its device, loads, bytes from and to every device."""
        hot = (devices[..., None] == np.arange(self.m)).astype(np.float64)  # k, groups, m
        parts = [
            hot[:, g],
            np.einsum("kgd,g->kd", hot, self.work),
            np.einsum("kgd,g->kd", hot, self.between[:, g]),
            np.einsum("kgd,g->kd", hot, self.between[g]),
        ]
        return np.concatenate(parts, axis=1)


@final
@dataclass(frozen=True, slots=True)
class RnnPlacer(LearnedPlanner):
    """LSTM encoder, LSTM decoder with attention, one device per group.

    After Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017
    (arXiv 1706.04972), the baseline of Post and HSDAG. The advantage is the moving average minus
    the square root of the run time, so that fast placements are reinforced (HSDAG's code has the
    sign the other way round).

    Parameters
    ----------
    samples
        Evaluations allowed, trivial plans included.
    batch
        Placements per step of Adam.
    entropy
        Weight of the entropy bonus, per group.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    device
        Where its networks are, as PyTorch names it: ``cpu``, ``cuda:0``.
    """

    name: ClassVar[str] = "rnn"
    samples: Count = 2400
    start: Literal["lists", "uniform"] = "uniform"
    grouping: How = "modules"
    groups: Count = 64
    hidden: Count = 64
    batch: Count = 12
    learning_rate: float = 0.003
    entropy: float = 0.002
    answer: Answer = "best"
    device: str = "cpu"
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Parameters depend on devices and hidden units."""
        return Schema(self.name, VERSION, f"{problem.m} devices, {self.hidden} hidden")

    def learn(self, evaluations: Evaluations) -> None:
        """Sample a batch, reinforce, repeat."""
        with torch_session(self, evaluations):
            self._learn(evaluations)

    def _learn(self, evaluations: Evaluations) -> None:
        import torch

        from placewright.operators.planners.learned.networks import (
            SequencePlacer,
            chosen_log,
            restore,
            stepped,
            stored,
        )

        problem = evaluations.problem
        grouping = group_operators(problem, self.grouping, self.groups)
        if self.start == "lists":
            evaluations.teach()
        rows = group_features(problem, grouping, evaluations.best.place)
        features = torch.tensor(rows, dtype=torch.float32)
        allowed = torch.tensor(grouping.allowed)
        placer = SequencePlacer(features.shape[1], self.hidden, problem.m)
        restore({"placer": placer}, evaluations.parameters, self.name)
        adam = torch.optim.Adam(placer.parameters(), self.learning_rate)
        if self.start == "lists" and not evaluations.parameters:
            target = torch.tensor(grouping.devices(problem, evaluations.best.place))[None]
            for _ in range(100):
                logs, _ = chosen_log(placer.logits(features[None], target), allowed[None], target)
                stepped(adam, -logs.mean() / grouping.count, placer.parameters())
                if float(logs.detach()) > -2.0:
                    break
        average = MovingAverage()
        while count := evaluations.room(self.batch):
            many = features.expand(count, -1, -1)
            devices = placer.sample(many, allowed.expand(count, -1, -1))
            costs = evaluations.costs(grouping.placements(devices.numpy(force=True)))
            roots = np.sqrt(costs / evaluations.trivial_s)
            advantage = (average.update(float(roots.mean())) - roots) / (roots.std() + 1e-6)
            logs, entropy = chosen_log(placer.logits(many, devices), allowed, devices)
            gain = torch.tensor(advantage, dtype=torch.float32) * logs + self.entropy * entropy
            loss = stepped(adam, -gain.mean(), placer.parameters())
            evaluations.updated(costs, float(entropy.detach().mean()), loss)
            evaluations.keep(**stored({"placer": placer}))
