"""Devices in a ring that produce one token at a time, a model that may not fit on them; the judge.

Seconds per token are Halda's, beside what physics allows. The formula is as distilp states it, by
device and count of layers. With w layers per round on a device, n of them on its GPU, and W in all:

    seconds(w, n) = a w + b n + r s(w, n) + q t(n)      r, q: from disk, per layer too many

    sum of seconds + sum of (x + hop) + kappa + (rounds - 1) max (seconds + x + hop + F / 2)

where F = w b' / disk fetches a device's layers for the next round while others work. Layers too
many, s in RAM and t on the GPU, are whole numbers of at most W; s(w, n) and t(n) above that make a
choice impossible.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import Positive, checked
from placewright.numerics.arrays import FloatArray, IntArray, check_names
from placewright.planning.contract import Problem
from placewright.report.text import plain_table, size

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
        check_names("device", (device.name for device in self.devices), "devices")
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


BEYOND = 1e-9
"""Of a layer: what is too much by less counts as none, as in a program with whole columns."""


def layer_bytes(p: RingProblem) -> int:
    """b': of a layer with 15 % beside its weights, and with its keys and values, cut off."""
    m = p.model
    cache = 2 * m.kv_heads * m.kv_head_dim * m.kv_tokens * CACHE_BYTES[p.kv_cache]
    return int(1.15 * m.layer_bytes + (1 + 2 / 64) * cache)


def edge_bytes(p: RingProblem, d: RingDevice) -> float:
    """What the head holds beside its layers: a row of the embedding, and the output layer."""
    return p.model.input_bytes / p.model.vocabulary + p.model.output_bytes if d.is_head else 0.0


def fixed_s(d: RingDevice) -> float:
    """X + hop: copies to and from the GPU, and the transfer to the next device."""
    copies = 0.0 if d.unified_memory else d.ram_to_vram_s + d.vram_to_ram_s
    return copies + d.hop_s


def kappa_s(p: RingProblem) -> float:
    """The part that no choice changes. It may be negative: free memory counts as time saved."""
    m, head = p.model, next(d for d in p.devices if d.is_head)
    total = m.output_flops / head.cpu_flops_per_s + edge_bytes(p, head) / head.cpu_bytes_per_s
    total += (m.input_bytes / m.vocabulary + m.output_bytes) / head.disk_bytes_per_s
    for d in p.devices:
        if not d.metal:
            total += (d.cpu_buffer_bytes - d.ram_bytes - d.swap_bytes) / d.disk_bytes_per_s
    return total


class DeviceSeconds(NamedTuple):
    """Of a device with w = 0, 1, ... layers per round; infinite where it cannot have so many.

    `busy_s`: seconds(w, n) with the best n. `cycle_s`: that with x + hop + F / 2.
    `gpu_layers`: the best n.
    """

    busy_s: FloatArray
    cycle_s: FloatArray
    gpu_layers: IntArray


def seconds(p: RingProblem, d: RingDevice, w: IntArray, n: IntArray, most: int) -> FloatArray:
    """Seconds(w, n) of arrays that broadcast; `most`: W."""
    m, b = p.model, float(layer_bytes(p))
    on_cpu = m.layer_flops / d.cpu_flops_per_s + d.kv_copy_cpu_s + b / d.cpu_bytes_per_s
    gain = 0.0
    if d.gpu is not None and d.os != "mac_no_metal":
        on_gpu = m.layer_flops / d.gpu.flops_per_s + d.kv_copy_gpu_s + b / d.gpu.bytes_per_s
        gain = on_gpu - on_cpu
    fetched = (m.layer_bytes if d.metal else b) / d.disk_bytes_per_s
    held = edge_bytes(p, d) + d.cpu_buffer_bytes
    ram, card, shared = (d.ram_bytes + d.swap_bytes - held) / b, math.inf, math.inf
    if d.gpu is not None:
        output = m.output_bytes if d.gpu.api == "metal" and d.is_head else 0.0
        card = (d.gpu.memory_bytes - d.gpu_buffer_bytes - output) / b
        shared = (d.gpu.memory_bytes - d.gpu_buffer_bytes - held) / b
    if d.metal:
        in_ram = _too_many(w, shared)
    else:
        in_ram = _too_many(w if d.os == "mac_no_metal" else w - n, ram)
    on_card = _too_many(n, card)
    total = on_cpu * w + gain * n + fetched * (in_ram + on_card)
    possible = (in_ram <= most) & (on_card <= most) & (n <= w)
    return np.where(possible, total, math.inf)


def _too_many(layers: IntArray, room: float) -> FloatArray:
    """Whole layers beyond those that there is room for."""
    return np.asarray(np.maximum(np.ceil(layers - room - BEYOND), 0.0), dtype=np.float64)


def device_seconds(p: RingProblem, d: RingDevice, most: int) -> DeviceSeconds:
    """With up to `most` layers per round: all of the ring's."""
    w = np.arange(most + 1)
    n = np.arange(1 if d.gpu is None else most + 1)
    every = seconds(p, d, w[:, None], n[None, :], most)
    best = every.shape[1] - 1 - every[:, ::-1].argmin(axis=1)  # ties: more on the GPU
    busy_s = every[w, best]
    busy_s[0] = math.inf
    fetch_s = w * layer_bytes(p) / d.disk_bytes_per_s
    return DeviceSeconds(busy_s, busy_s + fixed_s(d) + fetch_s / 2, best)


MOST_SUBSETS = 12
"""Devices up to which every subset is looked at."""


def physical_bound_s(p: RingProblem) -> float:
    """Seconds per token that no placement of the weights can beat, whatever the formula says.

    A token reads every weight once. One device works at a time, so what lies in memory takes its
    bytes by the bandwidth of its memory, fastest filled first; what fits nowhere is read through
    the fastest one, and comes from disks, all at once at best, which may overlap with that.
    Devices that take part each hand the token on, but for a single one.
    """
    count = len(p.devices)
    if count > MOST_SUBSETS:
        return _subset_s(p, p.devices, hops=False)
    subsets = (
        [d for i, d in enumerate(p.devices) if chosen >> i & 1] for chosen in range(1, 1 << count)
    )
    return min(_subset_s(p, each, hops=len(each) > 1) for each in subsets)


def _subset_s(p: RingProblem, devices: object, *, hops: bool) -> float:
    own = list(devices)  # type: ignore[call-overload]
    pools = [pool for d in own for pool in _memories(d)]
    left, read_s = p.model.num_layers * p.model.layer_bytes, 0.0
    for rate, room in sorted(pools, reverse=True):
        held = min(room, left)
        read_s += held / rate
        left -= held
    read_s += left / max(rate for rate, _ in pools)
    if hops:
        read_s += sum(d.hop_s for d in own)
    return float(max(read_s, left / sum(d.disk_bytes_per_s for d in own)))


def _memories(d: RingDevice) -> list[tuple[float, float]]:
    """Bandwidth and bytes of a device's memories; CPU and GPU of a unified one share it."""
    if d.gpu is None:
        return [(d.cpu_bytes_per_s, d.ram_bytes + d.swap_bytes)]
    if d.unified_memory:
        fastest = max(d.cpu_bytes_per_s, d.gpu.bytes_per_s)
        return [(fastest, max(d.ram_bytes, d.gpu.memory_bytes))]
    own = (d.gpu.bytes_per_s, d.gpu.memory_bytes)
    return [own, (d.cpu_bytes_per_s, d.ram_bytes + d.swap_bytes)]


@dataclass(frozen=True, eq=False)
class RingJudgement:
    """Judgement of a plan.

    Attributes
    ----------
    value
        Seconds per token by the formula.
    violation, violation_size
        The device that overflows by more layers than a round has, and 1.
    """

    problem: RingProblem
    plan: RingPlan
    value: float
    violation: str
    violation_size: float

    @property
    def feasible(self) -> bool:
        """Whether the formula allows it."""
        return not self.violation

    @cached_property
    def physical_s(self) -> float:
        """Seconds per token that no placement can beat; the formula may say less."""
        return physical_bound_s(self.problem)

    @property
    def metrics(self) -> dict[str, tuple[float, str]]:
        """Measures beside the value."""
        return {
            "rounds": (float(self.plan.rounds), ""),
            "physical bound": (self.physical_s, "s"),
        }

    def trace(self) -> None:
        """The formula has no timeline."""
        return


def judge(problem: RingProblem, plan: RingPlan) -> RingJudgement:
    """Seconds per token of a plan.

    Raises `InputError`: it is no plan of the problem.
    """
    check_plan(problem, plan)
    total, slowest, violation = kappa_s(problem), 0.0, ""
    for d, w, n in zip(problem.devices, plan.layers, plan.gpu_layers, strict=True):
        most = problem.model.num_layers // plan.rounds
        busy_s = float(seconds(problem, d, np.array(w), np.array(n), most).item())
        if np.isinf(busy_s):
            violation = violation or f"{d.name} lacks memory for more than {most} of its layers"
        own_s = busy_s + fixed_s(d)
        total += own_s
        slowest = max(slowest, own_s + w * layer_bytes(problem) / d.disk_bytes_per_s / 2)
    value = total + (plan.rounds - 1) * slowest if plan.rounds > 1 else total
    return RingJudgement(problem, plan, float(value), violation, float(bool(violation)))
