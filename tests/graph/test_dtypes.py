"""Names of dtypes are those of PyTorch."""

from __future__ import annotations

import torch

from placewright.graph.graph import DTYPES, NO_DTYPE


def test_every_dtype_of_pytorch_has_its_name() -> None:
    """Whatever is captured can be read back, and nothing else is read."""
    found = [str(made) for made in vars(torch).values() if isinstance(made, torch.dtype)]
    assert {*DTYPES} == {NO_DTYPE, *(name.removeprefix("torch.") for name in found)}
