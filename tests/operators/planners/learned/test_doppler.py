"""DOPPLER: episodes against a plain computation, likelihoods against episodes, guarantees."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.planners.learned.doppler import (
    Doppler,
    _critical_paths,
    _DualPolicy,
    _DualTraining,
)
from placewright.operators.planners.learned.episodes import (
    END,
    INPUTS,
    LOAD,
    NO_RULE,
    NOT_FORCED,
    SENT,
    SIBLINGS,
    START,
    episode_instance,
    new_trace,
    no_policy,
    ruled_episode,
    simulate_episode,
)
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import save_parameters
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context, proposal_of


def blocks(tmp_path: Path, seed: int, devices: int = 4) -> OperatorProblem:
    """A generated tensor program: products of blocks, then sums, transfers four times as dear."""
    rng = np.random.default_rng(seed)
    tasks, edges = [], []
    layer = [f"p{i}" for i in range(12)]
    tasks += [{"name": x, "cost": int(rng.integers(50, 100)), "kind": "product"} for x in layer]
    for depth in range(3):
        sums = [f"s{depth}_{i}" for i in range(6)]
        for i, name in enumerate(sums):
            tasks.append({"name": name, "cost": 1 + 60 * (depth % 2), "kind": "sum"})
            edges += [(x, name) for x in dict.fromkeys((layer[i], layer[(i + 5) % len(layer)]))]
        layer = sums
    cost = {task["name"]: task["cost"] for task in tasks}
    names = [f"gpu{d}" for d in range(devices)]
    data = {
        "nodes": [{"name": d, "speed": 10**10} for d in names],
        "links": [
            {"source": a, "target": b, "speed": 10**10} for a, b in itertools.combinations(names, 2)
        ],
        "tasks": tasks,
        "dependencies": [{"source": a, "target": b, "size": 4 * cost[a]} for a, b in edges],
    }
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps(data))
    return read_dag(path)


def free(seed: int) -> OperatorProblem:
    """A random problem over links without waiting, groups and refusals kept."""
    return random_problem(seed, most_operators=12, most_devices=3, links="free")


def one() -> np.ndarray:  # type: ignore[type-arg]
    """A random state."""
    return np.array([77], dtype=np.int64)


def test_a_device_without_any_memory_is_a_device() -> None:
    """What it holds is a number, and compiled code does not divide by zero."""
    problem = tiny([[1.0, 2.0]] * 2, [(0, 1.0, [1])], memory_bytes=[0.0, 9.0])
    trace = ruled_episode(episode_instance(problem), 0.0, 0.0, 0.0, one())
    assert trace.place.tolist() == [0, 0]
    assert np.isfinite(trace.seen).all()


def test_features_are_those_of_the_estimated_schedule() -> None:
    """A join: inputs at 1 and 2 on different devices, sent in 4; 3 makes a sibling input."""
    problem = tiny(
        [[1.0, 1.0], [2.0, 2.0], [3.0, 5.0], [1.0, 1.0], [1.0, 1.0]],
        [(0, 4.0, [2]), (1, 4.0, [2]), (2, 4.0, [4]), (3, 4.0, [4])],
        links="free",
        latency_s=0.0,
    )
    b = episode_instance(problem)
    trace = new_trace(problem.n, problem.m)
    numbers = no_policy(problem.n)
    numbers.score[:] = [5, 4, 2, 3, 1]
    simulate_episode(b, numbers, NO_RULE, np.array([0, 1, 0, 1, 0]), 0.0, one(), trace)
    assert trace.step.tolist() == [0, 1, 3, 2, 4]
    assert trace.ready.tolist() == [0, 0, 2, 0, 4]
    seen = trace.seen[2]
    assert (seen[:, INPUTS] * b.whole_s).tolist() == pytest.approx([6.0, 5.0])
    assert (seen[:, LOAD] * b.whole_s).tolist() == pytest.approx([1.0, 3.0])
    assert (seen[:, START] * b.whole_s).tolist() == pytest.approx([6.0, 5.0])
    assert (seen[:, SENT] * b.unit_s).tolist() == pytest.approx([4.0, 4.0])
    assert (seen[:, SIBLINGS] * b.unit_s).tolist() == pytest.approx([0.0, 4.0])
    assert (seen[:, END] * b.unit_s).tolist() == pytest.approx([0.0, 1.0])
    loads = new_trace(problem.n, problem.m)
    board = episode_instance(problem, by_load=True)
    simulate_episode(board, numbers, NO_RULE, np.array([0, 1, 0, 1, 0]), 0.0, one(), loads)
    assert (loads.seen[2, :, START] * b.whole_s).tolist() == pytest.approx([1.0, 3.0])


def test_critical_paths_are_the_longest_ones() -> None:
    """Upwards through the later of two producers, though the other one leads to more work."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6)]
    tensors = [(a, 0.0, [b]) for a, b in edges]
    problem = tiny([[s] for s in (1.0, 5.0, 2.0, 1.0, 3.0, 2.0, 1.0)], tensors)
    down, up = _critical_paths(episode_instance(problem))
    assert down[1][down[0] == 0].tolist() == [0, 1, 3, 4, 6]
    assert up[1][up[0] == 6].tolist() == [6, 4, 3, 1, 0]
    assert up[1][up[0] == 5].tolist() == [5, 3, 1, 0]


def test_the_sibling_rule_joins_what_will_be_summed() -> None:
    """Four products, summed in pairs over dear links: each pair lands on one device."""
    problem = tiny(
        [[1.0, 1.0]] * 4 + [[0.1, 0.1]] * 2,
        [(0, 4.0, [4]), (1, 4.0, [4]), (2, 4.0, [5]), (3, 4.0, [5])],
        links="free",
    )
    b = episode_instance(problem)
    blind = ruled_episode(b, 0.0, 0.0, 0.0, one()).place
    joined = ruled_episode(b, 1.0, 0.0, 0.0, one()).place
    assert joined.tolist() == [0, 0, 1, 1, 0, 1]
    assert blind[0] != blind[1]


def test_episodes_are_drawn_with_the_likelihood_that_learning_uses() -> None:
    """Shares of drawn first choices and devices equal the policy's chances; noise 0 takes the best.

    Two operators without inputs: the first choice is SEL's softmax, its device PLC's.
    """
    problem = tiny([[1.0, 2.0], [2.0, 1.0]], [], links="free")
    training = _DualTraining(Doppler(), Evaluations(problem))
    policy = training.policy
    traces = training.drawn(2000)
    first = np.array([int(t.step[1] == 0) for t in traces])
    likely = policy.likelihood(traces[:400])
    score = policy.encoded().score
    expected = 1.0 / (1.0 + np.exp(score[0] - score[1]))
    assert first.mean() == pytest.approx(expected, abs=0.03)
    chosen = likely.chosen.detach().numpy()
    place = np.stack([t.place for t in traces])
    step = np.stack([t.step for t in traces])
    at_first = np.take_along_axis(place, step.argsort(axis=1), axis=1)[:, 0]
    for k in (0, 1):
        mine = (first == k) & (at_first == 0)
        seen = [i for i in range(400) if mine[i]]
        assert mine.sum() / (first == k).sum() == pytest.approx(float(chosen[seen[0], 0]), abs=0.04)


def test_groups_and_refusals_are_kept_in_every_profile() -> None:
    """The judge checks them; no plan is worse than the best single device."""
    for seed in range(3):
        problem = free(seed)
        for profile in ("repaired", "as_published"):
            planner = Doppler(samples=30, profile=profile, imitation=10)  # type: ignore[arg-type]
            evaluations = Evaluations(problem, Context(seed=seed), limit=30)
            planner.learn(evaluations)
            found = judge(problem, evaluations.best.plan())
            assert evaluations.count <= 30 or evaluations.count <= problem.m + 2
            if found.feasible:
                assert found.value <= evaluations.trivial_s


def test_repaired_beats_as_published_and_the_teacher_is_imitated(tmp_path: Path) -> None:
    """On a generated tensor program, at 60 evaluations."""
    problem = blocks(tmp_path, 4)
    values = {}
    for profile in ("repaired", "as_published"):
        planner = Doppler(samples=60, profile=profile)  # type: ignore[arg-type]
        plan = proposal_of(planner(problem, Context(seed=1))).plan
        again = proposal_of(planner(problem, Context(seed=1))).plan
        assert plan.placement.tolist() == again.placement.tolist()
        values[profile] = judge(problem, plan).value
    assert values["repaired"] < values["as_published"]


def test_imitation_makes_the_teacher_likely(tmp_path: Path) -> None:
    """Its devices get likelier."""
    problem = blocks(tmp_path, 5)
    training = _DualTraining(Doppler(deviations=0.5, imitation=40), Evaluations(problem))
    trace = training.ruled(1.0, 0.25)
    before = float(training.policy.likelihood([trace]).device.detach())
    training._imitate([training.along(trace.place)])
    assert float(training.policy.likelihood([trace]).device.detach()) > 0.5 * before > before


def test_a_checkpoint_is_taken_up_and_another_hidden_size_refused(tmp_path: Path) -> None:
    """Parameters suit other graphs; a damaged file is an error."""
    problem, other = blocks(tmp_path, 6), free(3)
    evaluations = Evaluations(problem, limit=40)
    planner = Doppler(samples=40)
    planner.learn(evaluations)
    path = tmp_path / "policy.safetensors"
    save_parameters(path, evaluations.parameters, planner.schema(problem))
    taken = Doppler(samples=20, checkpoint=str(path))
    judge(other, proposal_of(taken(other, Context())).plan)
    policy = _DualPolicy(planner, episode_instance(problem))
    policy.load(evaluations.parameters)
    for name, value in policy.state().items():
        assert np.array_equal(value, evaluations.parameters[name])
    with pytest.raises(InputError, match="another size"):
        Doppler(samples=20, hidden=8, checkpoint=str(path))(other, Context())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged"):
        taken(other, Context())


def test_ctrl_c_gives_the_best_so_far(tmp_path: Path) -> None:
    """Interrupted by its first report of progress after the trivial plans."""
    calls = []

    def stop(**_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt

    problem = blocks(tmp_path, 7)
    proposal = proposal_of(Doppler(samples=2000)(problem, Context(progress=stop)))
    assert proposal.interrupted
    judge(problem, proposal.plan)


def test_large_problems_are_declined() -> None:
    """Likelihoods would not fit the memory."""
    large = tiny([[1.0]] * 4001)
    assert "4000" in str(Doppler().unsupported_reason(large))
    assert NOT_FORCED.size == 0
