"""RNN placer: a device for each group in turn, by a sequence network and REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import (
    VERSION,
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
from placewright.planning.contract import Count


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
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Parameters depend on devices and hidden units."""
        return Schema(self.name, VERSION, f"{problem.m} devices, {self.hidden} hidden")

    def learn(self, evaluations: Evaluations) -> None:
        """Sample a batch, reinforce, repeat."""
        with torch_session(self.name, evaluations):
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
            costs = evaluations.costs(grouping.placements(devices.numpy()))
            roots = np.sqrt(costs / evaluations.trivial_s)
            advantage = (average.update(float(roots.mean())) - roots) / (roots.std() + 1e-6)
            logs, entropy = chosen_log(placer.logits(many, devices), allowed, devices)
            gain = torch.tensor(advantage, dtype=torch.float32) * logs + self.entropy * entropy
            loss = stepped(adam, -gain.mean(), placer.parameters())
            evaluations.updated(costs, float(entropy.detach().mean()), loss)
            evaluations.keep(**stored({"placer": placer}))
