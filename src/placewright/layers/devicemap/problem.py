"""Which device holds which range of layers: the problem, its plans, and the tables of its costs.

A device that computes a layer takes the longer of its products / (peak x efficiency) and the bytes
that it reads / (memory bandwidth x efficiency), and a launch overhead per operator: prefill is
bound by the first, decode by the second.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import Device, efficiency_of, peaks
from placewright.errors import InfeasibleError, InputError
from placewright.io.units import BYTES, show
from placewright.layers.devicemap.model import FORMATS, Format, LanguageModel, Layer
from placewright.layers.generation.times import LayerTimes
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Problem

if TYPE_CHECKING:
    from placewright.layers.devicemap.judge import MapJudgement

Objective: TypeAlias = Literal["latency", "throughput"]

OPERATORS_PER_BLOCK = 12
"""Launches of a block in servers that fuse: two norms, products for queries, keys and values,
rotation, cache, attention, output, two of the MLP and their activation, two sums."""

CHUNK = 2048
"""Tokens of a prompt that are computed at a time: they set the workspace."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers [start, end) on a device; the weights of the last `from_disk` are read in each step.

    `device`: its position in the cluster.
    """

    device: int
    start: int
    end: int
    from_disk: int = 0


@dataclass(frozen=True, slots=True)
class MapPlan:
    """Ranges in the order in which tokens pass them; together they are all layers."""

    ranges: tuple[LayerRange, ...]


@dataclass(frozen=True)
class MapProblem(Problem["MapPlan", "MapJudgement"]):
    """A language model to be generated with on the devices of a cluster.

    Attributes
    ----------
    context
        Tokens of every user that are kept, prompt included.
    users
        Streams that are generated at the same time.
    prompt
        Tokens of a prompt, for the time to the first token.
    dtype
        Number format of the weights (`FORMATS`).
    memory_share
        Share of every device's memory that may be used; the rest is for the runtime.
    objective
        ``latency``: seconds per token of one stream; ``throughput``: tokens/s of all users.
    times
        Measured seconds of layers and links, in place of those that follow from the cluster: other
        contexts, and users where no steps of several were measured, are priced by what they take
        relative to the measured ones there.
    """

    model: LanguageModel
    cluster: Cluster
    context: int
    users: int = 1
    prompt: int = 0
    dtype: str = "bf16"
    memory_share: float = 0.9
    objective: Objective = "latency"
    times: LayerTimes | None = None

    def __post_init__(self) -> None:
        longest = self.model.longest
        if self.prompt > self.context:
            raise InputError(
                "a prompt is longer than the context",
                where=self.model.name,
                by=f"{self.prompt} and {self.context} tokens",
                hint="raise the context, or give a shorter prompt",
            )
        if self.times is not None and len(self.times.block_s) != self.m:
            raise InputError(
                "times are of another number of devices",
                where=self.model.name,
                by=f"{len(self.times.block_s)} and {self.m}",
                hint="measure on this cluster",
            )
        if longest and self.context > longest:
            raise InputError(
                "the context is longer than the model's positions",
                where=self.model.name,
                by=f"{self.context} tokens, at most {longest}",
                hint=f"give a context of {longest} tokens or less",
            )

    def replace(self, **changes: object) -> Self:
        """The same with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The model on the cluster."""
        return f"{self.model.name} on {self.cluster.name}"

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan."""
        asked = (self.context, self.users, self.prompt, self.dtype, self.objective)
        shares = (*self.capacity.tolist(), *self.disk_s_per_byte.tolist())
        rates = [_rates(device) for device in self.cluster.devices]
        links = [(x.source, x.target, float(x.bandwidth), x.latency_s) for x in self.cluster.links]
        names = [(x.name, x.kind, x.node) for x in self.cluster.devices]
        parts = (self.model.layers, self.model.hidden, names, shares, rates, links, asked)
        measured = "" if self.times is None else repr(self.times)
        return hashlib.sha256((repr(parts) + measured).encode()).hexdigest()

    @property
    def form(self) -> Format:
        """Number format of the weights."""
        return FORMATS[self.dtype]

    @property
    def n(self) -> int:
        """Layers."""
        return len(self.model.layers)

    @property
    def m(self) -> int:
        """Devices."""
        return len(self.cluster.devices)

    @cached_property
    def capacity(self) -> FloatArray:
        """Usable bytes of every device, shape (m,)."""
        memory = [device.memory_bytes for device in self.cluster.devices]
        return np.array(memory, dtype=np.float64) * self.memory_share

    @cached_property
    def weights(self) -> FloatArray:
        """Bytes that every layer holds, shape (n,)."""
        return np.array([layer.weight_bytes(self.form) for layer in self.model.layers])

    @cached_property
    def shared(self) -> FloatArray:
        """Bytes that a layer has in common with the one it is tied to, shape (n,)."""
        found = np.zeros(self.n)
        for k, other in self.tied.items():
            found[k] = min(self.weights[k], self.weights[other])
        return found

    @cached_property
    def tied(self) -> dict[int, int]:
        """Positions of tied layers, and of those whose parameters they share."""
        position = {layer.name: k for k, layer in enumerate(self.model.layers)}
        return {k: position[x.tied] for k, x in enumerate(self.model.layers) if x.tied}

    @cached_property
    def cache(self) -> FloatArray:
        """Bytes of keys, values and states of all users at full context, shape (n,)."""
        size = self.form.other_bytes * self.users
        kept = [layer.kept(self.context) for layer in self.model.layers]
        return np.array(kept, dtype=np.float64) * size

    @cached_property
    def workspace(self) -> FloatArray:
        """Bytes alive while a layer computes, shape (n,); of a device's layers the most counts."""
        tokens = [
            max(self.users, min(self.prompt or 1, CHUNK) if x.prompt_share else self.users)
            for x in self.model.layers
        ]
        alive = [t * x.workspace for t, x in zip(tokens, self.model.layers, strict=True)]
        return np.array(alive, dtype=np.float64) * self.form.other_bytes

    @property
    def busy(self) -> bool:
        """Whether the devices compute for several users at a time, where plans are compared."""
        return self.objective == "throughput" and self.users > 1

    def decode_s(self, users: int, *, busy: bool = False) -> FloatArray:
        """Seconds of a step of so many users at full context, shape (m, n).

        `busy`: the other devices compute meanwhile.
        """
        if (users, busy) not in self._steps:
            layers, devices = self.model.layers, self._devices()
            table = np.array([[self._decode_s(d, x, users) for x in layers] for d in devices])
            self._steps[users, busy] = table * self._decode_share(users, busy)
        return self._steps[users, busy]

    @cached_property
    def _steps(self) -> dict[tuple[int, bool], FloatArray]:
        """`decode_s` by number of users."""
        return {}

    @cached_property
    def prefill_s(self) -> FloatArray:
        """Seconds of one prompt, shape (m, n)."""
        table = np.array(
            [[self._prefill_s(d, x) for x in self.model.layers] for d in self._devices()]
        )
        times = self.times
        if times is None:
            return table
        computed = self._as_timed.prefill_s
        return table * self._share(computed, times.prompt_block_s, times.prompt_head_s)

    @cached_property
    def _as_timed(self) -> MapProblem:
        """What was timed, by the cluster."""
        tokens = 1 if self.times is None else self.times.tokens
        return self.replace(times=None, context=tokens, prompt=tokens, users=1)

    def _decode_share(self, users: int, busy: bool) -> FloatArray:
        """What steps take over what they would by the cluster, shape (m, n)."""
        times = self.times
        if times is None:
            return np.ones((self.m, self.n))
        if busy and times.busy:
            rows = times.between("block_s", users), times.between("head_s", users)
            return self._share(self._as_timed.decode_s(users), *rows)
        return self._share(self._as_timed.decode_s(1), times.block_s, times.head_s)

    def _share(self, computed: FloatArray, block_s: ArrayLike, head_s: ArrayLike) -> FloatArray:
        """Measured seconds of layers over computed ones, shape (m, n)."""
        seconds = np.zeros((self.m, self.n))
        seconds[:, list(self.model.blocks)] = np.array(block_s)[:, None]
        seconds[:, -1] += np.array(head_s)
        return np.divide(seconds, computed, out=np.zeros_like(seconds), where=computed > 0)

    def visit_s(self, users: int, *, busy: bool = False) -> FloatArray:
        """Seconds of a range beyond those of its layers, shape (m,); below zero: less."""
        if self.times is None:
            return np.zeros(self.m)
        if busy and self.times.busy:
            return self.times.between("visit_s", users)
        return np.array(self.times.visit_s)

    def answer_s(self, users: int, *, busy: bool = False) -> FloatArray:
        """Seconds from the logits on a device to the begin of the next passage, shape (m,).

        The caller's process chooses the tokens of all users one after another.
        """
        if self.times is None:
            return np.zeros(self.m)
        if busy and self.times.busy:
            return self.times.between("answer_s", users)
        return np.array(self.times.answer_s) * users

    @cached_property
    def disk_s_per_byte(self) -> FloatArray:
        """Seconds to read a byte from disk, ``inf`` where a device has none, shape (m,)."""
        rates = [device.disk_bandwidth for device in self.cluster.devices]
        return np.array([np.inf if rate is None else 1.0 / rate for rate in rates])

    @cached_property
    def links(self) -> tuple[FloatArray, FloatArray]:
        """Latency and seconds per byte between devices, shape (m, m)."""
        if self.times is not None:
            return np.array(self.times.latency_s), np.array(self.times.seconds_per_byte)
        latency_s, per_byte, _, _ = self.cluster.link_arrays()
        return latency_s, per_byte

    @cached_property
    def crossed(self) -> FloatArray:
        """Whether a generated token passes the cut before layer k, shape (n + 1,), as 0 or 1.

        Not before the embedding, nor between an encoder's blocks. The decoder's first device
        takes the token of an encoder-decoder without a transfer: that is one hop too few.
        """
        passed, found = False, np.zeros(self.n + 1)
        for k, layer in enumerate(self.model.layers):
            found[k] = float(passed and layer.decodes)
            passed = passed or layer.decodes
        return found

    def hop_s(self, tokens: float) -> FloatArray:
        """Seconds to send so many tokens' hidden states from device to device, shape (m, m)."""
        latency_s, per_byte = self.links
        with np.errstate(invalid="ignore"):  # inf - inf nowhere, but 0 x inf on the diagonal
            found = latency_s + per_byte * (tokens * self.model.hidden * self.form.other_bytes)
        np.fill_diagonal(found, 0.0)
        return found

    def return_s(self, users: int, *, busy: bool = False) -> FloatArray:
        """Seconds until the last device's token is known to the first, shape (m, m)."""
        if self.times is not None:  # by the caller, wherever the first one is
            return np.repeat(self.answer_s(users, busy=busy)[:, None], self.m, axis=1)
        found = self.links[0].copy()
        np.fill_diagonal(found, 0.0)
        return found

    def _devices(self) -> list[tuple[float, float, float]]:
        return [_rates(device) for device in self.cluster.devices]

    def _decode_s(self, rates: tuple[float, float, float], layer: Layer, users: int) -> float:
        if not layer.decodes:
            return 0.0
        flops, bandwidth, launch_s = rates
        read = layer.read_bytes(self.form, users)
        read += users * layer.kept(self.context) * self.form.other_bytes
        attended = users * layer.kept_tokens(self.context) * layer.attention_width
        work = 2.0 * (layer.products(users) + attended)
        return max(read / bandwidth, work / flops) + _launches(layer) * launch_s

    def _prefill_s(self, rates: tuple[float, float, float], layer: Layer) -> float:
        flops, bandwidth, launch_s = rates
        tokens = self.prompt or 1
        passed = max(1.0, tokens * layer.prompt_share)
        work = 2.0 * layer.products(passed)
        work += 2.0 * layer.attention_width * _pairs(tokens, layer) if layer.prompt_share else 0.0
        read = layer.read_bytes(self.form, passed)
        return max(read / bandwidth, work / flops) + _launches(layer) * launch_s

    def need_bytes(self, start: int, end: int) -> float:
        """Memory for layers [start, end) on one device: weights, caches, the largest workspace."""
        held = self.held_bytes(start, end).sum() + self.cache[start:end].sum()
        return float(held + self.workspace[start:end].max())

    def held_bytes(self, start: int, end: int) -> FloatArray:
        """Bytes of weights of each layer of [start, end) on one device, shape (end - start,).

        Of two layers that are tied, only the first has what they share.
        """
        found: FloatArray = self.weights[start:end].copy()
        for k, other in self.tied.items():
            if start <= min(k, other) and max(k, other) < end:
                found[max(k, other) - start] -= self.shared[k]
        return found


def _rates(device: Device) -> tuple[float, float, float]:
    """FLOP/s of products and bytes/s that the device reaches, and seconds per launch."""
    flops, bandwidth, launch_s = peaks(device)
    flops *= efficiency_of(device, "matmul") * device.speed_by_kind.get("matmul", 1.0)
    return flops, bandwidth * efficiency_of(device, "memory"), launch_s


def _launches(layer: Layer) -> int:
    return OPERATORS_PER_BLOCK if layer.matrices else 1


def _pairs(tokens: int, layer: Layer) -> float:
    """Pairs of tokens that attend: those before, within the window; all in an encoder."""
    if not layer.decodes:
        return float(tokens) ** 2
    window = min(tokens, layer.window or tokens)
    return tokens * window - window * (window - 1) / 2.0


def check_each_layer(problem: MapProblem) -> None:
    """Raise if there is a layer that no device can hold.

    Raises `InfeasibleError`: names the layer and the device with most memory.
    """
    most = float(problem.capacity.max())
    for k, layer in enumerate(problem.model.layers):
        need = problem.need_bytes(k, k + 1)
        if need > most and np.isinf(problem.disk_s_per_byte).all():
            device = problem.cluster.devices[int(problem.capacity.argmax())]
            raise InfeasibleError(
                f"no device can hold {layer.name!r} alone",
                where=problem.model.name,
                by=f"{show(need, BYTES)}; {device.name!r} may use {show(most, BYTES)}, "
                f"{show(need - most, BYTES)} too little",
                hint="give a smaller context, fewer users, --dtype int4, or a larger device",
            )
