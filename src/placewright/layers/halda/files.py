"""Problems and plans of layers in a ring as JSON: the format ``halda/1``, as ``halda:FILE``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from placewright.errors import check_known
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.layers.halda.problem import (
    MOST_DEVICES,
    MOST_LAYERS,
    Cache,
    Gpu,
    Os,
    RingDevice,
    RingJudgement,
    RingModel,
    RingPlan,
    RingProblem,
    check_plan,
)
from placewright.measurement import Measurement
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.views import Data, GenericViews, preformatted
from placewright.planning.wing import Document, Format
from placewright.report.text import plain_table, seconds

LARGEST = 1e24
"""Bytes, FLOPs and rates: products of a few of them are numbers still."""

Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=10**9)]


class RingModelEntry(FileModel):
    """A language model of equal layers: bytes as stored, FLOPs of one token at batch 1."""

    name: str = ""
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    quantization: str = ""
    layer_bytes: Rate
    input_bytes: Amount
    output_bytes: Amount
    vocabulary: Annotated[int, Field(ge=1)]
    kv_heads: Whole
    kv_head_dim: Whole
    kv_tokens: Whole
    layer_flops: Amount
    output_flops: Amount


class GpuEntry(FileModel):
    """A GPU."""

    api: Literal["metal", "cuda"]
    flops_per_s: Rate
    bytes_per_s: Rate
    memory_bytes: Amount


class RingDeviceEntry(FileModel):
    """A device: see `placewright.layers.halda.problem.RingDevice`."""

    name: Annotated[str, Field(min_length=1)]
    os: Os
    is_head: bool = False
    unified_memory: bool = False
    cpu_flops_per_s: Rate
    cpu_bytes_per_s: Rate
    gpu: GpuEntry | None = None
    ram_bytes: Amount
    disk_bytes_per_s: Rate
    hop_s: Amount = 0.0
    kv_copy_cpu_s: Amount = 0.0
    kv_copy_gpu_s: Amount = 0.0
    ram_to_vram_s: Amount = 0.0
    vram_to_ram_s: Amount = 0.0
    cpu_buffer_bytes: Amount = 0.0
    gpu_buffer_bytes: Amount = 0.0
    swappable_bytes: Amount = 0.0
    swap_free_bytes: Amount = 0.0


class RingFile(FileModel):
    """A model and devices; `origin` and `solver_result` are not read."""

    format: Literal["halda/1"] = "halda/1"
    name: str = ""
    kv_cache: Cache = "4bit"
    model: RingModelEntry
    devices: Annotated[list[RingDeviceEntry], Field(min_length=1, max_length=MOST_DEVICES)]
    origin: Any = None
    solver_result: Any = None


class RingPlanEntry(FileModel):
    """Rounds and layers per round; what physics allows is for people."""

    rounds: int
    layers: dict[str, int]
    gpu_layers: dict[str, int]
    physical_bound_s: float = 0.0


class RingPlanFile(ResultFile):
    """A plan with its result."""

    plan: RingPlanEntry


problem_document = Document("halda", ("devices", "model.num_layers"), RingFile)
plan_document = Document("halda-plan", ("plan.rounds", "plan.gpu_layers"), RingPlanFile)


def read_problem(path: str | Path) -> RingProblem:
    """Read a model and devices.

    Raises `InputError`, which names the file, the field, and what is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


formats = (Format("halda", "a language model's layers on devices in a ring", read_problem),)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> RingProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(RingFile, data, where=where, text=text)
    with errors_in(where):
        return RingProblem(
            RingModel(**entry.model.model_dump(exclude={"quantization"})),
            tuple(_device(each) for each in entry.devices),
            entry.kv_cache,
            entry.name or name,
        )


def _device(entry: RingDeviceEntry) -> RingDevice:
    gpu = None if entry.gpu is None else Gpu(**entry.gpu.model_dump())
    return RingDevice(**entry.model_dump(exclude={"gpu"}), gpu=gpu)


def write_problem(problem: RingProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal."""
    return write_data({"format": "halda/1", **asdict(problem)}, path)


def read_proposal(path: str | Path, problem: RingProblem) -> Proposal[RingPlan]:
    """Read the plan of a result file for `problem`.

    Raises `InputError`: a device that does not exist, or layers that are no plan.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(RingPlanFile, data, where=where, text=text).plan
    names = [device.name for device in problem.devices]
    for name in (*entry.layers, *entry.gpu_layers):
        check_known("device", name, names, where=f"{where}: plan")
    plan = RingPlan(
        entry.rounds,
        tuple(entry.layers.get(name, 0) for name in names),
        tuple(entry.gpu_layers.get(name, 0) for name in names),
    )
    with errors_in(where):
        check_plan(problem, plan)
    return Proposal(plan)


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    names, plan = [device.name for device in result.problem.devices], result.plan
    return head_json(result) | {
        "plan": {
            "rounds": plan.rounds,
            "layers": dict(zip(names, plan.layers, strict=True)),
            "gpu_layers": dict(zip(names, plan.gpu_layers, strict=True)),
            "physical_bound_s": result.judgement.physical_s,
        }
    }


def ring_table(judged: RingJudgement) -> str:
    """A line per device, and one on what physics allows."""
    p, plan = judged.problem, judged.plan
    rows = [
        (d.name, str(w), str(n), str(plan.rounds * w))
        for d, w, n in zip(p.devices, plan.layers, plan.gpu_layers, strict=True)
    ]
    table = plain_table(("device", "layers per round", "on its GPU", "in all"), rows, " rrr")
    physical = f"no placement reads all weights faster than {seconds(judged.physical_s)} per token"
    if judged.value < judged.physical_s:
        physical += "; the formula undercuts that, as it charges less than whole fetches from disk"
    rounds = f"{plan.rounds} round{'s' if plan.rounds > 1 else ''}"
    return f"{rounds}\n{table}\nphysical bound: {physical}"


class HaldaViews(GenericViews):
    """How plans of a ring are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Layers of each device per round, and the physical bound."""
        return f"\n{ring_table(result.judgement)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and the layers of each device."""
        yield from super().sections(result)
        yield preformatted("Layers in the ring", "Per round.", ring_table(result.judgement))

    def parts(self, data: Data) -> dict[str, str]:
        """Rounds, and layers of every device in a saved plan."""
        plan = data["plan"]
        layers = {
            name: f"{w} per round, {plan['gpu_layers'].get(name, 0)} on its GPU"
            for name, w in plan["layers"].items()
        }
        return {"rounds": str(plan["rounds"])} | layers


VIEWS = HaldaViews()
