"""Whether a snapshot is one of this model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from placewright.errors import InputError
from placewright.graph.graph import TensorSpec


def check_same_model(
    state: Mapping[str, torch.Tensor], changing: Mapping[str, TensorSpec], where: str
) -> None:
    """What a snapshot holds is what this model's steps change, name by name and shape by shape.

    Parameters
    ----------
    state
        Of the snapshot.
    changing
        Of the model: parameters, buffers and optimizer state by program input.

    Raises
    ------
    InputError
        The first tensor that only one of them has, or that differs.
    """
    for name in sorted(state.keys() | changing.keys()):
        theirs, ours = _told(state.get(name)), _told(changing.get(name))
        if theirs != ours:
            raise InputError(
                "the snapshot is of another model or optimizer",
                where=where,
                by=f"{name!r}: {theirs} in the snapshot, {ours} in the model",
                hint="give every model a snapshot folder of its own",
            )


def _told(tensor: torch.Tensor | TensorSpec | None) -> str:
    if tensor is None:
        return "not there"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
