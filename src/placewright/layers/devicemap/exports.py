"""A device map in the words of those that run it: accelerate, llama.cpp, vLLM, PyTorch.

Each says the ranges of blocks and how much memory; what a runtime cannot follow is in its notes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from placewright.cluster.devices import Device
from placewright.errors import InputError, UnsupportedError
from placewright.layers.devicemap.judge import MapJudgement
from placewright.layers.devicemap.problem import LayerRange, MapProblem

Target: TypeAlias = Literal["accelerate", "llamacpp", "vllm", "torch"]

RPC_PORT = 50052
"""Of llama.cpp's rpc-server by default; a second device of a host has the next one."""


def exported(problem: MapProblem, found: MapJudgement, target: Target) -> dict[str, Any]:
    """The plan as data of the target, with ``notes``.

    Raises `UnsupportedError`: the target cannot run it.
    """
    writers: dict[str, Callable[[MapProblem, MapJudgement], dict[str, Any]]] = {
        "accelerate": _accelerate,
        "llamacpp": _llama_cpp,
        "vllm": _vllm,
        "torch": _torch,
    }
    return writers[target](problem, found)


def _accelerate(problem: MapProblem, found: MapJudgement) -> dict[str, Any]:
    """``device_map`` and ``max_memory`` for ``from_pretrained`` or ``dispatch_model``."""
    ranges, devices = found.plan.ranges, problem.cluster.devices
    nodes = sorted({devices[each.device].node for each in ranges})
    if len(nodes) > 1:
        raise UnsupportedError(
            "accelerate runs a model on one machine",
            where=f"devices of {problem.cluster.name}",
            by=f"the plan uses {len(nodes)} nodes: {', '.join(nodes)}",
            hint="export it for llamacpp, vllm or torch, or plan on the devices of one node",
        )
    names = {each.device: _accelerate_name(problem, each.device) for each in ranges}
    where: dict[str, int | str] = {}
    for each in ranges:
        for k in range(each.start, each.end):
            kept = each.end - each.from_disk
            # A tied layer whose parameters are in memory needs none from disk.
            spilled = k >= kept and not each.start <= problem.tied.get(k, -1) < kept
            for module in problem.model.layers[k].modules:
                where[module] = "disk" if spilled else names[each.device]
    room = {
        names[each.device]: int(cost.weight_bytes)
        for each, cost in zip(ranges, found.costs, strict=True)
    }
    notes = []
    if len(room) > 1 and "cpu" in room:
        copied = room["cpu"]
        notes.append(
            f"accelerate copies the {copied / 2**30:.1f} GiB on the CPU to a GPU in every step, "
            "where the prediction is for a CPU that computes them"
        )
    if any(each.from_disk for each in ranges):
        notes.append("give from_pretrained an offload_folder for what is on disk")
    return {"device_map": where, "max_memory": room, "notes": notes}


def _accelerate_name(problem: MapProblem, device: int) -> int | str:
    """The number of a GPU among those of its node, or ``cpu``."""
    return "cpu" if problem.cluster.devices[device].kind == "cpu" else _number(problem, device)


def _number(problem: MapProblem, device: int) -> int:
    """Of an accelerator among those of its kind on its node."""
    devices = problem.cluster.devices
    own = devices[device]
    alike = [d for d, x in enumerate(devices) if (x.node, x.kind) == (own.node, own.kind)]
    return alike.index(device)


def _llama_cpp(problem: MapProblem, found: MapJudgement) -> dict[str, Any]:
    """Flags of ``llama-server``: devices in the order of the plan, and the blocks of each."""
    devices, ranges = problem.cluster.devices, found.plan.ranges
    host = devices[ranges[0].device].node
    counts = _blocks(problem, ranges)
    offloaded = [(each, n) for each, n in counts if not _is_host_cpu(devices[each.device], host)]
    flags, notes = [], []
    remote = [each.device for each, _ in offloaded if devices[each.device].node != host]
    ends = _endpoints([devices[d] for d in remote])
    if remote:
        flags += ["--rpc", ",".join(ends.values())]
        notes += [f"run rpc-server at {end} for {name}" for name, end in ends.items()]
    # The head counts as one more layer, and goes with the last device.
    with_head = bool(offloaded) and offloaded[-1][0].end == problem.n
    layers = sum(n for _, n in offloaded) + with_head
    flags += ["-ngl", str(layers)]
    if offloaded:
        names = [_llama_name(problem, each.device, ends) for each, _ in offloaded]
        split = [n + (with_head and each is offloaded[-1][0]) for each, n in offloaded]
        flags += ["--split-mode", "layer", "--device", ",".join(names)]
        flags += ["--tensor-split", ",".join(map(str, split))]
    overrides, more = _overrides(problem, ranges, host, ends)
    flags += overrides
    notes += more
    tokens = problem.context * problem.users
    flags += ["--ctx-size", str(tokens), "--parallel", str(problem.users)]
    notes += _without_blocks(problem, ranges)
    notes.append("llama.cpp keeps the input embedding on the CPU of the host")
    if any(each.from_disk for each in ranges):
        notes.append("weights beyond memory are read through mmap, which is the default")
    return {"command": shlex.join(["llama-server", *flags]), "flags": flags, "notes": notes}


def _blocks(problem: MapProblem, ranges: Sequence[LayerRange]) -> list[tuple[LayerRange, int]]:
    """Ranges with blocks, and how many."""
    blocks = set(problem.model.blocks)
    counted = [(each, len(blocks & set(range(each.start, each.end)))) for each in ranges]
    return [(each, n) for each, n in counted if n]


def _without_blocks(problem: MapProblem, ranges: Sequence[LayerRange]) -> list[str]:
    """Notes on devices that hold an embedding, a norm or the head only."""
    counted = {each.device for each, _ in _blocks(problem, ranges)}
    layers, devices = problem.model.layers, problem.cluster.devices
    return [
        f"{devices[each.device].name} is left out: it holds no block, but "
        + " and ".join(layer.name for layer in layers[each.start : each.end])
        for each in ranges
        if each.device not in counted
    ]


def _is_host_cpu(device: Device, host: str) -> bool:
    return device.kind == "cpu" and device.node == host


def _endpoints(devices: Sequence[Device]) -> dict[str, str]:
    """Host and port of each device's rpc-server."""
    ports: dict[str, int] = {}
    found = {}
    for device in devices:
        port = ports[device.node] = ports.get(device.node, RPC_PORT - 1) + 1
        found[device.name] = f"{device.node}:{port}"
    return found


def _llama_name(problem: MapProblem, device: int, ends: dict[str, str]) -> str:
    own = problem.cluster.devices[device]
    if own.name in ends:
        return f"RPC[{ends[own.name]}]"
    return f"CUDA{_number(problem, device)}"


def _overrides(
    problem: MapProblem, ranges: Sequence[LayerRange], host: str, ends: dict[str, str]
) -> tuple[list[str], list[str]]:
    """``-ot`` flags for blocks on the host's CPU that are not the first ones.

    llama.cpp gives the first blocks to the CPU. That is as good where blocks are alike, and there
    need be no override; otherwise each block is named.
    """
    devices, layers = problem.cluster.devices, problem.model.layers
    blocks = problem.model.blocks
    number = {k: i for i, k in enumerate(blocks)}
    held = [
        (each, [number[k] for k in range(each.start, each.end) if k in number]) for each in ranges
    ]
    on_cpu = [(e, b) for e, b in held if b and _is_host_cpu(devices[e.device], host)]
    first = all(b[0] == 0 for _, b in on_cpu)
    if not on_cpu or first:
        return [], []
    alike = len({(layers[k].parameters, layers[k].window) for k in blocks}) == 1
    if alike:
        count = sum(len(b) for _, b in on_cpu)
        return [], [f"llama.cpp gives the CPU its first {count} blocks, not those of the plan"]
    flags = []
    for each, own in held:
        if own:
            cpu = _is_host_cpu(devices[each.device], host)
            name = "CPU" if cpu else _llama_name(problem, each.device, ends)
            flags += ["-ot", rf"blk\.({'|'.join(map(str, own))})\.={name}"]
    return flags, []


def _vllm(problem: MapProblem, found: MapJudgement) -> dict[str, Any]:
    """Environment and flags of ``vllm serve``: blocks of each stage of the pipeline."""
    devices = problem.cluster.devices
    counts = _blocks(problem, found.plan.ranges)
    used = [devices[each.device] for each, _ in counts]
    on_cpu = [device.name for device in used if device.kind == "cpu"]
    if on_cpu and len(on_cpu) < len(used):
        raise UnsupportedError(
            "vLLM runs a pipeline on devices of one kind",
            where=f"device {on_cpu[0]!r}",
            by=f"the plan uses {len(used) - len(on_cpu)} accelerators and {len(on_cpu)} CPUs",
            hint="export it for llamacpp, or plan on the accelerators only",
        )
    if any(each.from_disk for each, _ in counts):
        raise UnsupportedError(
            "vLLM keeps all weights in memory",
            where=problem.model.name,
            by=f"{sum(each.from_disk for each, _ in counts)} layers are read from disk",
            hint="give a smaller number format (--dtype int4) or more devices, or use llamacpp",
        )
    partition = ",".join(str(n) for _, n in counts)
    environment = {"VLLM_PP_LAYER_PARTITION": partition}
    notes = _without_blocks(problem, found.plan.ranges)
    if len({device.node for device in used}) == 1 and not on_cpu:
        order = ",".join(str(_number(problem, each.device)) for each, _ in counts)
        environment["CUDA_VISIBLE_DEVICES"] = order
    else:
        names = ", ".join(device.name for device in used)
        notes.append(f"start the workers so that ranks are, in this order: {names}")
    flags = ["--pipeline-parallel-size", str(len(counts)), "--max-model-len", str(problem.context)]
    flags += ["--max-num-seqs", str(problem.users)]
    flags += ["--gpu-memory-utilization", f"{problem.memory_share:g}"]
    words = [f"{key}={value}" for key, value in environment.items()]
    command = " ".join([*words, "vllm", "serve", "MODEL", *flags])
    return {"environment": environment, "flags": flags, "command": command, "notes": notes}


def _torch(problem: MapProblem, found: MapJudgement) -> dict[str, Any]:
    """Split points of ``torch.distributed.pipelining``: where each stage but the first begins."""
    devices, ranges = problem.cluster.devices, found.plan.ranges
    layers = problem.model.layers
    points = []
    for each in ranges[1:]:
        modules = layers[each.start].modules
        if not modules:
            raise InputError(
                f"{layers[each.start].name!r} has no module to split before",
                where=problem.model.name,
                by=f"layer {each.start}",
                hint="give the nn.Module itself",
            )
        points.append(modules[0])
    return {
        "split_points": dict.fromkeys(points, "BEGINNING"),
        "stages": [devices[each.device].name for each in ranges],
        "notes": ["pipeline(module, mb_args, split_spec={name: SplitPoint.BEGINNING, ...})"],
    }
