"""A training step of one worker's stage: micro-batches, gradient sums, optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from placewright.capturing.program_calls import set_random_state
from placewright.capturing.updates import (
    ACCUMULATED,
    HOLD,
    OPTIMIZER,
    SCALE,
    SETTINGS,
    divided,
    squared_sum,
)
from placewright.layers.execution.layer_module import (
    LayerModule,
    LayerOrder,
    StageOrder,
    TensorModule,
    casting,
)
from placewright.layers.execution.layouts import Peers, gradient_summed, sharded, to_rows, to_whole
from placewright.layers.execution.pipeline import PipelinePart
from placewright.runtime.emulation import Stretch

Groups = Mapping[tuple[int, ...], Any]

BUCKET_MB = 4

MOST_REPLICAS = 1 << 20
"""Of a stage: their seeds are apart."""

OF_UPDATE = SETTINGS, SCALE, HOLD
"""What comes with a batch and is none of the model's."""


class StageStep:
    """Modules, optimizer and batch of one worker.

    `orders`: of its stages: one, or several that are interleaved, on the same mesh.

    Attributes
    ----------
    forward_s, backward_s
        Seconds of the last step inside the layers, waiting for others included.
    work_s
        `forward_s` without waiting for the other workers of the replica.
    grad_norm
        Of all gradients of the last step before they were clipped; NaN where they are not.
    scale, overflow
        Of the loss; whether a gradient of the last step was infinite.
    hold, sums
        Whether gradients are kept for a later update, and those that are.
    """

    def __init__(
        self,
        orders: Sequence[StageOrder],
        state: Mapping[str, Tensor],
        device: torch.device,
        groups: Groups,
        stretch: Stretch | None,
    ) -> None:
        order = orders[0]
        self.orders, self.order, self.device, self.stretch = orders, order, device, stretch
        self.forward_s = self.backward_s = self.work_s = 0.0
        self.grad_norm, self.scale, self.overflow, self.hold = math.nan, 1.0, False, False
        self.sums: dict[nn.Parameter, Tensor] = {}
        self.state, self.everyone = state, groups.get(order.everyone)
        across = groups[order.across] if len(order.across) > 1 else None
        self.peers = self._peers(groups)
        self.stages = [self._stage(own).to(device) for own in orders]
        self.wrapped = [
            self._wrapped(own, stage, across)
            for own, stage in zip(orders, self.stages, strict=True)
        ]
        self.names = _names(nn.ModuleList(self.stages))
        trained = [p for p in self.names if p.requires_grad]
        self.updated = {p: _own_part(p) for p in trained}
        names = [self.names[p].removeprefix("model.") for p in trained]
        if order.zero_stage == 1 and across is not None and trained:
            self.optimizer = divided(order.update, trained, names, across)
        else:
            self.optimizer = order.update.made(self.updated.values(), names)
        self.frozen_states: dict[str, Tensor] = {}
        self.chain = groups[order.chain] if order.stages > 1 else None
        self.pipeline = self._pipeline()
        self.batched: dict[str, Tensor] = {}

    def resize(self, orders: Sequence[StageOrder]) -> None:
        """Compute the same stages on another number of samples; the next batch has so many."""
        self.orders, self.order, self.batched = orders, orders[0], {}
        if self.peers is not None:
            self.peers.rows = _rows(self.order)
        for stage, own in zip(self.stages, orders, strict=True):
            stage.take(own)
        self.pipeline = self._pipeline()

    def _pipeline(self) -> PipelinePart | None:
        if self.chain is None:
            return None
        return PipelinePart(self.orders, self.wrapped, self.device, self.chain, self.stretch)

    def draw_from(self, random: bytes) -> None:
        """Let the next step draw from a state of the generator.

        Where stages draw in order, the later ones get it from those before. Else every replica of
        every stage has numbers of its own.
        """
        order = self.order
        set_random_state(random)
        if not order.draws_in_order:
            seed = int(torch.randint(2**62, ()))
            if order.stage or order.replica:
                torch.manual_seed(seed + order.stage * MOST_REPLICAS + order.replica)

    @property
    def ends_random(self) -> bool:
        """Whether this worker's generator is after a step where one process's is, or stands for it.

        One worker's does: all have to go on from the same state.
        """
        order, last = self.order, self.orders[-1]
        ends = last.stage == last.stages - 1 if order.draws_in_order else order.stage == 0
        return ends and self._first

    def feed(self, batch: Mapping[str, Tensor]) -> None:
        """Take this replica's samples of a batch, one micro-batch after another."""
        order = self.order
        # A micro-batch holds the samples of all replicas, one after another; these are the own rows
        # of each.
        micro = sum(order.shares)
        start, share = sum(order.shares[: order.replica]), order.shares[order.replica]
        rows = torch.cat(
            [
                torch.arange(k * micro + start, k * micro + start + share)
                for k in range(order.micro_batches)
            ]
        ).to(self.device)
        self.batched = {name: value[rows] for name, value in batch.items() if name in order.batched}
        others = {k: v for k, v in batch.items() if k not in (*order.batched, *OF_UPDATE)}
        self.scale = float(batch.get(SCALE, 1.0))
        self.hold = bool(batch.get(HOLD, False))
        for stage in self.stages:
            stage.shared_feeds = others
        if SETTINGS in batch:
            order.update.set_numbers(self.optimizer, batch[SETTINGS].tolist())

    def run(self, *, update: bool) -> float:
        """One step; this worker's part of the loss of the whole batch."""
        for p in self.updated:
            p.grad = None
        self.forward_s = self.backward_s = 0.0
        for stage in self.stages:
            stage.waited_s = 0.0
        if self.stretch is not None:
            self.stretch.begin()
        if self.pipeline is None:
            loss = self._alone()
        else:
            self.pipeline.scale = self.scale
            loss = self.pipeline.step(self.batched)
            self.forward_s, self.backward_s = self.pipeline.forward_s, self.pipeline.backward_s
        self.work_s = self.forward_s - sum(stage.waited_s for stage in self.stages)
        if self.stretch is not None:
            self.stretch.begin()
        if update:
            for p, own in self.updated.items():
                # FSDP makes a new gradient each step; the optimizer has a plain tensor over the
                # same memory.
                if own is not p:
                    own.grad = p.grad.to_local() if isinstance(p.grad, DTensor) else None
            self._accumulate()
            if not self.hold:
                self._update()
        if self.stretch is not None:
            self.stretch.pay()
        return loss if any(order.counts for order in self.orders) else 0.0

    def _accumulate(self) -> None:
        """Add the gradients that were kept, and keep the sum where it is not updated by yet."""
        kept, self.sums = self.sums, {}
        for own in self.updated.values():
            before = kept.get(own)
            if before is not None and own.grad is not None:
                own.grad = before.add_(own.grad)
            elif before is not None and before.any():  # zeros: there never was a gradient
                own.grad = before
            if self.hold and own.grad is not None:
                # DDP writes the next gradients to the same memory.
                self.sums[own] = own.grad if own.grad is before else own.grad.clone()

    def _update(self) -> None:
        """Unscale and clip gradients, and let the optimizer take them if all are finite."""
        gradients = [own.grad for own in self.updated.values() if own.grad is not None]
        self.overflow = self.order.update.scaled and self._unscaled(gradients)
        if not self.overflow:
            norm = None if self.everyone is None else self._norm
            self.grad_norm = self.order.update.clip(gradients, norm)
            self.optimizer.step()

    def _unscaled(self, gradients: list[Tensor]) -> bool:
        """Whether a gradient of any worker was infinite; as `torch.amp.GradScaler.unscale_`."""
        found = torch.zeros(1, device=self.device)
        scale = torch.tensor([self.scale], device=self.device)
        if gradients:
            inverse = scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        if self.everyone is not None:
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.everyone)
        return bool(found)

    def _norm(self) -> Tensor:
        """Of the gradients of all workers, each element counted once."""
        order, cuts, total = self.order, self._cuts(), torch.zeros((), dtype=torch.float64)
        for p, own in self.updated.items():
            if own.grad is not None:
                inside = 1 if self.names[p] in cuts else len(order.inside)
                # FSDP's parts are of this replica alone; all else is the same in every replica.
                holders = 1 if isinstance(p, DTensor) else inside * len(order.across)
                total += squared_sum([own.grad]).to(total.device) / holders
        total = total.to(self.device)
        dist.all_reduce(total, group=self.everyone)
        return total.sqrt()

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by name; empty but on the first worker that has them."""
        return self._whole({name: p.grad for p, name in self.names.items() if p.grad is not None})

    def parameters(self) -> dict[str, Tensor]:
        """Whole parameters and buffers by name, likewise."""
        found: dict[str, Tensor] = {name: p.detach() for p, name in self.names.items()}
        whole = self._whole(found)
        if self._first:
            entries = [entry for order in self.orders for entry in order.layers]
            buffers = {n for e in entries for n in e.program.buffers.values()}
            whole.update({name: self.state[name] for name in buffers})
        return whole

    def optimizer_state(self) -> dict[str, Tensor]:
        """Whole states of the optimizer, likewise, as ``optimizer:KEY:NAME``.

        Under ZeRO 1 every replica has those of its own parameters.
        """
        kept, held, names = self._kept, {}, {}
        for p, name in self.names.items():
            own_p: Any = self.updated.get(p)
            states = dict(kept.state.get(own_p, {}))
            if own_p in self.sums:
                states[ACCUMULATED] = self.sums[own_p]
            for key, value in states.items():
                if isinstance(value, Tensor):
                    held[f"{OPTIMIZER}{key}:{name}"] = _like(p, value)
                    names[f"{OPTIMIZER}{key}:{name}"] = name if value.dim() else ""
        own = self.order.zero_stage == 1 and self.order.column == 0
        whole = self._whole(held, names, ours=own or self._first)
        return whole | self.frozen_states if self._first else whole

    def restore(self, states: Mapping[str, Tensor]) -> None:
        """Continue with the states of an optimizer that `optimizer_state` gave, whole."""
        kept, cuts = self._kept, self._cuts()
        owned = {p for group in kept.param_groups for p in group["params"]}
        by_name: dict[str, dict[str, Tensor]] = {}
        for name, value in states.items():
            key, _, parameter = name.removeprefix(OPTIMIZER).partition(":")
            by_name.setdefault(parameter, {})[key] = value
        for p, name in self.names.items():
            own = self.updated.get(p)
            if own is not None and ACCUMULATED in by_name.get(name, {}):
                whole = by_name[name].pop(ACCUMULATED)
                self.sums[own] = self._own_part(whole, p, cuts.get(name)).clone()
            if own is None:  # trained before, and perhaps later
                kept_for = by_name.get(name, {}).items()
                self.frozen_states |= {f"{OPTIMIZER}{k}:{name}": v for k, v in kept_for}
            elif own in owned and name in by_name:
                kept.state[own] = {
                    key: value if value.dim() == 0 else self._own_part(value, p, cuts.get(name))
                    for key, value in by_name[name].items()
                }

    def _own_part(self, whole: Tensor, p: Tensor, cut: Any) -> Tensor:
        """What this worker holds of a tensor as large as the parameter `p` is in the model."""
        if isinstance(p, DTensor):
            found: Tensor = distribute_tensor(
                whole, p.device_mesh, p.placements, src_data_rank=None
            ).to_local()
            return found
        if cut is None:
            return whole
        assert self.peers is not None
        return self.peers.own(whole, cut.sizes, cut.dim).contiguous()

    @property
    def _kept(self) -> Any:
        """The optimizer that has the states: under ZeRO 1 that of the own parameters."""
        optimizer: Any = self.optimizer
        return getattr(optimizer, "optim", optimizer)

    def _cuts(self) -> dict[str, Any]:
        cuts: dict[str, Any] = {}
        for stage in self.stages:
            for layer in stage.modules():
                if isinstance(layer, TensorModule):
                    cuts.update(layer.parts)
        return cuts

    def state_elements(self) -> int:
        """Elements of optimizer states that this worker keeps; step counters are not counted."""
        values = (v for states in self._kept.state.values() for v in states.values())
        return sum(v.numel() for v in values if isinstance(v, Tensor) and v.dim() > 0)

    @property
    def _first(self) -> bool:
        return self.order.replica == 0 and self.order.column == 0

    def _whole(
        self,
        tensors: Mapping[str, Tensor],
        names: Mapping[str, str] | None = None,
        *,
        ours: bool | None = None,
    ) -> dict[str, Tensor]:
        """All workers of the stage take part where tensors are divided among them.

        `names`: of the parameters as which the tensors are divided; their own by default.
        `ours`: whether this worker hands them in; the first of the stage by default.
        """
        whole, cuts = {}, self._cuts()
        for name, value in tensors.items():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            cut = cuts.get(name if names is None else names[name])
            if cut is not None:
                assert self.peers is not None
                full = self.peers.all_gather(full, cut.sizes, cut.dim)
            whole[name] = full.detach()
        return whole if (self._first if ours is None else ours) else {}

    def _peers(self, groups: Groups) -> Peers | None:
        order = self.order
        if len(order.inside) == 1:
            return None
        return Peers(groups[order.inside], order.column, _rows(order), self.stretch)

    def _stage(self, order: StageOrder) -> StageModule:
        shared = frozenset(order.shared)
        layers = [_layer(entry, self.state, self.peers, shared) for entry in order.layers]
        return StageModule(layers, order, self.peers)

    def _wrapped(self, order: StageOrder, stage: StageModule, across: Any) -> nn.Module:
        """DDP over the replicas (ZeRO 0 and 1), or FSDP2 over them (2 and 3)."""
        if order.zero_stage > 1 and across is not None:
            mesh = DeviceMesh.from_group(across, self.device.type)
            layers = list(stage.layers)
            return sharded(stage, layers, mesh, self.stretch, keep=order.zero_stage < 3)
        if across is None or not any(p.requires_grad for p in stage.parameters()):
            return stage
        wrapped = DistributedDataParallel(
            stage,
            process_group=across,
            broadcast_buffers=False,
            init_sync=False,
            bucket_cap_mb=BUCKET_MB,
            gradient_as_bucket_view=True,
        )
        wrapped.register_comm_hook(_Sum(across, self.stretch), _summed)
        return wrapped

    def _alone(self) -> float:
        """All micro-batches one after another, gradients summed over the replicas at the last."""
        order, total, (wrapped,) = self.order, 0.0, self.wrapped
        share = order.shares[order.replica]
        for k in range(order.micro_batches):
            rows = slice(k * share, (k + 1) * share)
            feeds = {name: value[rows] for name, value in self.batched.items()}
            # DDP and FSDP add up local gradients until the last micro-batch, then exchange them
            # once.
            with _exchange(wrapped, last=k == order.micro_batches - 1):
                start = time.perf_counter()
                loss = wrapped(**feeds) * order.loss_share
                self._pay()
                middle = time.perf_counter()
                (loss * self.scale if self.order.update.scaled else loss).backward()
                self._pay()
            self.forward_s += middle - start
            self.backward_s += time.perf_counter() - middle
            total += float(loss.detach())
        return total

    def _pay(self) -> None:
        if self.stretch is not None:
            self.stretch.pay()


@contextmanager
def _exchange(wrapped: nn.Module, *, last: bool) -> Iterator[None]:
    """Exchange gradients in the last micro-batch only."""
    if isinstance(wrapped, FSDPModule):
        wrapped.set_requires_gradient_sync(last)
    waits = isinstance(wrapped, DistributedDataParallel) and not last
    with wrapped.no_sync() if waits else nullcontext():  # type: ignore[operator]
        yield


def _own_part(p: nn.Parameter) -> nn.Parameter:
    """The parameter, or what this worker holds of it, in the same memory.

    An optimizer's operations on `DTensor` take longer than the update of a small parameter.
    """
    held: Any = p.detach()
    return nn.Parameter(held.to_local()) if isinstance(p, DTensor) else p


def _like(p: Tensor, value: Tensor) -> Tensor:
    """A state of the optimizer, divided as its parameter is."""
    if not isinstance(p, DTensor) or value.dim() == 0:
        return value
    return DTensor.from_local(
        value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


class _Sum:
    """State of the communication hook."""

    def __init__(self, group: Any, stretch: Stretch | None) -> None:
        self.group, self.stretch = group, stretch


def _summed(state: _Sum, bucket: Any) -> Any:
    """Sum a bucket over the replicas: losses are weighted by samples, so nothing is averaged."""
    if state.stretch is not None:
        state.stretch.pay()
    work = dist.all_reduce(bucket.buffer(), group=state.group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


_summed.__annotations__.clear()  # DDP compares them with types, and these are text


def _layer(
    entry: LayerOrder, state: Mapping[str, Tensor], peers: Peers | None, shared: frozenset[str]
) -> LayerModule:
    if peers is not None and entry.strategy == "tensor":
        return TensorModule(entry.program, state, peers, shared)
    if peers is not None and entry.strategy in IN_ROWS:
        summed = partial(gradient_summed, peers=peers)
        return LayerModule(entry.program, state, summed, peers.column)
    return LayerModule(entry.program, state)


def _names(module: nn.Module) -> dict[nn.Parameter, str]:
    """Every parameter once, with its name in the model."""
    found: dict[nn.Parameter, str] = {}
    for path, value in module.named_parameters():
        found.setdefault(value, path.rpartition(".")[2].replace("/", "."))
    return found


IN_ROWS = ("data", "sharded")
"""Strategies in which each worker of a replica takes its own samples."""


class StageModule(nn.Module):
    """Layers of a stage on one worker; takes and returns whole activations of its replica.

    `waited_s`: seconds that forward passes have waited for the other workers of the replica so far.

    Parameters
    ----------
    peers
        The workers of the replica; ``None`` for one alone.

    Attributes
    ----------
    draws_after, draws_before
        Ranks of the stages before and behind it, where these draw from one generator in turn.
    shared_feeds
        Values of the batch that are not cut along samples.
    """

    def __init__(
        self, layers: Sequence[LayerModule], order: StageOrder, peers: Peers | None
    ) -> None:
        super().__init__()
        self.passed: Any = None
        self.layers = nn.ModuleList(layers)
        strategies = [entry.strategy for entry in order.layers]
        self.in_rows = [peers is not None and s in IN_ROWS for s in strategies]
        self.peers, self.recompute = peers, order.recompute
        self.is_last = order.stage == order.stages - 1
        self.draws_after, self.draws_before = _drawing_neighbours(order)
        self.shared_feeds: Mapping[str, Tensor] = {}
        self.waited_s = 0.0

    def take(self, order: StageOrder) -> None:
        """Compute the same layers on another number of samples."""
        for layer, entry in zip(self.layers, order.layers, strict=True):
            layer.take(entry.program)  # type: ignore[operator]
        self.draws_after, self.draws_before = _drawing_neighbours(order)

    def forward(self, *values: Tensor, **batched: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Activations of the next stage, or the loss of the worker's samples."""
        with self._drawing():
            if self.peers is None:
                return self._forward(values, batched)
            before = self.peers.waited_s
            made = self._forward(values, batched)
            self.waited_s += self.peers.waited_s - before
            return made

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Go on with the random numbers of the stage before, and pass the generator on."""
        if self.draws_after is not None:
            state = torch.get_rng_state()
            dist.recv(state, self.draws_after)
            torch.set_rng_state(state)
        yield
        if self.draws_before is not None:
            if self.passed is not None:
                self.passed.wait()
            # Not awaited: the next stage asks for it when it has the activations, sent after this.
            self.passed = dist.isend(torch.get_rng_state(), self.draws_before)

    def _forward(
        self, values: tuple[Tensor, ...], batched: Mapping[str, Tensor]
    ) -> Tensor | tuple[Tensor, ...]:
        whole = {**batched, **self.shared_feeds}
        own = {k: to_rows(v, self.peers) for k, v in batched.items()} if self.peers else batched
        rows = {**own, **self.shared_feeds}
        if not self.layers[0].program.inputs:  # type: ignore[union-attr]
            values = ()  # the pipeline's first stage is given a token
        values = tuple(map(_sendable_gradient, values))
        # Around all layers, so that weights which several of them use are cast once, as in eager
        # mode.
        with casting(str(self.layers[0].program.autocast), (*values, *whole.values())):  # type: ignore[union-attr]
            return self._computed(values, rows, whole)

    def _computed(
        self, values: tuple[Tensor, ...], rows: Mapping[str, Tensor], whole: Mapping[str, Tensor]
    ) -> Tensor | tuple[Tensor, ...]:
        """All layers, one after another."""
        at_rows = False
        for layer, in_rows in zip(self.layers, self.in_rows, strict=True):
            values = self._moved(values, at_rows, in_rows)
            feeds = rows if in_rows else whole
            if self.recompute:
                values = checkpoint(
                    layer,
                    *values,
                    feeds=feeds,
                    use_reentrant=False,
                    context_fn=layer.passes,  # type: ignore[arg-type]
                )
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


def _rows(order: StageOrder) -> tuple[int, ...]:
    """Samples of a micro-batch of every worker of the replica, where each takes its own."""
    share, degree = order.shares[order.replica], len(order.inside)
    return tuple(share // degree + (k < share % degree) for k in range(degree))


def _drawing_neighbours(order: StageOrder) -> tuple[int | None, int | None]:
    """Ranks of the stages before and behind it, where these draw from one generator in turn."""
    if not order.draws_in_order:
        return None, None
    ring, number = order.chain, order.stage
    after = ring[(number - 1) % len(ring)] if number else None
    return after, ring[(number + 1) % len(ring)] if number < order.stages - 1 else None


def _sendable_gradient(value: Tensor) -> Tensor:
    """The value; its gradient goes back to the stage before in one piece of memory."""
    if value.requires_grad:
        value = value.view_as(value)
        value.register_hook(lambda gradient: gradient.contiguous())  # type: ignore[no-untyped-call]
    return value
