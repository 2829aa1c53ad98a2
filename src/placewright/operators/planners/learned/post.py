"""Post: one softmax over devices per group, by cross-entropy and proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.planners.learned.edits import Edits
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.features import Grouping, How, group_operators
from placewright.operators.planners.learned.planner import (
    Answer,
    LearnedPlanner,
    MovingAverage,
    Schema,
    check_parameters,
    drawn,
    softmax,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Count, Share

COARSE: tuple[How, int] = ("modules", 128)
FINE: tuple[How, int] = ("chains", 512)
FINEST: tuple[How, int] = ("colocation", 512)
"""Groups of operators, and how many at most: from uniform softmaxes; from a list schedule; from one
of at most `SMALL` operators."""

SMALL = 1024


@final
@dataclass(frozen=True, slots=True)
class Post(LearnedPlanner):
    """Cross-entropy minimisation and proximal policy optimisation on independent softmaxes.

    Gao, Chen, Li, "Post: Device Placement with Cross-Entropy Minimization and Proximal Policy
    Optimization", NeurIPS 2018. A placement is drawn from f(d|u) = prod_m softmax(u_m)[d_m], one
    softmax per group of operators, uniform at first. After every `batch` samples `ascents` steps
    up the gradient of mean_n sum_m f(d_m|u_m)/f(d_m|u_old) (b - T_n) - beta sum_m KL(f_old || f),
    where b is a moving average of run times T, and beta is doubled above 1.5 times `target_kl` and
    halved below `target_kl`/1.5. After every `window` samples a cross-entropy step: f becomes the
    share of each device among the best `elite` of the window, mixed with `explore` of the uniform
    distribution. The best placement seen is returned.

    The paper gives `elite` and 2,400 samples; there is no code, and the sizes of batch and window,
    `explore` and the penalty's target are ours. Run times are divided by that of the best trivial
    plan.

    ``profile="repaired"``, ours: starts from the best list schedule with a share of `trust` per
    group, and judges samples by its order; takes elites from all samples so far and not from the
    window alone, which may hold none that are good; mixes so little of the uniform distribution in
    that about `moved` groups of a sample differ from the most likely ones, instead of a tenth of
    them; normalises the advantage over the batch; moves groups off devices that cannot hold them;
    and, where it starts from a list schedule, groups no more than chains of operators (only
    colocated ones up to `SMALL` operators), since whole modules cannot take up what a list schedule
    decides by operator, and replaces most samples by edits of the best placements so far (`edits`),
    from which the cross-entropy step learns as from its own.

    O(samples (n + e + groups m)).

    Parameters
    ----------
    samples
        Evaluations allowed, the trivial plans and teachers included.
    reward, rehearsal
        ``measured``: placements are executed and timed (see `measured.learn_from_runs`), after so
        many evaluations of the judge; `samples` are then measured ones.
    start
        ``lists``: from the best list schedule. ``uniform``: no prior knowledge. Default by profile.
    groups, grouping
        At most, and how operators are grouped: 128 by ``modules``, but 512 by ``chains`` or, up to
        `SMALL` operators, ``colocation``, where `repaired` starts from a list schedule.
    edits
        Batches of edits of the best placements after every batch that is drawn from the policy;
        none as published or from uniform softmaxes.
    answer
        ``policy``: the best placement that the policy itself drew, without trivial plans, list
        schedules and edits.
    """

    name: ClassVar[str] = "post"
    samples: Count = 2400
    profile: Literal["as_published", "repaired"] = "repaired"
    reward: Literal["judge", "measured"] = "judge"
    rehearsal: int = 2400
    start: Literal["lists", "uniform"] | None = None
    grouping: How | None = None
    groups: Count | None = None
    batch: Count = 12
    window: Count = 60
    elite: Share = 0.1
    explore: Share = 0.1
    moved: float = 2.0
    trust: Share = 0.98
    ascents: int = 8
    rate: float = 1.0
    target_kl: float = 0.03
    edits: int = 11
    answer: Answer = "best"
    checkpoint: str = ""

    def schema(self, problem: OperatorProblem) -> Schema:
        """Its softmaxes belong to the groups of one problem."""
        how, most = self.grouped(problem)
        groups = f"{how} {most}, {problem.m} devices"
        return Schema(self.name, "none", groups, problem.hash())

    def learn(self, evaluations: Evaluations) -> None:
        """Sample, and step by step move the softmaxes."""
        repaired = self.profile == "repaired"
        evaluations.repairs = repaired
        grouping = group_operators(evaluations.problem, *self.grouped(evaluations.problem))
        policy = _SoftmaxPolicy(self, grouping, evaluations, repaired)
        rng = np.random.default_rng(evaluations.context.seed)
        near = Edits(evaluations, grouping, rng)
        edits = self.edits if self.starts == "lists" else 0
        seen: list[tuple[IntArray, FloatArray]] = []
        turn = 0
        while count := evaluations.room(self.batch):
            if turn % (1 + edits) == 0:
                devices = drawn(policy.chances, count, rng)
                costs = evaluations.costs(grouping.placements(devices))
                seen.append((devices, costs / evaluations.trivial_s))
                evaluations.updated(costs, policy.entropy(), np.nan)
                policy.ascend(*seen[-1])
            else:
                devices, costs = near.judged(count, policy.chances)
                seen.append((devices, costs / evaluations.trivial_s))
            turn += 1
            if sum(len(c) for _, c in seen) >= self.window:
                policy.fit_elites(*map(np.concatenate, zip(*seen, strict=True)))
                seen.clear()
            policy.keep(evaluations)

    def grouped(self, problem: OperatorProblem) -> tuple[How, int]:
        """How operators are grouped, and into how many groups at most."""
        fine = FINEST if problem.n <= SMALL else FINE
        how, most = fine if self.starts == "lists" else COARSE
        return self.grouping or how, self.groups or most

    @property
    def starts(self) -> str:
        """``lists`` or ``uniform``."""
        return self.start or ("lists" if self.profile == "repaired" else "uniform")


class _SoftmaxPolicy:
    """Softmaxes of all groups, and what changes them."""

    def __init__(
        self, p: Post, grouping: Grouping, evaluations: Evaluations, repaired: bool
    ) -> None:
        self.p, self.allowed, self.repaired = p, grouping.allowed, repaired
        self.uniform = grouping.uniform
        self.explore = min(p.explore, p.moved / grouping.count) if repaired else p.explore
        self.beta, self.average = 1.0, MovingAverage()
        self.elites: tuple[IntArray, FloatArray] | None = None
        self.logits = np.zeros(grouping.allowed.shape)
        self.chances = self.uniform
        given = evaluations.parameters
        if given:
            needed = {"logits": grouping.allowed.shape, "beta": (), "average": ()}
            check_parameters(given, needed, p.name)
            self.logits, self.beta = np.array(given["logits"]), float(given["beta"])
            self.average.value = float(given["average"])
            self.chances = softmax(self.logits, self.allowed)
        elif p.starts == "lists":
            teacher = evaluations.teach()
            if teacher is not None:
                best = grouping.devices(evaluations.problem, evaluations.best.place)
                self._set(_mixed(_one_hot(best, self.allowed), self.uniform, 1.0 - p.trust))

    def entropy(self) -> float:
        """Of all softmaxes together."""
        return float(-(self.chances * np.log(np.maximum(self.chances, 1e-300))).sum())

    def ascend(self, devices: IntArray, costs: FloatArray) -> None:
        """Steps of proximal policy optimisation on one batch, the gradient written out."""
        p, old = self.p, self.chances
        baseline = self.average.update(float(costs.mean()))
        advantage = baseline - costs
        if self.repaired:
            advantage = (costs.mean() - costs) / (costs.std() + 1e-9)
        picked = np.take_along_axis(old[None], devices[..., None], axis=2)[..., 0]
        chosen = devices[..., None] == np.arange(old.shape[1])
        new = old
        for _ in range(p.ascents):
            now = np.take_along_axis(new[None], devices[..., None], axis=2)[..., 0]
            weight = (now / picked) * advantage[:, None]
            gain = (chosen * weight[..., None]).mean(axis=0) - weight.mean(axis=0)[:, None] * new
            rate = p.rate / (1.0 + self.beta)  # the penalty's curvature is about beta
            self.logits = self.logits + rate * (gain - self.beta * (new - old))
            new = softmax(self.logits, self.allowed)
        apart = np.log(np.maximum(old, 1e-300)) - np.log(np.maximum(new, 1e-300))
        moved = float((old * apart).sum(axis=1).mean())
        if moved > 1.5 * p.target_kl:
            self.beta = min(self.beta * 2.0, 64.0)
        elif moved < p.target_kl / 1.5:
            self.beta = max(self.beta / 2.0, 1e-3)
        self.chances = new

    def fit_elites(self, devices: IntArray, costs: FloatArray) -> None:
        """Cross-entropy step: the shares of devices among the best samples."""
        count = max(1, round(self.p.elite * len(costs)))
        if self.repaired and self.elites is not None:
            devices = np.concatenate([self.elites[0], devices])
            costs = np.concatenate([self.elites[1], costs])
        best = np.argsort(costs, kind="stable")[:count]
        self.elites = devices[best], costs[best]
        share = (devices[best][..., None] == np.arange(self.allowed.shape[1])).mean(axis=0)
        self._set(_mixed(share, self.uniform, self.explore))

    def keep(self, evaluations: Evaluations) -> None:
        """For a checkpoint."""
        average = self.average.value or 0.0
        evaluations.keep(logits=self.logits, beta=np.array(self.beta), average=np.array(average))

    def _set(self, chances: FloatArray) -> None:
        self.chances = chances
        self.logits = np.log(np.where(chances > 0, chances, 1.0))


def _mixed(chances: FloatArray, uniform: FloatArray, share: float) -> FloatArray:
    mixed: FloatArray = (1.0 - share) * chances + share * uniform
    return mixed


def _one_hot(devices: IntArray, allowed: BoolArray) -> FloatArray:
    hot: FloatArray = (devices[:, None] == np.arange(allowed.shape[1])).astype(np.float64)
    return hot
