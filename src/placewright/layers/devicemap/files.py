"""Problems and plans of device maps as JSON: the format ``devicemap/1``, as ``devicemap:FILE``."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import cluster_data
from placewright.cluster.schema import ClusterFile
from placewright.errors import InputError, UnknownNameError
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import finite, read_data, write_data
from placewright.layers.devicemap.judge import MapJudgement, RangeCost, judge
from placewright.layers.devicemap.model import FORMATS, LanguageModel, Layer
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem, Objective
from placewright.layers.generation.times import LayerTimes, StepTimes
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.wing import Document, Format

MOST_LAYERS = 10_000

Count = Annotated[int, Field(ge=0, le=10**15)]
Tokens = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class LayerEntry(FileModel):
    """A layer: see `placewright.layers.devicemap.model.Layer`."""

    name: Annotated[str, Field(min_length=1)]
    modules: tuple[str, ...] = ()
    parameters: Count
    matrices: Count = 0
    multiplied: Count = 0
    experts: Count = 0
    expert_count: Count = 0
    experts_chosen: Count = 0
    cache_width: Count = 0
    window: Count = 0
    attention_width: Count = 0
    workspace: Count = 0
    prompt_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    decodes: bool = True
    tied: str = ""


class LanguageModelEntry(FileModel):
    """Layers in the order in which tokens pass them, in elements and parameters."""

    name: str
    architecture: str = ""
    layers: Annotated[list[LayerEntry], Field(min_length=1, max_length=MOST_LAYERS)]
    hidden: Annotated[int, Field(ge=1, le=10**9)]
    form: str = "bf16"
    longest: Tokens = 0
    block_name: str = ""


Visits = list[Annotated[float, Field(ge=-1e9, le=1e9)]]


class StepEntry(FileModel):
    """See `placewright.layers.generation.times.StepTimes`."""

    users: Annotated[int, Field(ge=1, lt=2**31)]
    block_s: list[Seconds]
    head_s: list[Seconds]
    visit_s: Visits
    answer_s: list[Seconds]


class TimesEntry(FileModel):
    """What workers took: see `placewright.layers.generation.times.LayerTimes`."""

    tokens: Annotated[int, Field(ge=1, lt=2**31)]
    block_s: list[Seconds]
    head_s: list[Seconds]
    prompt_block_s: list[Seconds]
    prompt_head_s: list[Seconds]
    visit_s: Visits
    answer_s: list[Seconds]
    latency_s: list[list[Seconds | None]]
    seconds_per_byte: list[list[Seconds | None]]
    busy: list[StepEntry] = Field(default=[], max_length=64)

    def made(self, devices: int) -> LayerTimes:
        """The times, where they are of so many devices.

        Raises `InputError`: a row is of another number.
        """
        rows = self.model_dump()
        for name in ("latency_s", "seconds_per_byte"):
            rows[name] = [[math.inf if x is None else x for x in row] for row in rows[name]]
        busy = rows.pop("busy")
        lists = [x for name, x in rows.items() if name != "tokens"]
        lists += [*rows["latency_s"], *rows["seconds_per_byte"]]
        lists += [x for each in busy for name, x in each.items() if name != "users"]
        for each in lists:
            if len(each) != devices:
                raise InputError(
                    "times are of another number of devices",
                    by=f"{len(each)} and {devices}",
                    hint="measure on this cluster",
                )
        counts = [each["users"] for each in busy]
        if busy and (counts[0] != 1 or any(a >= b for a, b in pairwise(counts))):
            raise InputError(
                "numbers of users of measured steps do not rise from 1",
                by=", ".join(map(str, counts))[:200],
                hint="measure again",
            )
        return LayerTimes(**rows, busy=tuple(StepTimes(**each) for each in busy))


class MapFile(FileModel):
    """A language model, the devices, and what is asked."""

    format: Literal["devicemap/1"] = "devicemap/1"
    language_model: LanguageModelEntry
    cluster: ClusterFile
    context: Annotated[int, Field(ge=1, lt=2**31)]
    users: Annotated[int, Field(ge=1, lt=2**31)] = 1
    prompt: Tokens = 0
    dtype: str = "bf16"
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    objective: Objective = "latency"
    times: TimesEntry | None = None


class RangeEntry(FileModel):
    """Layers [start, end) of a device; bytes and seconds are for people."""

    device: str
    start: int
    end: int
    from_disk: int = 0
    node: str = ""
    layers: tuple[str, str] = ("", "")
    weight_bytes: float = 0.0
    disk_bytes: float = 0.0
    cache_bytes: float = 0.0
    workspace_bytes: float = 0.0
    usable_bytes: float | None = None
    token_s: float = 0.0
    prefill_s: float = 0.0


class HopEntry(FileModel):
    """What passes from a device to the next one, for people."""

    source: str
    target: str
    token_bytes: float
    token_s: float | None


class MapEntry(FileModel):
    """Ranges in the order in which tokens pass them."""

    ranges: list[RangeEntry]
    hops: list[HopEntry] = Field(default_factory=list)
    token_s: float | None = None
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    groups: int = 1


class MapPlanFile(ResultFile):
    """A plan with its result; what ``devicemap`` adds is for people."""

    plan: MapEntry
    model: str = ""
    architecture: str = ""
    cluster: str = ""
    dtype: str = ""
    context: int = 0
    users: int = 0
    prompt: int = 0
    memory_share: float = 0.0
    physical_bound_s: float | None = None
    token_s: float | None = None
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    groups: int = 1
    times_from: str = ""
    left_out: dict[str, str] = Field(default_factory=dict)
    simpler: dict[str, Any] | None = None
    alternatives: dict[str, Any] = Field(default_factory=dict)


problem_document = Document("devicemap", ("language_model.layers", "context"), MapFile)
plan_document = Document("devicemap-plan", ("plan.ranges",), MapPlanFile)


def read_problem(path: str | Path) -> MapProblem:
    """Read a model and devices.

    Raises `InputError`, which names the file, the field, and what is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name="", text=text)


formats = (Format("devicemap", "a language model's layers on devices", read_problem),)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> MapProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(MapFile, data, where=where, text=text)
    if entry.dtype not in FORMATS:
        raise UnknownNameError("number format", entry.dtype, FORMATS, where=f"{where}: dtype")
    with errors_in(where):
        model = entry.language_model
        layers = tuple(Layer(**each.model_dump()) for each in model.layers)
        cluster = entry.cluster
        return MapProblem(
            LanguageModel(**(model.model_dump() | {"layers": layers})),
            Cluster(cluster.made_devices(), cluster.made_links(), cluster.name or "cluster"),
            entry.context,
            entry.users,
            entry.prompt,
            entry.dtype,
            entry.memory_share,
            entry.objective,
            None if entry.times is None else entry.times.made(len(cluster.devices)),
        )


def write_problem(problem: MapProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def problem_json(p: MapProblem) -> dict[str, Any]:
    """A problem as the data of its file; what a layer has not is left out."""
    usual = asdict(Layer("", (), 0))
    layers = [
        {key: value for key, value in asdict(layer).items() if value != usual[key]}
        | {"parameters": layer.parameters}
        for layer in p.model.layers
    ]
    asked = ("context", "users", "prompt", "dtype", "memory_share", "objective")
    return {
        "format": "devicemap/1",
        "language_model": asdict(p.model) | {"layers": layers},
        "cluster": cluster_data(p.cluster),
        **{name: getattr(p, name) for name in asked},
        **({} if p.times is None else {"times": _times_json(p.times)}),
    }


def _times_json(times: LayerTimes) -> dict[str, Any]:
    found = asdict(times)
    for name in ("latency_s", "seconds_per_byte"):
        found[name] = [[finite(x) for x in row] for row in found[name]]
    return found


def read_proposal(path: str | Path, problem: MapProblem) -> Proposal[MapPlan]:
    """Read the plan of a result file for `problem`.

    Raises `InputError`: a device that does not exist, or ranges that are no plan.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(MapPlanFile, data, where=where, text=text).plan
    names = problem.cluster.device_names
    for each in entry.ranges:
        if each.device not in names:
            raise UnknownNameError("device", each.device, names, where=f"{where}: plan.ranges")
    plan = MapPlan(
        tuple(
            LayerRange(names.index(each.device), each.start, each.end, each.from_disk)
            for each in entry.ranges
        )
    )
    with errors_in(where):
        judge(problem, plan)
    return Proposal(plan)


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    return head_json(result) | {"plan": plan_json(result.judgement)}


def plan_json(judged: MapJudgement) -> dict[str, Any]:
    """A plan with what each device holds, and what passes between them."""
    return {
        "ranges": [
            _range_json(judged.problem, *pair)
            for pair in zip(judged.plan.ranges, judged.costs, strict=True)
        ],
        "hops": _hops_json(judged),
        "token_s": finite(judged.token_s),
        "tokens_per_s": finite(judged.tokens_per_s),
        "first_token_s": finite(judged.first_token_s),
        "groups": judged.groups,
    }


def _range_json(problem: MapProblem, each: LayerRange, cost: RangeCost) -> dict[str, Any]:
    layers, device = problem.model.layers, problem.cluster.devices[each.device]
    return {
        "device": device.name,
        "node": device.node,
        "start": each.start,
        "end": each.end,
        "layers": [layers[each.start].name, layers[each.end - 1].name],
        "from_disk": each.from_disk,
        "weight_bytes": cost.weight_bytes,
        "disk_bytes": cost.disk_bytes,
        "cache_bytes": cost.cache_bytes,
        "workspace_bytes": cost.workspace_bytes,
        "usable_bytes": finite(float(problem.capacity[each.device])),
        "token_s": cost.token_s,
        "prefill_s": cost.prefill_s,
    }


def _hops_json(judged: MapJudgement) -> list[dict[str, Any]]:
    """Hidden states of a token from device to device, and the token back to the first one."""
    problem, devices = judged.problem, [each.device for each in judged.plan.ranges]
    names, hop_s = problem.cluster.device_names, problem.hop_s(1)
    found = [
        (a, b, problem.model.hidden * problem.form.other_bytes, float(hop_s[a, b]))
        for a, b in pairwise(devices)
    ]
    if found:
        a, b = devices[-1], devices[0]
        found.append((a, b, 0.0, float(problem.return_s(1)[a, b])))
    keys = ("source", "target", "token_bytes", "token_s")
    return [
        dict(zip(keys, (names[a], names[b], size, finite(s)), strict=True))
        for a, b, size, s in found
    ]
