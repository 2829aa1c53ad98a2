"""Problems and plans of wing 3 as YAML or JSON, packed or not: see `placewright.io.stored`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, PlacewrightError, UnknownNameError
from placewright.io.boundary import placed, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, head_json
from placewright.planning.wing import Document
from placewright.samples.formats.reading import problem_of
from placewright.samples.formats.schema import MoveEntry, SampleFile, SamplePlanFile
from placewright.samples.formats.writing import problem_json
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import SamplePlan, check_plan, nothing
from placewright.samples.problem import SampleProblem

problem_document = Document("samples", ("nodes", "sample_bytes"), SampleFile)
plan_document = Document("samples-plan", ("plan.moves",), SamplePlanFile)


def read_problem(path: str | Path) -> SampleProblem:
    """Read nodes and links.

    Raises `InputError`, which names the file, the line or the field, and what is wrong.
    Raises `InfeasibleError`: the samples do not fit; says by how many.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> SampleProblem:
    """The problem of a file's data."""
    entry = validate(SampleFile, data, where=where, text=text)
    try:
        return problem_of(entry, name)
    except PlacewrightError as error:
        raise placed(error, where) from None


def write_problem(problem: SampleProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def read_plan(path: str | Path, problem: SampleProblem) -> SamplePlan:
    """Read the moves of a plan file for `problem`.

    Raises `InputError`: a node or class that does not exist, a move over no link.
    """
    return read_proposal(path, problem).plan


def read_proposal(path: str | Path, problem: SampleProblem) -> Proposal[SamplePlan]:
    """Read a plan and what was proved about it, if that was for the very same problem.

    Raises `InputError` as `read_plan`.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(SamplePlanFile, data, where=where, text=text)
    plan = _plan_of(entry.plan.moves, problem, where)
    try:
        check_plan(problem, plan)
    except InputError as error:
        raise placed(error, where) from None
    bound, note = entry.plan.lower_bound_s, entry.plan.note
    same = entry.problem_hash == problem.hash() and bound > 0
    return Proposal(plan, bound if same else None, note=note)


def _plan_of(moves: list[MoveEntry], problem: SampleProblem, where: str) -> SamplePlan:
    node = {name: i for i, name in enumerate(problem.node_names)}
    kind = {name: c for c, name in enumerate(problem.class_names)}
    rows = []
    for k, move in enumerate(moves):
        at = f"{where}: plan.moves[{k}]"
        source = _index("node", move.source, node, at)
        target = _index("node", move.target, node, at)
        named = problem.class_names[0] if move.sample_class is None else move.sample_class
        if move.sample_class is None and problem.k > 1:
            raise InputError("must say which class", where=at)
        rows.append((source, target, move.samples, _index("class", named, kind, at)))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return SamplePlan(columns[0], columns[1], columns[2], columns[3])


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    return head_json(result) | {"plan": plan_json(result.judgement, result.proposal)}


def plan_json(
    judgement: SampleJudgement, proposal: Proposal[SamplePlan] | None = None
) -> dict[str, Any]:
    """A plan and how the judge saw it.

    ``played_s`` is the value with queued ports: what transfers take that wait for each other.
    """
    problem, plan = judgement.problem, judgement.plan
    known = proposal or Proposal(plan)
    names, classes = problem.node_names, problem.class_names
    moved = int(plan.count.sum())
    still = judge(problem, nothing())
    return {
        "moves": [
            {"from": names[i], "to": names[j], "samples": count}
            | ({"class": classes[c]} if problem.k > 1 else {})
            for i, j, count, c in zip(
                plan.source.tolist(),
                plan.target.tolist(),
                plan.count.tolist(),
                plan.sample_class.tolist(),
                strict=True,
            )
        ],
        "lower_bound_s": known.bound or 0.0,
        "note": "interrupted" if known.interrupted else known.note,
        "moved_samples": moved,
        "moved_bytes": moved * problem.sample_bytes,
        "speed_up": still.value / judgement.value if judgement.value > 0 else None,
        "played_s": judgement.queued_value(),
        "price_s": judgement.price_s,
        "nodes": [
            {
                "name": names[i],
                "samples_before": int(problem.held[i]),
                "samples_after": int(judgement.held[i].sum()),
                "send_s": float(judgement.out_s[i]),
                "receive_s": float(judgement.in_s[i]),
                "transfer_s": float(judgement.moved_s[i]),
                "training_s": float(judgement.trained_s[i]),
                "end_s": float(judgement.end_s[i]),
            }
            for i in range(problem.n)
        ],
    }


def _index(kind: str, name: str, index: dict[str, int], where: str) -> int:
    if name not in index:
        raise UnknownNameError(kind, name, index, where=where)
    return index[name]
