"""Custom optimizer classes, in a module that workers can import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """Sign of an average of gradients (arXiv:2302.06675); counts its steps in a Python number."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.slowing = 0.01

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group, self.state[p])

    def _update(self, p: torch.Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        first, second = group["betas"]
        if not state:
            state["average"], state["count"] = torch.zeros_like(p), 0
        state["count"] += 1
        p.mul_(1 - group["lr"] * group["weight_decay"])
        assert p.grad is not None
        direction = (state["average"] * first + p.grad * (1 - first)).sign()
        p.add_(direction, alpha=-group["lr"] / (1 + self.slowing * state["count"]))
        state["average"] = state["average"] * second + p.grad * (1 - second)


class Mixing(Lion):
    """Divides by the norm of all gradients together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Divide, then update."""
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        for gradient in gradients:
            gradient /= norm
        super().step()


class Noisy(Lion):
    """Adds noise."""

    def _update(self, p: torch.Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        p.add_(torch.randn_like(p), alpha=group["lr"])


class Counting(Lion):
    """Counts its steps in an attribute."""

    steps = 0

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, lr)
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count, then update."""
        self.steps += 1
        super().step()
