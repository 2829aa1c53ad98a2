"""What a training loop does to its model and optimizer between two steps, in tests of two wings."""

from __future__ import annotations

from torch import nn, optim


def halve(model: nn.Module, _: optim.Optimizer) -> None:
    """Load other weights."""
    state = model.state_dict()
    model.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in state.items()})


def clip_after_reading(model: nn.Module, _: optim.Optimizer) -> None:
    """Change the newest weights through ``data``."""
    model.state_dict()
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


def reset_moments(_: nn.Module, optimizer: optim.Optimizer) -> None:
    """Change the optimizer's state in place."""
    for kept in optimizer.state.values():
        kept["exp_avg"].zero_()
