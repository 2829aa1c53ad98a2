"""The layers of one worker's stage as an ``nn.Module``, with the layouts between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placewright.layers.execution.layer_module import LayerModule
from placewright.layers.execution.layouts import Peers, to_rows, to_whole

IN_ROWS = ("data", "sharded")
"""Strategies in which each worker of a replica takes its own samples."""


class StageModule(nn.Module):
    """Layers of a stage on one worker; takes and returns whole activations of its replica.

    `waited_s`: seconds that forward passes have waited for the other workers of the replica so far.

    Parameters
    ----------
    strategies
        By layer.
    peers
        The workers of the replica; ``None`` for one alone.
    shared_feeds
        Values of the batch that are not cut along samples.
    """

    def __init__(
        self,
        layers: Sequence[LayerModule],
        strategies: Sequence[str],
        peers: Peers | None,
        *,
        is_last: bool,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.in_rows = [peers is not None and s in IN_ROWS for s in strategies]
        self.peers, self.is_last, self.recompute = peers, is_last, recompute
        self.shared_feeds: Mapping[str, Tensor] = {}
        self.waited_s = 0.0

    def forward(self, *values: Tensor, **batched: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Activations of the next stage, or the loss of the worker's samples."""
        if self.peers is None:
            return self._forward(values, batched)
        before = self.peers.waited_s
        made = self._forward(values, batched)
        self.waited_s += self.peers.waited_s - before
        return made

    def _forward(
        self, values: tuple[Tensor, ...], batched: Mapping[str, Tensor]
    ) -> Tensor | tuple[Tensor, ...]:
        whole = {**batched, **self.shared_feeds}
        own = {k: to_rows(v, self.peers) for k, v in batched.items()} if self.peers else batched
        rows = {**own, **self.shared_feeds}
        if not self.layers[0].program.inputs:  # type: ignore[union-attr]
            values = ()  # the pipeline's first stage is given a token
        values = tuple(map(_sendable_gradient, values))
        at_rows = False
        for layer, in_rows in zip(self.layers, self.in_rows, strict=True):
            values = self._moved(values, at_rows, in_rows)
            feeds = rows if in_rows else whole
            if self.recompute:
                values = checkpoint(layer, *values, feeds=feeds, use_reentrant=False)
            else:
                values = layer(*values, feeds=feeds)
            at_rows = in_rows
        if self.is_last:
            return values[0]
        values = self._moved(values, at_rows, False)
        values = tuple(value.contiguous() for value in values)  # messages have no strides
        return values[0] if len(values) == 1 else values

    def _moved(self, values: tuple[Tensor, ...], at_rows: bool, to: bool) -> tuple[Tensor, ...]:
        if at_rows == to or self.peers is None:
            return values
        change = to_rows if to else to_whole
        return tuple(change(value, self.peers) for value in values)


def _sendable_gradient(value: Tensor) -> Tensor:
    """The value; its gradient goes back to the stage before in one piece of memory."""
    if value.requires_grad:
        value = value.view_as(value)
        value.register_hook(lambda gradient: gradient.contiguous())  # type: ignore[no-untyped-call]
    return value
