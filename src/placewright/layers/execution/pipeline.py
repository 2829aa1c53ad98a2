"""A worker's part of a pipeline, by ``torch.distributed.pipelining``.

PyTorch's schedules ask for what a pass needs when they come to it, and gloo sends a message only
when its receiver has asked for it: no transfer would overlap with the receiver's passes. So on CPUs
a stage asks for all that a step will bring when the step begins, and sends what a pass has made at
once; the schedules are told that there is nothing to receive or to send.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from placewright.graph.graph import TensorSpec
from placewright.layers.execution.layer_module import StageOrder
from placewright.layers.execution.layouts import differentiable
from placewright.runtime.emulation import Stretch

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": Schedule1F1B}
"""Of workers with one stage each."""


class PipelinePart:
    """The stages of one worker, and the schedule of its chain of workers.

    `scale`: of the loss, beside its share.

    The first stage is given a token, since whatever a batch brings reaches every stage by name:
    a layer late in the model may read an input, and the last one reads the targets.
    """

    def __init__(
        self,
        orders: Sequence[StageOrder],
        modules: Sequence[nn.Module],
        device: torch.device,
        group: Any,
        stretch: Stretch | None,
    ) -> None:
        order = orders[0]
        self.order, self.device, self.scale = order, device, 1.0
        self.losses: list[Tensor] = []
        self.stages = [
            _TimedStage(own, module, device, group, stretch)
            for own, module in zip(orders, modules, strict=True)
        ]
        settings: dict[str, Any] = {
            "n_microbatches": order.micro_batches,
            "loss_fn": self._loss,
            "scale_grads": False,
        }
        # PyTorch's 1F1B refuses fewer micro-batches than stages: all are then in flight, as in
        # GPipe.
        few = order.micro_batches < order.stages
        self.schedule: Any
        if len(orders) > 1:
            self.schedule = ScheduleInterleaved1F1B(list(self.stages), **settings)
        else:
            kind: Any = SCHEDULES["gpipe" if few else order.schedule]
            self.schedule = kind(self.stages[0], **settings)

    @property
    def forward_s(self) -> float:
        """Seconds inside layers in forward passes of the last step."""
        return sum(stage.forward_s for stage in self.stages)

    @property
    def backward_s(self) -> float:
        """Seconds inside layers in backward passes of the last step."""
        return sum(stage.backward_s for stage in self.stages)

    def step(self, batched: Mapping[str, Tensor]) -> float:
        """All micro-batches; this worker's part of the loss."""
        for stage in self.stages:
            stage.forward_s = stage.backward_s = 0.0
        token = torch.zeros(self.order.micro_batches, device=self.device)
        self.losses = []
        args = (token,) if self.stages[0].is_first else ()
        feeds: Any = dict(batched)
        self.schedule.step(*args, target=token, losses=[], return_outputs=False, **feeds)
        for stage in self.stages:
            stage.end_step()
        return float(sum(map(float, self.losses)))

    def _loss(self, output: Tensor, _: Tensor) -> Tensor:
        """Kept before it is scaled, which may make it infinite."""
        loss = output * self.order.loss_share
        self.losses.append(loss.detach())
        return loss * self.scale if self.order.update.scaled else loss


ACTIVATION, GRADIENT = 0, 1
MOST_TENSORS = 64
"""In one message's tag: tensors that pass a cut, far more than any."""


class _TimedStage(PipelineStage):
    """Knows its shapes beforehand, takes times, and waits as long as an emulated device owes.

    Attributes
    ----------
    ahead
        Whether it receives and sends by itself, as the module says. NCCL's messages go one after
        another in the order in which they are asked for, so that there the schedule does.
    awaited
        Receives by way and micro-batch; `sent` are sends that may not have ended.
    """

    def __init__(
        self,
        order: StageOrder,
        module: nn.Module,
        device: torch.device,
        group: Any,
        stretch: Stretch | None,
    ) -> None:
        given, made = _activations(order.received, device), _activations(order.sent, device)
        first, last = order.stage == 0, order.stage == order.stages - 1
        super().__init__(
            module,
            order.stage,
            order.stages,
            device,
            input_args=(torch.zeros(1, device=device),) if first else given,
            output_args=made,
            input_grads=(None,) if first else given,
            output_grads=(None,) if last else made,
            group=group,
        )
        self.stretch, self.own = stretch, order
        self.forward_s = self.backward_s = 0.0
        self.ahead = device.type == "cpu"
        self.awaited: dict[tuple[int, int], list[Any]] = {}
        self.sent: list[tuple[Any, Tensor]] = []

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        return self._receive_all() if self.ahead else super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        return self._receive_all() if self.ahead else super().get_bwd_recv_ops(bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        return self._send_now(ops, ACTIVATION, fwd_chunk_id) if self.ahead else ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> Any:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        return self._send_now(ops, GRADIENT, bwd_chunk_id) if self.ahead else ops

    def end_step(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self.sent:
            work.wait()
        self.sent, self.awaited = [], {}

    def _receive_all(self) -> list[Any]:
        """Ask for all that this step brings, once; buffers exist when a schedule first asks."""
        # Once a step: `end_step` empties it. Receives of all micro-batches stand before any pass
        # waits.
        if not self.awaited:
            for m in range(self.own.micro_batches):
                infos = ((ACTIVATION, self.args_recv_info[m]), (GRADIENT, self.grad_recv_info[m]))
                for way, entries in infos:
                    # Cut k is behind stage k: activations come over the one before, gradients over
                    # the own one.
                    cut = self.own.stage - (way == ACTIVATION)
                    self.awaited[way, m] = [
                        dist.irecv(op.tensor, op.peer, self.group, self._tag(cut, way, m, k))
                        for k, op in enumerate(self._get_recv_ops(entries))
                    ]
        return []

    def _send_now(self, ops: Sequence[Any], way: int, m: int) -> list[Any]:
        # Tensors are held until they have left: their memory must not be used again.
        self.sent = [entry for entry in self.sent if not entry[0].is_completed()]
        # The other way round for what is sent.
        cut = self.own.stage - (way == GRADIENT)
        for k, op in enumerate(ops):
            work = dist.isend(op.tensor, op.peer, self.group, self._tag(cut, way, m, k))
            self.sent.append((work, op.tensor))
        return []

    def _tag(self, cut: int, way: int, m: int, k: int) -> int:
        """Of tensor `k` of a micro-batch: two workers may have several cuts between them."""
        return 1 + ((2 * cut + way) * self.own.micro_batches + m) * MOST_TENSORS + k

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        self._await(ACTIVATION, fwd_chunk_id)
        return super()._retrieve_recv_activations(fwd_chunk_id)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._await(GRADIENT, bwd_chunk_id)
        return super()._retrieve_recv_grads(bwd_chunk_id)

    def _await(self, way: int, m: int) -> None:
        for work in self.awaited.get((way, m), ()):
            work.wait()

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        start = self._begin()
        made = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.forward_s += self._end(start)
        return made

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        start = self._begin()
        made = super().backward_maybe_with_nosync(*args, **kwargs)
        self.backward_s += self._end(start)
        return made

    def _begin(self) -> float:
        if self.stretch is not None:
            self.stretch.begin()
        return time.perf_counter()

    def _end(self, start: float) -> float:
        if self.stretch is not None:
            self.stretch.pay()
        return time.perf_counter() - start


def _activations(specs: tuple[TensorSpec, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Examples of what passes a cut: their shapes and types count, and who needs a gradient."""
    found = []
    for spec in specs:
        dtype = getattr(torch, spec.dtype)
        tensor = torch.zeros(spec.shape, dtype=dtype, device=device)
        found.append(tensor.requires_grad_(differentiable(dtype)))
    return tuple(found)
