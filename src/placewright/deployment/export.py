"""Weights of a placed model on their way out: a state dict, safetensors files, a plain module."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from placewright.capturing.state import aliases
from placewright.errors import InputError, RunError
from placewright.io.tensor_files import INDEX, AnyTensor, StoredTensor, size_of, write_tensors

if TYPE_CHECKING:
    from placewright.deployment.workload import Workload

WHOLE = "model.safetensors"
"""All weights, where one file is enough."""

MOST_BYTES = 5_000_000_000
"""Of one file; a larger tensor has a file of its own."""


def current_weights(workload: Workload, changed: Mapping[str, Tensor]) -> dict[str, AnyTensor]:
    """Parameters and persistent buffers by every name in the model's ``state_dict``.

    `changed`: what workers have changed since they started, by program input.
    Raises `InputError`: the model has no weights.
    """
    model, values, program = workload.source.model, workload.values, workload.graph.program
    inputs = {i.key: i.name for i in program.inputs if i.role in ("parameter", "buffer")}
    first = {name: key for key, names in aliases(workload.source).items() for name in names}
    found: dict[str, AnyTensor] = {}
    for name, own in model.state_dict(keep_vars=True).items():
        if not isinstance(own, Tensor):
            continue
        key = first.get(name, name)
        entry = inputs.get(key, "")
        if entry in changed:
            found[name] = changed[entry]
        elif not own.is_meta:
            found[name] = own.detach()
        elif entry in values:
            found[name] = values[entry]
        elif key in workload.weights or name in workload.weights:
            found[name] = workload.weights.get(key) or workload.weights[name]
        else:
            raise RunError(
                f"the weights lack {name!r}, which no operator of the placed step reads",
                where=f"model {workload.graph.name}",
                hint="give weights that have it, or build it off the meta device",
            )
    return found


def own_tensor(weight: AnyTensor) -> Tensor:
    """A tensor that shares no memory with the model."""
    return weight.read() if isinstance(weight, StoredTensor) else weight.clone()


def save_weights(workload: Workload, weights: Mapping[str, AnyTensor], folder: Path) -> None:
    """Write safetensors files, with an index where they are several, and the configuration.

    A tied weight is written under the first of its names. Weights in files are copied from file to
    file: this process holds none of them.

    Raises `InputError`: the folder is the one that the weights are read from.
    Raises `RunError`: the disk does not take them; files of that name that were there before are
    left.
    """
    _check_apart(weights, folder)
    tied = {name for names in aliases(workload.source).values() for name in names[1:]}
    shards = _shards({name: value for name, value in weights.items() if name not in tied})
    names = [_file_name(k, len(shards)) for k in range(len(shards))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, shard in zip(names, shards, strict=True):
            # All are written before one is renamed: a full disk leaves what was there.
            write_tensors(folder / f"{name}.new", shard)
        for name in names:
            (folder / f"{name}.new").replace(folder / name)
        # Of an earlier save, in one file or several: readers look for these names first.
        for name in {WHOLE, INDEX}.difference(names):
            (folder / name).unlink(missing_ok=True)
        if len(shards) > 1:
            where = {key: n for n, s in zip(names, shards, strict=True) for key in s}
            total = sum(size_of(value) for shard in shards for value in shard.values())
            index = {"metadata": {"total_size": total}, "weight_map": where}
            (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    except OSError as error:
        for name in names:
            (folder / f"{name}.new").unlink(missing_ok=True)
        raise RunError(
            f"the weights cannot be written: {error.strerror or error}",
            where=str(folder),
            by=f"{sum(map(size_of, weights.values())) / 1e6:.0f} MB",
            hint="free space there, or give another folder",
        ) from error
    config: Any = getattr(workload.source.model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.save_pretrained(str(folder))


def _check_apart(weights: Mapping[str, AnyTensor], folder: Path) -> None:
    read = {Path(w.path).parent for w in weights.values() if isinstance(w, StoredTensor)}
    if any(folder.resolve() == source.resolve() for source in read):
        raise InputError(
            "the workers read their weights from this folder",
            where=str(folder),
            hint="save into another folder",
        )


def _shards(weights: Mapping[str, AnyTensor]) -> list[dict[str, AnyTensor]]:
    """The weights in order, cut where a file would become larger than `MOST_BYTES`."""
    shards: list[dict[str, AnyTensor]] = [{}]
    size = 0
    for name, value in weights.items():
        if shards[-1] and size + size_of(value) > MOST_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += size_of(value)
    return shards


def _file_name(k: int, count: int) -> str:
    return WHOLE if count == 1 else f"model-{k + 1:05d}-of-{count:05d}.safetensors"


def plain_module(model: nn.Module, weights: Mapping[str, AnyTensor]) -> nn.Module:
    """A copy of the model with these weights on the CPU; tied ones stay tied."""
    made = copy.deepcopy(model)
    _materialise(made)
    with torch.no_grad():
        for name, own in made.state_dict(keep_vars=True).items():
            if name in weights:
                given = weights[name]
                own.copy_(given.read() if isinstance(given, StoredTensor) else given)
    return made


def _materialise(model: nn.Module) -> None:
    """Give parameters and buffers on the meta device memory on the CPU."""
    known: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, or its id would be used again
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is None or not value.is_meta:
                    continue
                empty = torch.empty_like(value, device="cpu")
                if isinstance(value, nn.Parameter):
                    empty = nn.Parameter(empty, requires_grad=value.requires_grad)
                held[name] = known.setdefault(id(value), (value, empty))[1]  # type: ignore[assignment]
