"""Initial values of a program: real tensors for its inputs."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from warnings import warn

import torch
from torch import Tensor

from placewright.capturing.source import ModelSource
from placewright.capturing.user_optimizer import current_settings, optimizer_state
from placewright.errors import InputError, UnsupportedError
from placewright.graph.graph import Program, ProgramInput, TensorSpec
from placewright.io.arguments import checked
from placewright.io.tensor_files import AnyTensor, StoredTensor


@checked
def initial_state(
    source: ModelSource,
    program: Program,
    only: Collection[str] | None = None,
    *,
    copy: bool = True,
) -> dict[str, Tensor]:
    """`ProgramInput.name` -> tensor of exactly its shape, dtype and strides.

    Parameters and buffers are copies of the model's. Optimizer state is zero, but for what the
    optimizer object of a recipe holds already.

    Parameters
    ----------
    source
        A really built model with its inputs (``load_model(..., weights=True)``).
    only
        Names to make; all by default. A worker asks for what lives on its device.
    copy
        Where not, those tensors of the model that have the strides are given themselves.

    Raises
    ------
    InputError
        The program was captured from another model, or the model has no weights.
    """
    names = None if only is None else set(only)
    found = source.values()
    found |= {("given", name): value for name, value in _of_optimizer(source, program).items()}
    wanted = [e for e in program.inputs if names is None or e.name in names]
    return {entry.name: _value(entry, found, program, copy=copy) for entry in wanted}


def stored_state(
    source: ModelSource, program: Program, weights: Mapping[str, StoredTensor]
) -> dict[str, AnyTensor]:
    """Initial values whose parameters and buffers stay in files; no weight is read.

    Raises `InputError`: a tensor is missing, or has another shape than the model's.

    Parameters
    ----------
    source
        The model may be on the meta device; what the files lack it has to have itself. Inputs on
        the meta device start as zeros, and so does the optimizer's state.
    weights
        By the names of the model's ``state_dict``; a tied one under any of its names.
    """
    found, names = source.values(), source.aliases()
    found |= {("given", name): value for name, value in _of_optimizer(source, program).items()}
    state: dict[str, AnyTensor] = {}
    lacking: list[str] = []
    for entry in program.inputs:
        value = found.get((entry.role, entry.key))
        given = next((weights[n] for n in names.get(entry.key, ()) if n in weights), None)
        if entry.role in ("parameter", "buffer") and given is not None:
            state[entry.name] = _checked(given, entry)
        elif entry.role in ("input", "target") and isinstance(value, Tensor) and value.is_meta:
            continue
        elif isinstance(value, Tensor) and value.is_meta:
            raise _missing(entry, weights)
        else:
            lacking += [entry.key] * (entry.role == "parameter" and entry.key in names)
            state[entry.name] = _value(entry, found, program, copy=False)
    _check_lacking(weights, lacking, state)
    _warn_of_others(weights, {n for own in names.values() for n in own}, program)
    return state


def is_expanded(tensor: Tensor) -> bool:
    """Whether several of its values are in one place of memory, so that nothing can be written."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in pairs)


def demand_written(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise `UnsupportedError` where a tensor has a type that safetensors, our files, lack."""
    for name, value in tensors.items():
        if value.dtype is torch.complex128 or value.is_quantized:
            kind = str(value.dtype).removeprefix("torch.")
            hint = "convert the model: complex64 has a place in files of safetensors"
            by = f"{name!r} is {kind}"
            raise UnsupportedError("weights cannot be written", where=where, by=by, hint=hint)


def _check_lacking(
    weights: Mapping[str, StoredTensor], lacking: Sequence[str], state: Mapping[str, AnyTensor]
) -> None:
    """Say that parameters have the model's own values.

    Raises `InputError`: all of them have.
    """
    if not lacking:
        return
    path, first = next(iter(weights.values())).path, lacking[0]
    if not any(isinstance(value, StoredTensor) for value in state.values()):
        raise InputError(
            "the weights are of another model",
            where=path,
            by=f"none of the model's {len(lacking)} parameters is there, {first!r} for one",
            hint="give the weights that were saved from this model",
        )
    warn(
        f"{path}: {_shown(lacking)}: not there, so the model's own values are used\n"
        "  next: nothing if they are of a part that you added; else give the weights that were "
        "saved from this model",
        stacklevel=3,
    )


def _shown(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _warn_of_others(weights: Mapping[str, StoredTensor], known: set[str], program: Program) -> None:
    """Name tensors of the files that the model does not have."""
    extra = sorted(weights.keys() - known - {entry.key for entry in program.inputs})
    if extra:
        warn(
            f"{weights[extra[0]].path}: {_shown(extra)}: the model has no such tensors, so they "
            "are not used\n  next: nothing if they are of a part that you left out; else give the "
            "weights that were saved from this model",
            stacklevel=2,
        )


def _checked(given: StoredTensor, entry: ProgramInput) -> StoredTensor:
    if given.shape != entry.spec.shape:
        raise InputError(
            "the weights are of another model",
            where=f"{given.path}: {given.name!r}",
            by=f"shape {given.shape}, the model has {entry.spec.shape}",
            hint="give the weights that were saved from this model",
        )
    return given


def _missing(entry: ProgramInput, weights: Mapping[str, StoredTensor]) -> InputError:
    near = get_close_matches(entry.key, weights, n=1, cutoff=0.5)
    files = sorted({stored.path for stored in weights.values()})
    return InputError(
        f"the weights lack the {entry.role} {entry.key!r}, and the model has no values for it",
        where=", ".join(files[:2]) or "no files",
        by=f"{len(weights)} tensors in {len(files)} files"
        + (f", the nearest name is {near[0]!r}" if near else ""),
        hint="save the weights from this model, or build what is not saved (a buffer with "
        "persistent=False) off the meta device: under accelerate.init_empty_weights(), say, which "
        "leaves buffers on the CPU",
    )


def _of_optimizer(source: ModelSource, program: Program) -> dict[str, Tensor]:
    """Settings of parameter groups and existing state, by program input."""
    recipe = source.recipe
    if recipe is None or not isinstance(recipe.optimizer, torch.optim.Optimizer):
        return {}
    state = optimizer_state(program, recipe.optimizer, source.parameters())
    return state | current_settings(program, recipe.optimizer)


def _value(
    entry: ProgramInput,
    found: dict[tuple[str, str], object],
    program: Program,
    *,
    copy: bool = True,
) -> Tensor:
    if entry.role in ("state", "setting"):
        given = found.get(("given", entry.name))
        made = _empty(entry.spec).zero_()
        return made.copy_(given) if isinstance(given, Tensor) and not given.is_meta else made
    if entry.role == "constant":
        return decode(program.constants[entry.name], entry.spec)
    value = found.get((entry.role, entry.key))
    if not isinstance(value, Tensor):
        raise InputError(
            f"the model has no {entry.role} {entry.key!r}", where=entry.name, hint=_CHANGED
        )
    if value.is_meta:
        raise InputError(
            "the model was built without weights",
            where=entry.name,
            hint="give their files, place(..., weights=FOLDER), or load it with weights=True",
        )
    if tuple(value.shape) != entry.spec.shape or _dtype(entry.spec) != value.dtype:
        raise InputError(
            "the model differs from the one that was captured",
            where=entry.name,
            by=f"{tuple(value.shape)} {value.dtype}, captured {entry.spec.shape} "
            f"{entry.spec.dtype}",
            hint=_CHANGED,
        )
    given = value.detach().resolve_conj().resolve_neg()
    if not copy and given.device.type == "cpu" and given.stride() == entry.spec.stride:
        return given
    return _empty(entry.spec).copy_(given)


_CHANGED = "place the model again, as it is now; a saved graph needs the model that it was made of"


def decode(data: str, spec: TensorSpec) -> Tensor:
    """A constant's tensor from the base64 of its bytes."""
    raw = bytearray(base64.b64decode(data))
    if not raw:
        return _empty(spec)
    # A bytearray, which is writable: PyTorch warns of tensors over bytes that are not.
    return torch.frombuffer(raw, dtype=_dtype(spec)).reshape(spec.shape)


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=_dtype(spec))


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype
