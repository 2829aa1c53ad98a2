"""Problems and plans of device maps as JSON, as ``devicemap:FILE``; their tables and pages.

The format is ``devicemap/1``. Pages show machines with the layers on them, their bytes, and links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import cluster_data
from placewright.cluster.schema import ClusterFile
from placewright.errors import InputError, check_known
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import finite, read_data, write_data
from placewright.layers.devicemap.judge import MapJudgement, RangeCost, judge
from placewright.layers.devicemap.model import FORMATS, LanguageModel, Layer
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem, Objective
from placewright.layers.generation.times import LayerTimes, StepTimes
from placewright.measurement import Measurement
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.views import Data, GenericViews, saved_plan_page
from placewright.planning.wing import Document, Format
from placewright.report.page import device_class, drawing, label, scroll, section, tag, text
from placewright.report.text import plain_table, seconds, size

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
    state_width: Count = 0
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
    check_known("number format", entry.dtype, FORMATS, where=f"{where}: dtype")
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
        check_known("device", each.device, names, where=f"{where}: plan.ranges")
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


WIDTH, BAR = 860.0, 420.0
KEY, ROW, HOP, TITLE = 30.0, 74.0, 34.0, 26.0
"""Heights of the key, a device, a link and a machine's name."""

KINDS = (("weights", 0.9), ("KV caches", 0.55), ("workspace", 0.3))
"""What is held, and how strongly it is drawn."""


def times(plan: Data) -> str:
    """Predicted times in a sentence."""
    rate = plan["tokens_per_s"]
    return (
        f"{_number(plan['token_s'])} per token of one stream, "
        f"{'-' if rate is None else f'{rate:.4g}'} tokens/s of all users, "
        f"first token after {_number(plan['first_token_s'])}"
    )


def ranges_table(plan: Data) -> str:
    """A line per device."""
    header = ("device", "layers", "weights", "KV caches", "workspace", "usable", "per token")
    rows = [
        (
            each["device"],
            _layers(each),
            size(each["weight_bytes"] + each["disk_bytes"]),
            size(each["cache_bytes"]),
            size(each["workspace_bytes"]),
            "-" if each["usable_bytes"] is None else size(each["usable_bytes"]),
            seconds(each["token_s"]),
        )
        for each in plan["ranges"]
    ]
    return plain_table(header, rows, "  rrrrr")


def map_section(plan: Data, measured: Data | None = None) -> str:
    """The map as people draw it, and the same as a table.

    `measured`: medians ``token_s`` and ``first_token_s`` of texts that were generated.
    """
    words = f"Predicted: {times(plan)}."
    if measured and measured.get("token_s"):
        first = measured.get("first_token_s")
        words += f" Measured: {seconds(measured['token_s'])} per token of one stream" + (
            f", first token after {seconds(first)}." if first else "."
        )
    table = tag("details", tag("summary", "As a table"), tag("pre", text(ranges_table(plan))))
    return section("Who holds which layers", words, scroll(map_drawing(plan)), table)


def map_drawing(plan: Data) -> str:
    """Machines from top to bottom, as tokens pass them: devices, their memory, links."""
    ranges, hops = plan["ranges"], plan["hops"]
    y, inside = KEY, list[str]()
    drawn = iter(zip_longest(ranges, hops[:-1]))
    for node, own in groupby(ranges, key=lambda each: each["node"]):
        count, top = len(list(own)), y
        y += TITLE
        for k in range(count):
            each, hop = next(drawn)
            inside.append(_device(each, ranges.index(each), y))
            y += ROW
            if hop is not None and k < count - 1:
                inside.append(_hop(hop, y))
                y += HOP
        frame = {"x": 0.5, "y": top, "width": WIDTH - 1, "height": y - top, "rx": 6}
        inside.insert(0, tag("rect", **frame, fill="none", stroke="currentColor", opacity=0.35))
        inside.append(label(12, top + 18, f"machine {node}", "busy"))
        if hop is not None:
            inside.append(_hop(hop, y))
            y += HOP
    if hops:
        back = f"the token goes back to {hops[-1]['target']}: {_number(hops[-1]['token_s'])}"
        inside.append(label(12, y + 20, back, "tick"))
        y += 26
    named = ", then ".join(f"{_layers(each)} on {each['device']}" for each in ranges)
    return drawing(WIDTH, y + 2, *_keys(), *inside, title=f"device map: {named}")


def _keys() -> list[str]:
    """What the parts of a bar are."""
    found, x = list[str](), 12.0
    for name, strength in KINDS:
        found.append(
            tag("rect", x=x, y=6, width=14, height=12, fill_opacity=strength, class_="span")
        )
        found.append(label(x + 20, 16, name, "tick"))
        x += 110
    return [tag("g", *found, class_=device_class(0))]


def _device(each: Data, position: int, y: float) -> str:
    """A device: its name and layers, what it holds of what it may use, and its time."""
    held = (each["weight_bytes"], each["cache_bytes"], each["workspace_bytes"])
    room = max(each["usable_bytes"] or 0.0, sum(held)) or 1.0
    x = WIDTH - BAR - 14
    inside = [
        label(24, y + 22, each["device"], "name"),
        label(24, y + 42, _layers(each), "tick"),
        label(24, y + 60, f"{seconds(each['token_s'])} per token", "tick"),
        tag("rect", x=x, y=y + 8, width=BAR, height=22, fill="none", stroke="currentColor", rx=3),
    ]
    at = x
    for (_, strength), value in zip(KINDS, held, strict=True):
        width = BAR * value / room
        inside.append(
            tag("rect", x=at, y=y + 8, width=width, height=22, fill_opacity=strength, class_="span")
        )
        at += width
    names = (f"{size(value)} {name}" for (name, _), value in zip(KINDS, held, strict=True))
    words = ", ".join(names)
    if each["disk_bytes"]:
        words += f", {size(each['disk_bytes'])} on disk"
    limit = each["usable_bytes"]
    usable = "no limit" if limit is None else f"{size(sum(held))} of {size(limit)} usable"
    inside += [label(x, y + 46, words, "tick"), label(x, y + 63, usable, "tick")]
    return tag("g", *inside, class_=device_class(position))


def _hop(hop: Data, y: float) -> str:
    """An arrow to the next device, with what passes."""
    x = 40.0
    words = f"{size(hop['token_bytes'])} a token, {_number(hop['token_s'])}"
    return tag(
        "g",
        tag("line", x1=x, x2=x, y1=y + 4, y2=y + HOP - 9, stroke="currentColor", stroke_width=1.5),
        tag("path", d=f"M{x - 5:g} {y + HOP - 11:g}h10l-5 8z", fill="currentColor"),
        label(x + 16, y + 21, words, "tick"),
    )


def _whole(data: Data, where: str) -> Data:
    """The plan of a file with what one written by hand may leave out."""
    return validate(MapPlanFile, data, where=where).plan.model_dump()


def _layers(each: Data) -> str:
    counted = str(each["start"]), str(each["end"] - 1)
    first, last = each["layers"] if any(each["layers"]) else counted
    spilled = f", the last {each['from_disk']} from disk" if each["from_disk"] else ""
    return (first if first == last else f"{first} to {last}") + spilled


def _number(value: Any) -> str:
    return "-" if value is None else seconds(value)


class MapViews(GenericViews):
    """How device maps are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Devices with their layers and bytes, and times."""
        plan = plan_json(result.judgement)
        return f"\n{ranges_table(plan)}\n{times(plan)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and the map."""
        yield from super().sections(result)
        yield map_section(plan_json(result.judgement))

    def saved_page(self, kind: str, data: Data, path: Path) -> str:
        """The page of a problem or a plan file."""
        if "plan" not in data:
            return super().saved_page(kind, data, path)
        return saved_plan_page(data, path, kind, [map_section(_whole(data, str(path)))])

    def parts(self, data: Data) -> dict[str, str]:
        """Layers of every device in a saved plan."""
        return {each["device"]: _layers(each) for each in _whole(data, "plan")["ranges"]}


VIEWS = MapViews()
