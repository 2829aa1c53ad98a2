"""Devices in a ring that produce one token at a time, and a model that may not fit on them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placewright.errors import InputError
from placewright.io.arguments import Positive, checked
from placewright.planning.contract import Problem
from placewright.report.text import plain_table, size

if TYPE_CHECKING:
    from placewright.layers.halda.judge import RingJudgement

Os = Literal["mac_metal", "mac_no_metal", "linux", "android", "windows"]
Cache = Literal["4bit", "8bit", "fp16", "bf16"]

CACHE_BYTES = {"4bit": 0.5, "8bit": 1.0, "fp16": 2.0, "bf16": 2.0}
"""Of an element of keys or values."""

MOST_DEVICES, MOST_LAYERS = 256, 2_000


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Rounds, and layers of each device per round: all, and those of them on its GPU."""

    rounds: int
    layers: tuple[int, ...]
    gpu_layers: tuple[int, ...]


@checked
@dataclass(frozen=True, slots=True)
class RingModel:
    """A language model of equal layers: bytes as stored, FLOPs of one token.

    `input_bytes`, `output_bytes`: of the embedding and of the head. `kv_tokens`: in the cache.
    """

    name: str
    num_layers: int
    layer_bytes: float
    input_bytes: float
    output_bytes: float
    vocabulary: Positive
    kv_heads: int
    kv_head_dim: int
    kv_tokens: int
    layer_flops: float
    output_flops: float


@checked
@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: rates at the model's quantisation and batch 1."""

    api: Literal["metal", "cuda"]
    flops_per_s: Positive
    bytes_per_s: Positive
    memory_bytes: float


@checked
@dataclass(frozen=True, slots=True)
class RingDevice:
    """A device: rates at the model's quantisation and batch 1.

    `hop_s`: a transfer to the next device. `kv_copy_*_s`: of a layer's keys and values.
    `ram_to_vram_s`, `vram_to_ram_s`: of activations, 0 with unified memory.
    """

    name: str
    os: Os
    is_head: bool
    unified_memory: bool
    cpu_flops_per_s: Positive
    cpu_bytes_per_s: Positive
    ram_bytes: float
    disk_bytes_per_s: Positive
    gpu: Gpu | None = None
    hop_s: float = 0.0
    kv_copy_cpu_s: float = 0.0
    kv_copy_gpu_s: float = 0.0
    ram_to_vram_s: float = 0.0
    vram_to_ram_s: float = 0.0
    cpu_buffer_bytes: float = 0.0
    gpu_buffer_bytes: float = 0.0
    swappable_bytes: float = 0.0
    swap_free_bytes: float = 0.0

    @property
    def metal(self) -> bool:
        """Whether it is a Mac whose GPU may be used."""
        return self.os == "mac_metal"

    @property
    def swap_bytes(self) -> float:
        """What memory gains by swapping: on Android only."""
        return min(self.swappable_bytes, self.swap_free_bytes) if self.os == "android" else 0.0


@checked
@dataclass(frozen=True, slots=True)
class RingProblem(Problem["RingPlan", "RingJudgement"]):
    """Which layers run on which device and in how many rounds, for the least time per token.

    `devices`: in the order of the ring; one of them, the head, holds embedding and output.
    """

    model: RingModel
    devices: tuple[RingDevice, ...]
    kv_cache: Cache = "4bit"
    name: str = "ring"

    def __post_init__(self) -> None:
        layers, count = self.model.num_layers, len(self.devices)
        if not 1 <= count <= MOST_DEVICES:
            raise InputError(f"must be 1 to {MOST_DEVICES} devices", where="devices", by=f"{count}")
        if not 1 <= layers <= MOST_LAYERS:
            by = f"got {layers}"
            raise InputError(f"must be 1 to {MOST_LAYERS}", where="model.num_layers", by=by)
        names = [device.name for device in self.devices]
        if len(set(names)) < count:
            twice = next(x for x in names if names.count(x) > 1)
            raise InputError(f"device {twice!r} is there twice", where="devices")
        heads = [device.name for device in self.devices if device.is_head]
        if len(heads) != 1:
            by = f"{', '.join(heads) or 'none'} of {count}"
            raise InputError("exactly one device must be the head", where="devices", by=by)
        if self.model.layer_bytes <= 0:
            raise InputError("must be above 0", where="model.layer_bytes", by="got 0")

    @property
    def rounds(self) -> tuple[int, ...]:
        """Possible numbers of rounds: divisors of the layers, but not all of them."""
        layers = self.model.num_layers
        return tuple(k for k in range(1, layers) if layers % k == 0)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan."""
        return hashlib.sha256(repr((self.model, self.devices, self.kv_cache)).encode()).hexdigest()

    def __repr__(self) -> str:
        rows = [
            (
                d.name,
                d.os,
                size(d.ram_bytes),
                "-" if d.gpu is None else f"{d.gpu.api} {size(d.gpu.memory_bytes)}",
                f"{size(d.disk_bytes_per_s)}/s",
            )
            for d in self.devices
        ]
        weights = size(self.model.num_layers * self.model.layer_bytes)
        head = f"{self.name}: {self.model.num_layers} layers, {weights}"
        return f"{head}\n{plain_table(('device', 'os', 'RAM', 'GPU', 'disk'), rows)}"


def check_plan(problem: RingProblem, plan: RingPlan) -> None:
    """Raise `InputError` where a plan is none of the problem."""
    if plan.rounds not in problem.rounds:
        by = f"{plan.rounds} rounds of {problem.model.num_layers} layers"
        hint = "give a divisor of the layers below their number"
        raise InputError("is no number of rounds", where="plan.rounds", by=by, hint=hint)
    if not len(plan.layers) == len(plan.gpu_layers) == len(problem.devices):
        by = f"{len(plan.layers)} for {len(problem.devices)}"
        raise InputError("must name each device", where="plan.layers", by=by)
    for d, w, n in zip(problem.devices, plan.layers, plan.gpu_layers, strict=True):
        if w < 1 or not 0 <= n <= (0 if d.gpu is None else w):
            by = f"{w} layers per round, {n} of them on its GPU"
            raise InputError("cannot be its layers", where=f"plan of {d.name}", by=by)
    each = problem.model.num_layers // plan.rounds
    if sum(plan.layers) != each:
        by = f"{sum(plan.layers)} layers per round, {each} are needed"
        raise InputError("has other layers than the model", where="plan.layers", by=by)
