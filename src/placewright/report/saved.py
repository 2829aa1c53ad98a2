"""Pages of files: whatever was saved can be looked at again, without what it was made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import UnknownNameError
from placewright.report.candidates import Contest
from placewright.report.gantt import gantt
from placewright.report.sheet import definitions, facts, heading, legend, section, sheet
from placewright.report.svg import tag, text
from placewright.report.text import percent, seconds
from placewright.result import Candidate, Status
from placewright.trace import Trace

Data = dict[str, Any]


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a file as text.

    Parameters
    ----------
    kind
        ``graph``, ``problem``, ``plan`` or ``cluster``.
    data
        What is in it.
    """
    pages: Mapping[str, Callable[[Data, Path], str]] = {
        "plan": _plan_page,
        "problem": _problem_page,
        "graph": _graph_page,
        "cluster": _cluster_page,
    }
    return pages[kind](data, path)


def saved_trace(data: Data, where: str = "plan") -> Trace:
    """The schedule and the transfers of a saved plan.

    Links are one lane per pair of devices: a plan does not say which of them share a channel.
    """
    plan = data["plan"]
    operators, transfers = plan.get("schedule") or [], plan.get("transfers") or []
    devices = tuple(dict.fromkeys(_device_names(plan)))
    _check_known(devices, operators, where)
    pairs = list(dict.fromkeys(f"{t['source']}->{t['target']}" for t in transfers))
    lanes = {name: k for k, name in enumerate((*devices, *pairs))}
    lane = [lanes[o["device"]] for o in operators]
    lane += [lanes[f"{t['source']}->{t['target']}"] for t in transfers]
    both = [*operators, *transfers]
    return Trace(
        lanes=tuple(lanes),
        devices=len(devices),
        labels=(*(o["op"] for o in operators), *(t["tensor"] for t in transfers)),
        lane=np.array(lane, dtype=np.int64),
        label=np.arange(len(both)),
        start_s=np.array([span["start_s"] for span in both], dtype=np.float64),
        end_s=np.array([span["end_s"] for span in both], dtype=np.float64),
    )


def _check_known(devices: Sequence[str], spans: Sequence[Data], where: str) -> None:
    strange = next((span for span in spans if span["device"] not in devices), None)
    if strange is not None:
        place = f"{where}: plan.schedule, operator {strange['op']!r}"
        raise UnknownNameError("device", strange["device"], devices, where=place)


def _plan_page(data: Data, path: Path) -> str:
    from placewright.boundary import validate
    from placewright.operators.formats.schema import PlanFile

    validate(PlanFile, data, where=str(path))
    trace, value = saved_trace(data, str(path)), _number(data.get("value"))
    name = str(data.get("problem") or path.stem)
    count = Counter(data["plan"]["placement"].values())
    devices = trace.lanes[: trace.devices]
    body = [
        heading(name, f"{data.get('objective', '')} plan, from {path.name}"),
        facts(
            [
                ("predicted", seconds(value), "lead"),
                ("lower bound", seconds(_number(data.get("lower_bound"))), ""),
                ("gap", percent(_number(data.get("gap"))), ""),
                ("status", str(data.get("status", "-")), ""),
                ("planner", str(data.get("planner", "-")), ""),
            ]
        ),
        legend(devices, [f"{count[d]} operators" for d in devices]),
        section(
            "Timeline",
            "Who runs what when. Coloured lanes are devices, grey ones the links between them.",
            tag("div", gantt(trace, title="predicted timeline"), class_="scroll"),
        ),
        _candidates(data),
        section("Provenance", "", definitions(_scalars(data))),
    ]
    return sheet(f"{name}: {seconds(value)}", *body)


def _candidates(data: Data) -> str:
    tried = tuple(
        Candidate(
            str(c["planner"]),
            _number(c["value"]),
            Status(c["status"]),
            _number(c["runtime_s"]),
            str(c.get("note", "")),
        )
        for c in data.get("candidates") or []
    )
    if len(tried) < 2:
        return ""
    bound = _number(data.get("lower_bound"))
    contest = Contest(tried, str(data["planner"]), _number(data["value"]), bound)
    return section("Candidates", "Every plan that was tried, by one judge.", contest.table())


def _problem_page(data: Data, path: Path) -> str:
    from placewright.operators.files import read_problem

    problem = read_problem(path)
    return _text_page(problem.name, "problem", path, repr(problem))


def _graph_page(data: Data, path: Path) -> str:
    from placewright.graph.files import read_graph
    from placewright.report.structure import structure_view

    graph = read_graph(path)
    picture, caption, names = structure_view(graph)
    body = [
        heading(graph.name, f"graph, from {path.name}"),
        facts(
            [
                ("operators", str(len(graph.operators)), "lead"),
                ("tensors", str(len(graph.tensors)), ""),
                ("GFLOP", f"{graph.flops / 1e9:.3g}", ""),
            ]
        ),
        legend(names, ["" for _ in names]),
        section("Graph", caption, tag("div", picture, class_="scroll")),
        section("Operators", "", tag("pre", text(repr(graph)))),
    ]
    return sheet(graph.name, *body)


def _cluster_page(data: Data, path: Path) -> str:
    from placewright.cluster.files import read_cluster

    cluster = read_cluster(path)
    return _text_page(cluster.name, "cluster", path, repr(cluster))


def _text_page(name: str, kind: str, path: Path, table: str) -> str:
    body = section(kind.capitalize(), "", tag("pre", text(table), class_="scroll"))
    return sheet(name, heading(name, f"{kind}, from {path.name}"), body)


def _device_names(plan: Data) -> list[str]:
    named = plan.get("devices") or sorted(set(plan["placement"].values()))
    return [str(name) for name in named]


def _scalars(data: Data) -> dict[str, str]:
    return {k: str(v) for k, v in data.items() if not isinstance(v, dict | list)}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
