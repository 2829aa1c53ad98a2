"""Problems and plans of wing 3 as YAML or JSON, packed or not: see `placewright.io.stored`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, look_up
from placewright.io.boundary import errors_in, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, head_json
from placewright.planning.wing import Document
from placewright.samples.judge import SampleJudgement, judge
from placewright.samples.plan import SamplePlan, check_plan, nothing
from placewright.samples.problem import SampleProblem
from placewright.samples.schema import MoveEntry, SampleFile, SamplePlanFile, problem_of

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
    with errors_in(where):
        return problem_of(entry, name)


def write_problem(problem: SampleProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def read_proposal(path: str | Path, problem: SampleProblem) -> Proposal[SamplePlan]:
    """Read a plan and what was proved about it, if that was for the very same problem.

    Raises `InputError`: a node or class that does not exist, a move over no link.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(SamplePlanFile, data, where=where, text=text)
    plan = _plan_of(entry.plan.moves, problem, where)
    with errors_in(where):
        check_plan(problem, plan)
    bound, note = entry.plan.lower_bound_s, entry.plan.note
    same = entry.problem_hash == problem.hash() and bound > 0
    return Proposal(plan, bound if same else None, note=note)


def _plan_of(moves: list[MoveEntry], problem: SampleProblem, where: str) -> SamplePlan:
    node = {name: i for i, name in enumerate(problem.node_names)}
    kind = {name: c for c, name in enumerate(problem.class_names)}
    rows = []
    for k, move in enumerate(moves):
        at = f"{where}: plan.moves[{k}]"
        source = look_up("node", move.source, node, at)
        target = look_up("node", move.target, node, at)
        named = problem.class_names[0] if move.sample_class is None else move.sample_class
        if move.sample_class is None and problem.k > 1:
            raise InputError("must say which class", where=at)
        rows.append((source, target, move.samples, look_up("class", named, kind, at)))
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


UNNAMED = ("samples",)
"""The class of samples that have none."""

EXAMPLE_NODES = [
    {"name": name, "samples": count, "seconds_per_sample": each_s, "uplink": rate, "downlink": rate}
    for name, count, each_s, rate in (
        ("cellar", 900, "4ms", "20Mbps"),
        ("roof", 400, "2ms", "40Mbps"),
        ("server", 100, "0.5ms", "100Mbps"),
    )
]
"""Nodes of a file as a form of it offers them at first."""

FEW_NODES = 24
"""Up to here links are written one by one, for people; above, as a table."""


def problem_json(problem: SampleProblem) -> dict[str, Any]:
    """What `placewright.samples.files.read_problem` reads back equal.

    Numbers that come from no file, times that are no bytes divided by a bandwidth, may change in
    their last bit.

    Raises `InputError`: samples have no size: links cannot be written in bytes per second.
    """
    p = problem
    if not p.sample_bytes > 0:
        raise InputError(
            "samples have no size, so that links have no bandwidth",
            where=p.name,
            by=f"sample_bytes is {p.sample_bytes:g}",
            hint="problem.replace(sample_bytes=...) gives them one",
        )
    data: dict[str, Any] = {
        "schema_version": 1,
        "name": p.name,
        "nodes": [_node(p, i) for i in range(p.n)],
        "sample_bytes": _short(p.sample_bytes),
        "epochs": p.epochs,
        "overlap": str(p.overlap),
        "relay": p.relay,
        "duplex": str(p.duplex),
        "sync_s": p.sync_s,
        "batches": str(p.batches),
        "ports": str(p.ports),
    }
    if np.isfinite(p.label_mix):
        data["label_mix"] = p.label_mix
    return data | _links(p)


def _node(p: SampleProblem, i: int) -> dict[str, Any]:
    node: dict[str, Any] = {"name": p.node_names[i]}
    named = p.class_names != UNNAMED
    by_class = dict(zip(p.class_names, p.samples[i].tolist(), strict=True))
    node |= {"classes": by_class} if named else {"samples": int(p.held[i])}
    node["seconds_per_sample"] = float(p.seconds_per_sample[i])
    if p.fixed_s[i]:
        node["fixed_s"] = float(p.fixed_s[i])
    if np.isfinite(p.storage[i]):
        node["storage"] = int(p.storage[i])
    if p.keep[i].any():
        kept = p.keep[i].tolist()
        node["keep"] = dict(zip(p.class_names, kept, strict=True)) if named else kept[0]
    return node


def _links(p: SampleProblem) -> dict[str, Any]:
    send, receive = _bandwidth(p, p.send_s), _bandwidth(p, p.receive_s)
    linked = (send > 0) & (receive > 0)
    price = _price_per_byte(p)
    plain = len(np.unique(p.latency_s[linked])) < 2 and len(np.unique(price[linked])) < 2
    same = np.array_equal(send, receive)
    if not plain or (same and p.n <= FEW_NODES):
        return {"links": _one_by_one(p, send, receive, price)}
    table: dict[str, Any] = {"bandwidth": _rows(send)}
    if not same:
        table["receive_bandwidth"] = _rows(receive)
    if linked.any():
        table["latency"] = float(p.latency_s[linked].max())
        table["price_per_byte"] = float(price[linked].max())
    return table


def _one_by_one(
    p: SampleProblem, send: FloatArray, receive: FloatArray, price: FloatArray
) -> list[dict[str, Any]]:
    links = []
    for i, j in np.argwhere((send > 0) & (receive > 0)).tolist():
        both = all(t[i, j] == t[j, i] for t in (send, receive, p.latency_s, price))
        if both and j < i:
            continue
        most = float(max(send[i, j], receive[i, j]))
        link = {
            "from": p.node_names[i],
            "to": p.node_names[j],
            "bandwidth": _short(most),
            "latency": float(p.latency_s[i, j]),
        }
        link |= {"send_bandwidth": _short(float(send[i, j]))} if send[i, j] < most else {}
        link |= {"receive_bandwidth": _short(float(receive[i, j]))} if receive[i, j] < most else {}
        link |= {} if both else {"duplex": False}
        link |= {"price_per_byte": float(price[i, j])} if price[i, j] else {}
        links.append(link)
    return links


def _bandwidth(p: SampleProblem, port_s: FloatArray) -> FloatArray:
    """Bytes per second, whole where whole numbers say the same; 0 without a link."""
    with np.errstate(divide="ignore", over="ignore"):
        exact = p.sample_bytes / port_s
        found = exact
        for guess in (*_near(exact), np.rint(exact)):
            found = np.where(p.sample_bytes / guess == port_s, guess, found)
    result: FloatArray = np.where(np.isfinite(port_s), found, 0.0)
    return result


def _price_per_byte(p: SampleProblem) -> FloatArray:
    found = p.price_s / p.sample_bytes
    for guess in _near(found):
        found = np.where(guess * p.sample_bytes == p.price_s, guess, found)
    return found


def _near(exact: FloatArray) -> list[FloatArray]:
    """Neighbours, `exact` last: dividing twice may end a bit or two beside a file's number."""
    up, down = np.nextafter(exact, np.inf), np.nextafter(exact, 0.0)
    return [np.nextafter(up, np.inf), np.nextafter(down, 0.0), up, down, exact]


def _rows(table: FloatArray) -> list[list[float | int | None]]:
    return [[_short(x) for x in row] for row in table.tolist()]


def _short(value: float) -> float | int | None:
    """Whole numbers as such, and ``None`` for what nothing limits."""
    if np.isinf(value):
        return None
    return int(value) if value == int(value) else value
