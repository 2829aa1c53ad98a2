"""Tensors keep bits and layout when they are sent."""

from __future__ import annotations

import pytest
import torch

from placewright.graph.graph import TensorSpec
from placewright.runtime.wire import Streams, tensor_of, wire, wire_bytes

CASES = [
    torch.arange(24.0).reshape(2, 3, 4),
    torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    torch.arange(24).reshape(4, 6)[:, ::2],
    torch.arange(4.0).reshape(4, 1).expand(4, 5),
    torch.arange(24.0).reshape(2, 3, 4)[:, :1, ::2].expand(2, 7, 2),
    torch.rand(1, 3, 8, 8).contiguous(memory_format=torch.channels_last),
    torch.tensor([True, False, True]),
    torch.tensor(3.5),
    torch.empty(0, 3),
    torch.arange(10, dtype=torch.bfloat16)[3:],
]


@pytest.mark.parametrize("tensor", CASES, ids=lambda t: f"{tuple(t.shape)}{t.dtype}"[6:])
def test_a_tensor_survives_the_wire(tensor: torch.Tensor) -> None:
    """Values and strides are equal, also where elements have gaps or share memory."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    spec = TensorSpec(tuple(tensor.shape), dtype, tuple(tensor.stride()))
    raw = wire(tensor, spec)
    assert raw.dtype == torch.uint8
    assert raw.numel() == wire_bytes(spec)
    got = tensor_of(raw.clone(), spec)
    assert torch.equal(got, tensor)
    if tensor.numel():
        assert got.stride() == tensor.stride()


def test_a_copy_does_not_see_what_happens_to_its_source() -> None:
    """Two devices of one process may be the same memory; a message must not be."""
    tensor = torch.arange(4.0)
    moved = Streams(["cpu", "cpu"]).copy(tensor, torch.device("cpu"))
    tensor.zero_()
    assert moved.join().tolist() == [0, 1, 2, 3]
    assert moved.seconds() >= 0


def test_what_is_in_host_memory_leaves_from_there() -> None:
    """No copy, no time."""
    tensor = torch.arange(4.0)
    moved = Streams(["cpu"]).to_host(tensor)
    assert moved.wait() is tensor
    assert moved.seconds() == 0
