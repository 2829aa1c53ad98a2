"""State of a process's random-number generator, as it travels between processes."""

from __future__ import annotations

import torch


def random_state() -> bytes:
    """Where the generator of `torch.manual_seed` stands, on the CPU."""
    return bytes(torch.get_rng_state().numpy())


def set_random_state(state: bytes) -> None:
    """Let the generator go on from a state that `random_state` gave, here or elsewhere."""
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
