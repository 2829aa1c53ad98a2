"""Tensors of every layout can be written to safetensors files."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from placewright.runtime.step.devices import storable


def test_shared_and_turned_tensors_are_read_back_equal() -> None:
    """The same tensor twice, overlapping and turned views, parameters, empty ones and numbers."""
    words = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "input": words[:, :-1],
        "target": words[:, 1:],
        "again": words,
        "turned": words.t(),
        "weight": torch.nn.Parameter(words),
        "none": torch.empty(0, 3),
        "one": torch.tensor(2.0),
    }
    found = load(save(storable(tensors)))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_nothing_is_copied_that_need_not_be() -> None:
    """Tensors that lie in memory of their own."""
    tensors = {"a": torch.ones(3), "b": torch.ones(4)}
    assert all(storable(tensors)[n].data_ptr() == tensors[n].data_ptr() for n in tensors)
