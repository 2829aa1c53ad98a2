"""`device_map`: which device holds which layers of a language model, and what that is worth."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError, InputError, UnsupportedError, check_known
from placewright.io.arguments import OneOf, Range, checked
from placewright.io.stored import finite, read_data
from placewright.io.units import BYTES, show
from placewright.layers.devicemap.baselines import RULES, baselines
from placewright.layers.devicemap.exports import Target, exported
from placewright.layers.devicemap.files import result_json
from placewright.layers.devicemap.judge import MapJudgement, RangeCost, judge, lower_bound_s
from placewright.layers.devicemap.model import FORMATS
from placewright.layers.devicemap.planners import ROUNDING, Found, plan_map
from placewright.layers.devicemap.problem import LayerRange, MapProblem, Objective, check_each_layer
from placewright.layers.devicemap.reading import config_file, language_model
from placewright.report.text import percent, plain_table, seconds, size

if TYPE_CHECKING:
    from placewright.layers.generation.generator import Generator
    from placewright.layers.generation.times import LayerTimes
    from placewright.planning.result import Result
    from placewright.runtime.engines.engine import EngineName

COMPUTED = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""Number formats that PyTorch computes with as they are, and its names of them."""

ERROR = 0.05
"""Tokens/s of splits are mispredicted by some 4 % in the median, measured on three unequal nodes:
what is predicted to be better by less may not be better."""

MOST_TIMED = 256
"""Tokens before the one that is timed; longer contexts are priced by what they add."""

Count = Annotated[int, Range(1, 2**31 - 1)]
Share = Annotated[float, Range(0, 1, above=True)]


@checked
def device_map(
    model: Any,
    cluster: Cluster,
    *,
    context: Count = 4096,
    users: Count = 1,
    prompt: Annotated[int, Range(0, 2**31 - 1)] = 0,
    dtype: str | None = None,
    objective: Annotated[str, OneOf("latency", "throughput")] | None = None,
    memory_share: Share = 0.9,
    measure: Annotated[str, OneOf("local", "testbed", "torchrun", "ray")] | None = None,
) -> DeviceMap:
    """The ranges of layers that devices hold, for the fastest generation.

    Exact: every order of devices, every cut and every set of devices is covered, but for very many
    devices that differ (`DeviceMap.proved`). Neither weights nor PyTorch are loaded for a
    configuration of a known architecture.

    Parameters
    ----------
    model
        As for `language_model`: a configuration, its file or folder, or an ``nn.Module``.
    cluster
        Its devices state memory, memory bandwidth and peak FLOP/s of this number format;
        ``disk_bandwidth`` lets weights be read from disk.
    context
        Tokens that are kept of every user, prompt included.
    users
        Streams at the same time.
    prompt
        Tokens of a prompt, for the time to the first token; by default a full context.
    dtype
        Number format of the weights: ``f32``, ``bf16``, ``f16``, ``int8``, ``int4``; by default the
        published one. Caches and what passes between layers have 16 bits, or 32 with ``f32``.
    objective
        ``latency``: seconds per token of one stream, by default for one user; ``throughput``:
        tokens/s of all, by default for several.
    memory_share
        Share of every device's memory that may be used.
    measure
        Who starts workers that time a few layers, of random numbers, and the links first: plans
        are for `DeviceMap.generator` then. By default costs follow from the cluster.

    Raises
    ------
    InputError
        The model cannot be read, or the context is longer than its positions.
    InfeasibleError
        No plan fits: says by how much, and the longest context that does.
    """
    begin_s, made = time.perf_counter(), language_model(model)
    form = dtype or made.form
    check_known("number format", form, FORMATS, where="dtype")
    chosen: Objective = "throughput" if users > 1 else "latency"
    if objective is not None:
        chosen = "latency" if objective == "latency" else "throughput"
    problem = MapProblem(
        made, cluster, context, users, prompt or context, form, memory_share, chosen
    )
    check_each_layer(problem)
    if measure is not None:
        problem = problem.replace(times=_measured(problem, model, measure))
    return _planned(problem, begin_s)


def _planned(problem: MapProblem, begin_s: float) -> DeviceMap:
    found = plan_map(problem)
    if found.best is None:
        raise _infeasible(problem)
    relaxed_s = lower_bound_s(problem)
    return DeviceMap(problem, found.best, found, relaxed_s, time.perf_counter() - begin_s)


def _measured(problem: MapProblem, model: Any, engine: str) -> LayerTimes:
    """What workers take for its layers.

    Raises `UnsupportedError`: it is no model of transformers, or workers cannot compute with it.
    """
    from placewright.layers.generation.layer_timer import MOST_BLOCKS, time_layers
    from placewright.layers.generation.model_folder import configured

    _demand_computed(problem)
    config = getattr(model, "config", model)
    if isinstance(config, str | os.PathLike | Mapping):
        known = config if isinstance(config, Mapping) else read_data(config_file(str(config)))[0]
        config = configured(known)
    blocks = problem.model.blocks
    room = [
        sum(problem.need_bytes(blocks[0], b + 1) <= capacity for b in blocks[:MOST_BLOCKS])
        for capacity in problem.capacity.tolist()
    ]
    return time_layers(
        config,
        COMPUTED[problem.dtype],
        problem.cluster,
        engine=engine,
        tokens=min(problem.context, MOST_TIMED),
        blocks=room,
        users=problem.users,
    )


def _demand_computed(problem: MapProblem) -> None:
    if problem.dtype not in COMPUTED:
        raise UnsupportedError(
            f"the plan has {problem.dtype} weights, which workers do not unpack",
            where=problem.cluster.name,
            hint="export the map, or plan without it",
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """Another plan, judged; `why` says what is wrong where it cannot be used."""

    name: str
    judgement: MapJudgement
    why: str = ""


class DeviceMap:
    """A device map and what is known of it.

    Attributes
    ----------
    problem, judgement
        What was asked, and the judge's answer to the plan.
    proved
        Whether no plan is better, by exhaustive dynamic programming.
    """

    def __init__(
        self,
        problem: MapProblem,
        judgement: MapJudgement,
        found: Found,
        relaxed_s: float,
        runtime_s: float = 0.0,
    ) -> None:
        self.problem, self.judgement = problem, judgement
        self.proved, self._found = found.proved, found
        self._relaxed_s, self._runtime_s = relaxed_s, runtime_s

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Layers [start, end) of every device that holds any, in the order of the layers."""
        devices = self.problem.cluster.devices
        return {devices[x.device].name: (x.start, x.end) for x in self.judgement.plan.ranges}

    @property
    def block_ranges(self) -> dict[str, tuple[int, int]]:
        """Transformer blocks [start, end) of every device that holds any; what runs a model.

        An encoder's come before the decoder's.

        The embedding is where the first block is, norm and head are where the last one is.
        """
        blocks = self.problem.model.executed
        counted = {
            name: (sum(k < start for k in blocks), sum(k < end for k in blocks))
            for name, (start, end) in self.ranges.items()
        }
        return {name: pair for name, pair in counted.items() if pair[0] < pair[1]}

    def generator(
        self, model: Any, *, engine: EngineName = "local", adapt: bool = False
    ) -> AbstractContextManager[Generator]:
        """The model on the workers of the cluster, to generate tokens with.

        Parameters
        ----------
        model
            A language model of transformers in this process, or its folder.
        engine
            Who starts the workers.
        adapt
            Plan again where a worker has died, and go on with the devices that are left.

        Raises
        ------
        UnsupportedError
            The plan reads layers from disk in every step, or has them in fewer bits than workers
            compute with.
        """
        from placewright.layers.generation.generator import generating

        ranges, replan = self._executed(), self._on if adapt else None
        groups = self.judgement.groups if self.problem.users > 1 else None
        return generating(
            model, ranges, self.problem.cluster, engine=engine, replan=replan, groups=groups
        )

    def _executed(self) -> dict[str, tuple[int, int]]:
        """`block_ranges`, where workers can execute them."""
        if any(each.from_disk for each in self.judgement.plan.ranges):
            raise UnsupportedError(
                "the plan reads layers from disk in every step, and workers keep theirs",
                where=self.problem.cluster.name,
                hint="export the map, or plan without it",
            )
        _demand_computed(self.problem)
        self._demand_room()
        return self.block_ranges

    def _demand_room(self) -> None:
        """Raise where ends that the plan has on devices of their own fit on no device with blocks.

        Raises `UnsupportedError`: workers have the embedding with the first block, the head with
        the last one.
        """
        problem, blocks = self.problem, self.block_ranges
        starts = [0, *(start for name, (start, _) in self.ranges.items() if name in blocks)][2:]
        edges = [0, *starts, problem.n]
        for name, (start, end) in zip(blocks, pairwise(edges), strict=True):
            need = problem.need_bytes(start, end)
            room = float(problem.capacity[problem.cluster.index(name)])
            if need > room:
                raise UnsupportedError(
                    "the plan has the embedding or the head apart from the blocks next to it, with "
                    "which workers have it, and there is no room for both",
                    where=f"device {name!r}",
                    by=f"{size(need)} needed, {size(room)} usable",
                    hint="export the map, or give the device more memory or a shorter context",
                )

    def _on(self, cluster: Cluster) -> dict[str, tuple[int, int]]:
        """What workers execute of the plan for a part of the cluster."""
        problem = self.problem
        kept = [problem.cluster.index(name) for name in cluster.device_names]
        times = None if problem.times is None else problem.times.of(kept)
        problem = problem.replace(cluster=cluster, times=times)
        return _planned(problem, time.perf_counter())._executed()

    @property
    def value(self) -> float:
        """Seconds per token of one stream, or tokens/s of all users."""
        return self._shown(self.judgement.value)

    @property
    def bound(self) -> float:
        """What no plan beats: the value itself where that is proved, else a relaxation's."""
        return self.value if self.proved else self._shown(self._relaxed_s)

    @property
    def physical_bound(self) -> float:
        """What no plan beats even if transfers were free and layers in any order."""
        return self._shown(self._relaxed_s)

    @property
    def gap(self) -> float:
        """Relative distance to `bound`."""
        own, other = self.value, self.bound
        return max(own, other) / min(own, other) - 1.0 if min(own, other) > 0 else math.inf

    def _shown(self, value_s: float) -> float:
        if self.problem.objective == "latency":
            return value_s
        return 1.0 / value_s if value_s > 0 else math.inf

    @property
    def times_from(self) -> str:
        """Where the times come from, in words."""
        measured = self.problem.times
        if measured is None:
            return "computed from the cluster, which ranks plans; measure for those of workers"
        if measured.busy:
            most = measured.busy[-1].users
            return f"measured: of one stream, and of steps of up to {most} users"
        several = "; of several users computed from those" if self.problem.users > 1 else ""
        return f"measured with one stream{several}"

    def candidates(self) -> list[Candidate]:
        """The plan, and those that others make, judged by the same rules."""
        found = [Candidate("placewright", self.judgement)]
        for name, plan in baselines(self.problem).items():
            made = judge(self.problem, plan)
            why = f"does not fit: {made.violation}" if made.violation else ""
            found.append(Candidate(name, made, why))
        return found

    def simpler(self) -> MapJudgement | None:
        """A plan on the fewest devices that is at most `ERROR` worse; ``None`` where this is it."""
        others = [each.judgement for each in self.candidates()[1:] if not each.why]
        near = [
            made
            for made in (*self._found.by_devices.values(), *others)
            if made.value <= self.judgement.value * (1 + ERROR)
        ]
        fewest = min(near, key=lambda made: (len(made.plan.ranges), made.value), default=None)
        if fewest is None or len(fewest.plan.ranges) >= len(self.judgement.plan.ranges):
            return None
        return fewest

    def _worse(self, ratio: float) -> str:
        """What a plan whose value is so many times this one's costs."""
        if self.problem.objective == "latency":
            return f"{percent(ratio - 1)} more time per token"
        return f"{percent(1 - 1 / ratio)} fewer tokens/s"

    def left_out(self) -> dict[str, str]:
        """Devices that hold nothing, and why."""
        used = {each.device for each in self.judgement.plan.ranges}
        devices = self.problem.cluster.devices
        return {devices[d].name: self._why(d) for d in range(len(devices)) if d not in used}

    def _why(self, device: int) -> str:
        problem, own = self.problem, self.judgement
        room = problem.capacity[device]
        needs = [problem.need_bytes(k, k + 1) for k in range(problem.n)]
        if min(needs) > room and not np.isfinite(problem.disk_s_per_byte[device]):
            return f"holds no layer: {size(min(needs))} needed, {size(float(room))} usable"
        with_it = [x for mask, x in self._found.by_devices.items() if mask >> device & 1]
        if not with_it:
            return "no plan with it fits, or it is not reached by a link"
        best = min(with_it, key=lambda x: x.value).value / own.value
        if best <= 1 + 1e-9:
            return f"no plan with it is faster{self._block_times(device)}"
        return f"with it at least {self._worse(best)}{self._block_times(device)}"

    def _block_times(self, device: int) -> str:
        """Of the slowest block on a device, and on the slowest of those that are used."""
        problem = self.problem
        blocks = list(problem.model.blocks) or list(range(problem.n))
        slowest = problem.decode_s(1)[:, blocks].max(axis=1)
        used = [each.device for each in self.judgement.plan.ranges]
        there, here = float(slowest[device]), float(slowest[used].max())
        return f"; a block takes {seconds(there)} a token there, {seconds(here)} or less on others"

    @checked
    def export(self, target: Target) -> dict[str, Any]:
        """The plan for a runtime that is not ours, with notes on what that does otherwise.

        Parameters
        ----------
        target
            ``accelerate``: ``device_map`` and ``max_memory``; ``llamacpp``: flags of
            ``llama-server``; ``vllm``: environment and flags of ``vllm serve``; ``torch``: split
            points of ``torch.distributed.pipelining``.

        Raises
        ------
        UnsupportedError
            The runtime cannot run such a plan.
        """
        return exported(self.problem, self.judgement, target)

    @cached_property
    def result(self) -> Result:
        """The plan and its rivals as `solve` gives them, for reports and files."""
        from placewright.planning.candidates import Candidates
        from placewright.planning.contract import Proposal
        from placewright.planning.solving import (
            FixedPlan,
            compare,  # loads Numba
        )

        proved = self.judgement.value * (1 - ROUNDING) if self.proved else self._relaxed_s
        own = FixedPlan(Proposal(self.judgement.plan, bound=proved), name="exact")
        found = compare(self.problem, [own, *RULES], bounds=False)
        tried = (
            replace(each, runtime_s=self._runtime_s) if each.planner == own.name else each
            for each in found.candidates
        )
        return replace(found, runtime_s=self._runtime_s, candidates=Candidates(tried))

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page."""
        return self.result.report(path)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def as_json(self) -> dict[str, Any]:
        """All of it as data: a plan file, with the plan in words of its own."""
        problem, own, simpler = self.problem, self.judgement, self.simpler()
        asked = ("dtype", "context", "users", "prompt", "memory_share")
        return result_json(self.result) | {
            "model": problem.model.name,
            "architecture": problem.model.architecture,
            "cluster": problem.cluster.name,
            **{name: getattr(problem, name) for name in asked},
            "physical_bound_s": self._relaxed_s,
            **_numbers(own),
            "groups": own.groups,
            "times_from": self.times_from,
            "left_out": self.left_out(),
            "simpler": None if simpler is None else self._described(simpler),
            "alternatives": {
                each.name: {"why": each.why} | self._described(each.judgement)
                for each in self.candidates()[1:]
            },
        }

    def _described(self, judgement: MapJudgement) -> dict[str, Any]:
        devices = self.problem.cluster.devices
        ends = {devices[x.device].name: [x.start, x.end] for x in judgement.plan.ranges}
        return {"ranges": ends} | _numbers(judgement)

    def _parts(self) -> list[tuple[LayerRange, RangeCost]]:
        return list(zip(self.judgement.plan.ranges, self.judgement.costs, strict=True))

    def __repr__(self) -> str:
        problem, own = self.problem, self.judgement
        title = (
            f"{problem.model.name} ({problem.model.parameters() / 1e9:.3g}e9 parameters, "
            f"{problem.dtype}) on {problem.cluster.name}: context {problem.context}, "
            f"{problem.users} user{'s' if problem.users > 1 else ''}, prompt {problem.prompt}"
        )
        proof = "optimal" if self.proved else f"gap {percent(self.gap)}"
        bound = f"{proof}; with free transfers at best {self._unit(self.physical_bound)}"
        groups = f" in {own.groups} groups that follow each other" if own.groups > 1 else ""
        lines = [
            title,
            f"time per token of one stream {seconds(own.token_s)}, {own.tokens_per_s:.4g} tokens/s "
            f"of all users{groups}, first token after {seconds(own.first_token_s)}",
            f"{problem.objective} {self._unit(self.value)}: {bound}",
            f"times are {self.times_from}",
            "",
            self._range_table(),
            "",
            self._candidate_table(),
        ]
        notes = [f"not used: {name}: {why}" for name, why in self.left_out().items()]
        if (simpler := self.simpler()) is not None:
            names = ", ".join(self._described(simpler)["ranges"])
            worse = self._worse(simpler.value / own.value)
            notes.insert(0, f"simpler: {names}: {worse}, and predictions err by {percent(ERROR)}")
        return "\n".join([*lines, *([""] if notes else []), *notes])

    def _unit(self, value: float) -> str:
        if self.problem.objective == "latency":
            return f"{seconds(value)} per token"
        return f"{value:.4g} tokens/s"

    def _range_table(self) -> str:
        header = ("device", "layers", "weights", "KV cache", "workspace", "usable", "per token")
        layers, devices = self.problem.model.layers, self.problem.cluster.devices
        rows = []
        for each, cost in self._parts():
            first, last = layers[each.start].name, layers[each.end - 1].name
            spilled = f" (last {each.from_disk} from disk)" if each.from_disk else ""
            rows.append(
                (
                    devices[each.device].name,
                    (first if first == last else f"{first} to {last}") + spilled,
                    size(cost.weight_bytes + cost.disk_bytes),
                    size(cost.cache_bytes),
                    size(cost.workspace_bytes),
                    size(float(self.problem.capacity[each.device])),
                    seconds(cost.token_s),
                )
            )
        return plain_table(header, rows, "  rrrrr")

    def _candidate_table(self) -> str:
        header = ("plan", "devices", "per token", "tokens/s", "first token", "")
        rows = []
        for each in self.candidates():
            own = each.judgement
            numbers = (seconds(own.token_s), f"{own.tokens_per_s:.4g}", seconds(own.first_token_s))
            shown = ("-", "-", "-") if each.why else numbers
            rows.append((each.name, str(len(own.plan.ranges)), *shown, each.why))
        return plain_table(header, rows, " rrrr")


def _numbers(own: MapJudgement) -> dict[str, Any]:
    names = ("token_s", "tokens_per_s", "first_token_s")
    return {name: finite(getattr(own, name)) for name in names}


def _infeasible(problem: MapProblem) -> InfeasibleError:
    """The error where no plan fits: by how much, and the longest context that does."""
    need = float((problem.weights - problem.shared + problem.cache).sum())
    room = float(problem.capacity.sum())
    by = f"{show(need, BYTES)} of weights and caches, {show(room, BYTES)} usable"
    if need > room:
        by += f": {show(need - room, BYTES)} too little"
    else:
        by += ", but not in consecutive whole layers, with workspaces, over links that are there"
    longest = _longest_context(problem)
    if longest:
        hint = f"the longest context that fits is {longest}; or fewer users, or a smaller dtype"
    else:
        hint = "no context fits: give more devices, a smaller dtype, or disk_bandwidth of a device"
    return InfeasibleError(
        f"no plan holds a context of {problem.context} tokens for {problem.users} "
        f"user{'s' if problem.users > 1 else ''}",
        where=f"{problem.model.name} on {problem.cluster.name}",
        by=by,
        hint=hint,
    )


def _longest_context(problem: MapProblem) -> int:
    """By bisection: what fits with some context fits with a shorter one."""
    low, high = 0, problem.context
    while high - low > 1:
        middle = (low + high) // 2
        try:
            shorter = problem.replace(
                context=middle, prompt=min(problem.prompt, middle), objective="latency"
            )
        except InputError:
            high = middle
            continue
        if plan_map(shorter).best is None:
            high = middle
        else:
            low = middle
    return low
