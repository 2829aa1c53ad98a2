"""Calls that read values to decide what they do, replaced while a trace records.

A fake tensor has no values. Where eager PyTorch reads them all the same, a trace records an
operation that reads them when it runs:

- ``ctc_loss`` keeps as much between its passes as the longest target needs: the backward pass
  computes that again;
- batch norm with ``momentum=None`` weighs a batch by the number of batches before it;
- ``gaussian_nll_loss`` and ``istft`` raise an error for some values: `checked` raises it;
- packed sequences: `placewright.capturing.packed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from placewright.capturing.packed import pack
from placewright.capturing.rewrites import OPERATIONS, define_operation
from placewright.errors import InputError

aten = torch.ops.aten


def _ctc_loss(log_probs: Tensor, *others: Any) -> Tensor:
    made: Tensor = aten._ctc_loss.Tensor(log_probs, *others)[0]
    return made


def _ctc_loss_shape(log_probs: Tensor, *others: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def _ctc_loss_backward(grad: Tensor, *given: Any) -> Tensor:
    *tensors, blank, zero_infinity = given
    loss, alpha = aten._ctc_loss.Tensor(*tensors, blank, zero_infinity)
    made: Tensor = aten._ctc_loss_backward.Tensor(grad, *tensors, loss, alpha, blank, zero_infinity)
    return made


def _ctc_loss_backward_shape(grad: Tensor, log_probs: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _counted_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    eps: float,
) -> tuple[Tensor, ...]:
    """Outputs, statistics of the batch, and the running ones with this batch in them."""
    return _batch_norm(x, weight, bias, mean, variance, 1.0 / float(count), eps)


def _counted_batch_norm_shapes(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    eps: float,
) -> tuple[Tensor, ...]:
    return _batch_norm(x, weight, bias, mean, variance, 0.0, eps)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    running = mean.clone(), variance.clone()
    made = aten._native_batch_norm_legit.default(x, weight, bias, *running, True, momentum, eps)
    return (*made, *running)


def _checked(x: Tensor, holds: Tensor, assert_msg: str) -> Tensor:
    """A copy of `x`; raises `InputError` unless all of `holds` are true."""
    if not bool(holds.all()):
        raise InputError(assert_msg, hint="the values of this batch are not allowed there")
    return x.clone()


def _checked_shape(x: Tensor, holds: Tensor, assert_msg: str) -> Tensor:
    return x.clone()


def _keep_ctc(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _ctc_gradients(ctx: Any, gradient: Tensor) -> Any:
    back = OPERATIONS.ctc_loss_backward.default
    return back(gradient, *ctx.saved_tensors, *ctx.settings), *[None] * 5


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    x, weight, *_, eps = inputs
    ctx.save_for_backward(x, weight, output[1], output[2])
    ctx.eps = eps


def _norm_gradients(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    x, weight, mean, deviation = ctx.saved_tensors
    back, wanted = aten.native_batch_norm_backward.default, list(ctx.needs_input_grad[:3])
    made = back(gradient, x, weight, None, None, mean, deviation, True, ctx.eps, wanted)
    return *made, *[None] * 4


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pass


def _passed_on(ctx: Any, gradient: Tensor) -> Any:
    return gradient, None, None


_CTC = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
define_operation(
    f"ctc_loss({_CTC}, int blank, bool zero_infinity) -> Tensor",
    _ctc_loss,
    _ctc_loss_shape,
    (_keep_ctc, _ctc_gradients),
)
define_operation(
    f"ctc_loss_backward(Tensor grad, {_CTC}, int blank, bool zero_infinity) -> Tensor",
    _ctc_loss_backward,
    _ctc_loss_backward_shape,
)
define_operation(
    "counted_batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, "
    "Tensor count, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _counted_batch_norm,
    _counted_batch_norm_shapes,
    (_keep_norm, _norm_gradients),
)
define_operation(
    "checked(Tensor x, Tensor holds, str assert_msg) -> Tensor",
    _checked,
    _checked_shape,
    (_keep_nothing, _passed_on),
)


def _ctc(
    _func: Any,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """As ``at::native::ctc_loss``; `reduction` is a number in ``torch.ctc_loss``."""
    batched = log_probs.dim() == 3
    given = [
        x if isinstance(x, Tensor) else torch.tensor(x) for x in (input_lengths, target_lengths)
    ]
    own, theirs = (x if batched else x.reshape(1) for x in given)
    rows = log_probs if batched else log_probs.unsqueeze(1)
    made = OPERATIONS.ctc_loss.default(rows, targets, own, theirs, blank, zero_infinity)
    if zero_infinity:
        made = torch.where(made == torch.inf, made.new_zeros(()), made)
    if reduction in ("mean", 1):
        return (made / theirs.clamp_min(1)).mean()  # type: ignore[no-any-return]
    if reduction in ("sum", 2):
        return made.sum()  # type: ignore[no-any-return]
    return made if batched else made.squeeze(0)  # type: ignore[no-any-return]


def _gaussian_nll_loss(
    func: Any,
    input: Tensor,
    target: Tensor,
    var: Any,
    *others: Any,
    **named: Any,
) -> Any:
    if isinstance(var, Tensor):
        message = "gaussian_nll_loss: var has negative entry/entries"
        var = OPERATIONS.checked.default(var, var >= 0, message)
    with patch.object(torch, "any", lambda *_: False):
        return func(input, target, var, *others, **named)


class _Overlaps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers ``istft``, which asks whether its windows leave gaps, and keeps what it asked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gaps: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is aten.equal.default:
            self.gaps.append(args[0])
            return False
        return func(*args, **(kwargs or {}))


def _istft(func: Any, *args: Any, **named: Any) -> Tensor:
    with _Overlaps() as asked:
        made: Tensor = func(*args, **named)
    for gap in asked.gaps:
        message = "istft: window overlap add has values of 0 (see torch.istft on NOLA)"
        made = OPERATIONS.checked.default(made, ~gap, message)
    return made


class ValueReads(TorchFunctionMode):
    """Replaces functions of PyTorch that read values.

    `longest`: gives the largest value of a tensor where a trace knows it.
    """

    def __init__(self, longest: Callable[[Tensor], int | None]) -> None:
        super().__init__()
        self.longest = longest

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        given = kwargs or {}
        if name == "_pack_padded_sequence":
            padded, lengths, batch_first = args
            return pack(padded, lengths, batch_first, self.longest(lengths))
        replaced = _REPLACED.get(name)
        return func(*args, **given) if replaced is None else replaced(func, *args, **given)


_REPLACED: dict[str, Callable[..., Any]] = {
    "ctc_loss": _ctc,
    "gaussian_nll_loss": _gaussian_nll_loss,
    "istft": _istft,
}


@contextmanager
def batches_counted() -> Iterator[None]:
    """Let a batch norm with ``momentum=None`` weigh its batch when a program runs."""
    plain = _BatchNorm.forward

    def forward(norm: Any, input: Tensor) -> Tensor:
        if norm.momentum is not None or not (norm.training and norm.track_running_stats):
            return plain(norm, input)
        count: Any = norm.num_batches_tracked
        if count is None or norm.running_mean is None:
            return plain(norm, input)
        norm._check_input_dim(input)
        count.add_(1)
        running = norm.running_mean, norm.running_var
        made, _, _, *new = OPERATIONS.counted_batch_norm.default(
            input, norm.weight, norm.bias, *running, count, norm.eps
        )
        for kept, value in zip(running, new, strict=True):
            kept.copy_(value.detach())
        return made  # type: ignore[no-any-return]

    with patch.object(_BatchNorm, "forward", forward):
        yield
