"""Problems and plans of layer ranges as JSON: the format ``llmflow/1``, as ``flow:FILE``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from placewright.errors import InputError, UnknownNameError, check_known
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.layers.flow.problem import (
    LARGEST_RATE,
    MOST_LAYERS,
    MOST_NODES,
    FlowJudgement,
    FlowProblem,
    LayerRanges,
    check_plan,
)
from placewright.measurement import Measurement
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.views import Data, GenericViews, preformatted
from placewright.planning.wing import Document, Format
from placewright.report.text import plain_table

Rate = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

SOURCE, SINK = "source", "sink"
"""Names of the coordinator at the ends of links."""


class ModelEntry(FileModel):
    """A language model of equal layers; bytes are per layer and per token."""

    name: str = ""
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    layer_bytes: Amount = 0.0
    token_bytes: Positive = 2.0
    activation_bytes: Positive = 1.0


class NodeEntry(FileModel):
    """A machine: tokens/s when it holds 1, 2, ..., `max_layers` layers."""

    name: Annotated[str, Field(min_length=1)]
    type: str = ""
    max_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)]
    throughput_tokens_per_s: list[Rate]


class LinkEntry(FileModel):
    """A directed link; `bytes_per_s` and `latency_s` are for people."""

    source: str
    target: str
    tokens_per_s: Rate
    bytes_per_s: Amount | None = None
    latency_s: Amount = 0.0


class FlowFile(FileModel):
    """Machines and links; `origin`, `pruning` and `published` are not read."""

    format: Literal["llmflow/1"] = "llmflow/1"
    name: str = ""
    model: ModelEntry
    partial_inference: bool = False
    nodes: Annotated[list[NodeEntry], Field(min_length=1, max_length=MOST_NODES)]
    links: list[LinkEntry]
    origin: Any = None
    pruning: Any = None
    published: Any = None


class RangesEntry(FileModel):
    """Layers [start, end) of every machine that holds any; tokens/s through it are for people."""

    placement: dict[str, tuple[int, int]]
    tokens_per_s: dict[str, float]


class RangesFile(ResultFile):
    """A plan with its result."""

    plan: RangesEntry


problem_document = Document("flow", ("nodes", "links", "model.num_layers"), FlowFile)
plan_document = Document("flow-plan", ("plan.placement", "plan.tokens_per_s"), RangesFile)


def read_problem(path: str | Path) -> FlowProblem:
    """Read machines and links.

    Raises `InputError`, which names the file, the field, and what is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


formats = (Format("flow", "layer ranges of a language model on machines and links", read_problem),)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> FlowProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(FlowFile, data, where=where, text=text)
    with errors_in(where):
        return FlowProblem(
            entry.model.num_layers,
            tuple(node.name for node in entry.nodes),
            tuple(node.type for node in entry.nodes),
            _rates(entry),
            *_links(entry),
            entry.partial_inference,
            entry.model.layer_bytes,
            entry.model.token_bytes,
            entry.model.activation_bytes,
            entry.name or name,
        )


def _rates(entry: FlowFile) -> FloatArray:
    widest = min(max(node.max_layers for node in entry.nodes), entry.model.num_layers)
    rates = np.zeros((len(entry.nodes), widest + 1))
    for i, node in enumerate(entry.nodes):
        table = node.throughput_tokens_per_s
        if len(table) != node.max_layers:
            raise InputError(
                "must have a number for each count of layers up to max_layers",
                where=f"nodes[{i}].throughput_tokens_per_s",
                by=f"{len(table)} numbers, max_layers is {node.max_layers}",
                hint="give as many numbers, or correct max_layers",
            )
        if node.name in (SOURCE, SINK):
            raise InputError(
                "is the coordinator's name",
                where=f"nodes[{i}].name",
                by=f"got {node.name!r}",
                hint="call the machine something else",
            )
        rates[i, 1 : min(widest, len(table)) + 1] = table[:widest]
    return rates


def _links(entry: FlowFile) -> tuple[FloatArray, FloatArray]:
    """Tokens/s and latencies from machine to machine."""
    names, n = [node.name for node in entry.nodes], len(entry.nodes)
    tails = {name: i for i, name in enumerate(names)} | {SOURCE: n}
    heads = {name: i for i, name in enumerate(names)} | {SINK: n + 1}
    rates, latency_s = np.zeros((n + 2, n + 2)), np.zeros((n + 2, n + 2))
    seen = np.zeros((n + 2, n + 2), dtype=bool)
    for k, link in enumerate(entry.links):
        for end, known in (("source", tails), ("target", heads)):
            if getattr(link, end) not in known:
                where = f"links[{k}].{end}"
                raise UnknownNameError("machine", getattr(link, end), known, where=where)
        at = tails[link.source], heads[link.target]
        if at[0] == at[1] or seen[at] or at == (n, n + 1):
            what = "is there twice" if seen[at] else "joins nothing that holds layers"
            by = f"from {link.source} to {link.target}"
            raise InputError(f"this link {what}", where=f"links[{k}]", by=by, hint="remove it")
        rates[at], latency_s[at], seen[at] = link.tokens_per_s, link.latency_s, True
    return rates, latency_s


def write_problem(problem: FlowProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def problem_json(p: FlowProblem) -> dict[str, Any]:
    """A problem as the data of its file."""
    tails, heads = (*p.node_names, SOURCE, SINK), (*p.node_names, SOURCE, SINK)
    return {
        "format": "llmflow/1",
        "name": p.name,
        "model": {
            "num_layers": p.layers,
            "layer_bytes": p.layer_bytes,
            "token_bytes": p.token_bytes,
            "activation_bytes": p.activation_bytes,
        },
        "partial_inference": p.partial_inference,
        "nodes": [
            {
                "name": name,
                "type": kind,
                "max_layers": int(most),
                "throughput_tokens_per_s": row[1 : most + 1].tolist(),
            }
            for name, kind, row, most in zip(
                p.node_names, p.node_types, p.rates, p.most.tolist(), strict=True
            )
        ],
        "links": [
            {
                "source": tails[a],
                "target": heads[b],
                "tokens_per_s": float(p.links[a, b]),
                "latency_s": float(p.latency_s[a, b]),
            }
            for a, b in np.argwhere(p.links > 0).tolist()
        ],
    }


def read_proposal(path: str | Path, problem: FlowProblem) -> Proposal[LayerRanges]:
    """Read the plan of a result file for `problem`.

    Raises `InputError`: a machine that does not exist, or layers that it cannot hold.
    """
    where = str(path)
    data, text = read_data(path)
    placement = validate(RangesFile, data, where=where, text=text).plan.placement
    for name in placement:
        check_known("machine", name, problem.node_names, where=f"{where}: plan.placement")
    ranges = [placement.get(name, (0, 0)) for name in problem.node_names]
    plan = LayerRanges(tuple(s for s, _ in ranges), tuple(e for _, e in ranges))
    with errors_in(where):
        check_plan(problem, plan)
    return Proposal(plan)


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    p, plan, judged = result.problem, result.plan, result.judgement
    held = {
        name: [s, e] for name, s, e in zip(p.node_names, plan.start, plan.end, strict=True) if e > 0
    }
    carried = dict(zip(p.node_names, judged.carried.tolist(), strict=True))
    return head_json(result) | {
        "plan": {"placement": held, "tokens_per_s": {name: carried[name] for name in held}}
    }


MOST_ROWS = 64


def ranges_table(judged: FlowJudgement) -> str:
    """A line per range of layers and type of machine."""
    p, plan = judged.problem, judged.plan
    rows: dict[tuple[int, int, str], list[int]] = {}
    for i in range(p.n):
        if judged.carried[i] > 0:
            rows.setdefault((plan.start[i], plan.end[i], p.node_types[i]), []).append(i)
    lines = []
    for (s, e, kind), own in sorted(rows.items())[:MOST_ROWS]:
        able, carried = p.rates[own, e - s].sum(), judged.carried[own].sum()
        names = ", ".join(p.node_names[i] for i in own[:3]) + (" ..." if len(own) > 3 else "")
        lines.append(
            (f"{s} .. {e - 1}", f"{len(own)} x {kind}", names, f"{carried:.5g}", f"{able:.5g}")
        )
    idle = [p.node_names[i] for i in range(p.n) if judged.carried[i] <= 0]
    rest = f"\nwithout tokens: {', '.join(idle[:16])}{', ...' if len(idle) > 16 else ''}"
    header = ("layers", "machines", "names", "tokens/s", "of at most")
    return plain_table(header, lines, "   rr") + (rest if idle else "")


class FlowViews(GenericViews):
    """How plans of layer ranges are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Machines with their layers, and what they carry of what they could."""
        return f"\n{ranges_table(result.judgement)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and who holds which layers."""
        yield from super().sections(result)
        subtitle = "Who holds which layers, and the tokens/s that pass."
        yield preformatted("Layer ranges", subtitle, ranges_table(result.judgement))

    def parts(self, data: Data) -> dict[str, str]:
        """Layers of every machine in a saved plan."""
        return {name: f"{s} .. {e - 1}" for name, (s, e) in data["plan"]["placement"].items()}


VIEWS = FlowViews()
