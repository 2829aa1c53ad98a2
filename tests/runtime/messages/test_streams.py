"""Copies without a GPU are safe from later changes of their source."""

from __future__ import annotations

import torch

from placewright.runtime.messages.streams import Streams


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
