"""Packed sequences in a trace: padded tensors with lengths, as rows cannot be counted there.

``pack_padded_sequence`` makes a tensor with as many rows as all sequences of a batch are long, a
number that depends on values. A trace packs nothing: `PackedRows` and `BatchSizes` stand for the
parts of a ``PackedSequence``, and recurrent layers and ``pad_packed_sequence`` become operations on
the padded tensor, which pack it when they run. They call the kernels that eager PyTorch calls on
the same rows, so results are the same bits. The backward pass computes the forward pass again, with
its dropout drawn from the state of the generator that the forward pass returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from placewright.capturing.rewrites import OPERATIONS, define_operation
from placewright.errors import InputError, UnsupportedError

_FUNCTIONS: Any = torch._C._VariableFunctions
_KINDS: Mapping[str, Callable[..., Any]] = {
    name: getattr(_FUNCTIONS, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}


def _packed(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    rows, sizes = _FUNCTIONS._pack_padded_sequence(padded, lengths.cpu(), batch_first)
    return rows, sizes


def _unpacked(rows: Tensor, sizes: Tensor, batch_first: bool, fill: Any, steps: int) -> Tensor:
    padded: Tensor = _FUNCTIONS._pad_packed_sequence(rows, sizes, batch_first, fill, steps)[0]
    return padded


def _recurrent(
    mode: str,
    padded: Tensor,
    lengths: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *settings: Any,
) -> list[Tensor]:
    """Padded outputs, the last states, and the state of the generator before the layer."""
    biases, layers, dropout_p, bidirectional, batch_first = settings
    generator = _generator_state(padded.device) if dropout_p else padded.new_empty(0).byte()
    rows, sizes = _packed(padded, lengths, batch_first)
    given = list(states) if mode == "lstm" else states[0]
    plain = (biases, layers, dropout_p, dropout_p > 0, bidirectional)
    made, *last = _KINDS[mode](rows, sizes, given, list(weights), *plain)
    whole = _unpacked(made, sizes, batch_first, 0.0, padded.shape[1 if batch_first else 0])
    # What a layer of no steps beyond the first returns may share memory with what it was given.
    return [whole, *(x.clone() for x in last), generator]


def _recurrent_shapes(
    mode: str,
    padded: Tensor,
    lengths: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *settings: Any,
) -> list[Tensor]:
    _, _, dropout_p, bidirectional, batch_first = settings
    first, second, _ = padded.shape
    steps, batch = (second, first) if batch_first else (first, second)
    whole = padded.new_empty(steps, batch, states[0].shape[-1] * (1 + bidirectional))
    last = [padded.new_empty(x.shape) for x in states]
    generator = padded.new_empty(_STATE_BYTES if dropout_p else 0, dtype=torch.uint8)
    return [whole.transpose(0, 1) if batch_first else whole, *last, generator]


def _recurrent_backward(
    mode: str,
    padded: Tensor,
    lengths: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *others: Any,
) -> list[Tensor]:
    """Gradients of the padded input, the first states and the weights."""
    biases, layers, dropout_p, bidirectional, batch_first, generator, gradients = others
    rows, sizes = _packed(padded, lengths, batch_first)
    own = [x.detach().requires_grad_() for x in (rows, *states, *weights)]
    first, held, tensors = own[0], own[1 : len(states) + 1], own[len(states) + 1 :]
    plain = (biases, layers, dropout_p, dropout_p > 0, bidirectional)
    with torch.enable_grad(), _drawing_from(generator, padded.device):
        given = held if mode == "lstm" else held[0]
        made = _KINDS[mode](first, sizes, given, tensors, *plain)
    whole, *last = gradients
    wanted = [None if whole is None else _packed(whole, lengths, batch_first)[0], *last]
    pairs = [(y, g) for y, g in zip(made, wanted, strict=True) if g is not None]
    outputs, theirs = [y for y, _ in pairs], [g for _, g in pairs]
    of_rows, *rest = torch.autograd.grad(outputs, own, theirs, materialize_grads=True)
    back = torch.ops.aten._pack_padded_sequence_backward.default
    return [back(of_rows, list(padded.shape), sizes, batch_first), *rest]


def _recurrent_backward_shapes(
    mode: str,
    padded: Tensor,
    lengths: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *others: Any,
) -> list[Tensor]:
    batch_first = others[4]
    of_input = _rows_first(padded.new_empty, padded.shape, batch_first)
    return [of_input, *(torch.empty_like(x) for x in (*states, *weights))]


def _rows_first(empty: Any, shape: Sequence[int], batch_first: bool) -> Tensor:
    """An empty tensor with the steps in front in memory, as PyTorch pads."""
    first, second, *more = shape
    made: Tensor = empty((second, first, *more) if batch_first else (first, second, *more))
    return made.transpose(0, 1) if batch_first else made


def _padded(
    padded: Tensor, lengths: Tensor, batch_first: bool, fill: Any, steps: int, total: int
) -> Tensor:
    """Sequences of `steps`, the longest one (0: any), padded with `fill` to `total` steps.

    Raises `InputError`: the longest one is another one.
    """
    longest = int(lengths.max())
    if steps not in (0, longest):
        raise InputError(
            "the longest sequence of a batch has not as many steps as the batch is padded to, so "
            "that what pad_packed_sequence returns would have another shape than was captured",
            by=f"{longest} of {steps} steps",
            hint="cut batches to their longest sequence, or give "
            "pad_packed_sequence(..., total_length=...) the steps of the padded batch",
        )
    return _unpacked(*_packed(padded, lengths, batch_first), batch_first, fill, total)


def _padded_shape(
    padded: Tensor, lengths: Tensor, batch_first: bool, fill: Any, steps: int, total: int
) -> Tensor:
    first, second, *more = padded.shape
    shape = (first, total, *more) if batch_first else (total, second, *more)
    return _rows_first(padded.new_empty, shape, batch_first)


def _padded_backward(gradient: Tensor, lengths: Tensor, batch_first: bool, steps: int) -> Tensor:
    rows, sizes = _packed(gradient, lengths, batch_first)
    return _unpacked(rows, sizes, batch_first, 0.0, steps)


def _padded_backward_shape(
    gradient: Tensor, lengths: Tensor, batch_first: bool, steps: int
) -> Tensor:
    return _padded_shape(gradient, lengths, batch_first, 0.0, 0, steps)


_STATE_BYTES = 5056
"""Of the state of a CPU's generator (PyTorch 2.13); those of other devices are shorter."""


def _generator_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state = torch.get_device_module(device).get_rng_state(device)
    kept = torch.zeros(_STATE_BYTES, dtype=torch.uint8)
    kept[: state.numel()] = state
    return kept.to(device)


@contextmanager
def _drawing_from(state: Tensor, device: torch.device) -> Iterator[None]:
    """Draw once more from a state that `_generator_state` gave, none where nothing was drawn."""
    if not state.numel():
        yield
        return
    own = device.type == "cpu"
    source = torch.random if own else torch.get_device_module(device)
    where = () if own else (device,)
    before = source.get_rng_state(*where)
    source.set_rng_state(state.cpu()[: before.numel()], *where)
    try:
        yield
    finally:
        source.set_rng_state(before, *where)


def _keep_layer(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    mode, padded, lengths, states, weights, *settings = inputs
    ctx.settings, ctx.count = (mode, settings), len(states)
    ctx.save_for_backward(padded, lengths, *states, *weights, output[-1])
    ctx.set_materialize_grads(False)


def _layer_gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> Any:
    mode, settings = ctx.settings
    padded, lengths, *held, generator = ctx.saved_tensors
    states, weights = held[: ctx.count], held[ctx.count :]
    of_padded, *found = OPERATIONS.packed_recurrent_backward.default(
        mode, padded, lengths, states, weights, *settings, generator, list(gradients[:-1])
    )
    of_held = found[: ctx.count], found[ctx.count :]
    return None, of_padded, None, *of_held, *[None] * len(settings)


def _keep_padded(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    padded, lengths, batch_first, *_ = inputs
    ctx.save_for_backward(lengths)
    ctx.settings = batch_first, padded.shape[1 if batch_first else 0]


def _padded_gradients(ctx: Any, gradient: Tensor) -> Any:
    (lengths,) = ctx.saved_tensors
    back = OPERATIONS.packed_padded_backward.default
    return back(gradient, lengths, *ctx.settings), *[None] * 5


_LAYER = (
    "str mode, Tensor padded, Tensor lengths, Tensor[] states, Tensor[] weights, bool biases, "
    "int layers, float dropout_p, bool bidirectional, bool batch_first"
)
define_operation(
    f"packed_recurrent({_LAYER}) -> Tensor[]",
    _recurrent,
    _recurrent_shapes,
    (_keep_layer, _layer_gradients),
    draws=True,
)
define_operation(
    f"packed_recurrent_backward({_LAYER}, Tensor generator, Tensor?[] gradients) -> Tensor[]",
    _recurrent_backward,
    _recurrent_backward_shapes,
)
define_operation(
    "packed_padded(Tensor padded, Tensor lengths, bool batch_first, Scalar padding_value, "
    "int steps, int total_length) -> Tensor",
    _padded,
    _padded_shape,
    (_keep_padded, _padded_gradients),
)
define_operation(
    "packed_padded_backward(Tensor gradient, Tensor lengths, bool batch_first, int steps) "
    "-> Tensor",
    _padded_backward,
    _padded_backward_shape,
)


class _Part(Tensor):
    """A part of a ``PackedSequence`` whose number of rows a trace does not know.

    `padded`, `lengths`, `batch_first`: what was packed, or what a layer made of it. Everything
    that is asked of it beyond what recurrent layers and ``pad_packed_sequence`` need is refused.
    """

    padded: Tensor
    lengths: Tensor
    batch_first: bool

    @classmethod
    def of(cls, padded: Tensor, lengths: Tensor, batch_first: bool, like: Any) -> Any:
        """A part with the size, dtype and device of `like`."""
        made = Tensor._make_wrapper_subclass(cls, **like)
        made.padded, made.lengths, made.batch_first = padded, lengths, batch_first
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _KINDS:
            return _layer(name, *args)
        if name == "_pad_packed_sequence":
            return _pad(*args)
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        part = args[0] if args and isinstance(args[0], cls) else None
        if part is not None and (name in _ATTRIBUTES or part.answers(name, args[1:])):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise UnsupportedError(
            "the rows of a packed sequence are read, and their number depends on values",
            where="PackedSequence.data or .batch_sizes",
            by=f"read by {name}",
            hint="compute before packing or after pad_packed_sequence; of a loss over packed rows "
            "make one over padded ones with ignore_index or a mask",
        )

    def answers(self, name: str, given: Sequence[Any]) -> bool:
        """Whether the call reads nothing that is unknown."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return cls.__torch_function__(func, types, args, kwargs)


_ATTRIBUTES = frozenset({"device", "dtype", "layout", "is_cuda", "dim", "ndim", "requires_grad"})


class PackedRows(_Part):
    """Stands for ``PackedSequence.data``."""

    def answers(self, name: str, given: Sequence[Any]) -> bool:
        """Its width is known."""
        return name == "size" and tuple(given) == (-1,)


class BatchSizes(_Part):
    """Stands for ``PackedSequence.batch_sizes``, as many as the padded batch has steps."""

    def answers(self, name: str, given: Sequence[Any]) -> bool:
        """Nothing else is known."""
        return False

    def size(self, dim: int | None = None) -> Any:
        """As many as the longest sequence has steps."""
        if dim != 0:
            return super().size(dim)
        return _Longest(self.padded.shape[1 if self.batch_first else 0])

    def __getitem__(self, place: Any) -> Any:
        # All sequences have a first step.
        return self.lengths.shape[0] if place == 0 else super().__getitem__(place)


class _Longest(int):
    """Steps of the longest sequence, which are assumed: those that the batch is padded to."""


def pack(
    padded: Tensor, lengths: Tensor, batch_first: bool, longest: int | None = None
) -> tuple[PackedRows, BatchSizes]:
    """What ``torch._VF._pack_padded_sequence`` returns in eager mode; `longest` where known."""
    if padded.dim() != 3:
        raise UnsupportedError(
            "a packed sequence of steps that are no vectors",
            where="pack_padded_sequence",
            by=f"shape {tuple(padded.shape)}",
            hint="flatten the features of a step, or compute on the padded batch with a mask",
        )
    if torch.is_autocast_enabled(padded.device.type):
        raise UnsupportedError(
            "a packed sequence under autocast",
            where="pack_padded_sequence",
            hint="leave autocast out around it, or compute on the padded batch with a mask",
        )
    if longest is not None:
        padded = padded.narrow(1 if batch_first else 0, 0, longest)
    return _parts(padded, lengths, batch_first)


def _parts(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[PackedRows, BatchSizes]:
    held = padded, lengths, batch_first
    first, second, width = padded.shape
    steps = second if batch_first else first
    rows = {"size": (first * second, width), "dtype": padded.dtype, "device": padded.device}
    sizes = {"size": (steps,), "dtype": torch.int64, "device": torch.device("cpu")}
    return PackedRows.of(*held, rows), BatchSizes.of(*held, sizes)


def _layer(mode: str, rows: PackedRows, _sizes: BatchSizes, *given: Any) -> tuple[Any, ...]:
    states, weights, biases, layers, dropout, training, bidirectional = given
    held = list(states) if mode == "lstm" else [states]
    drawn = float(dropout) if training and layers > 1 else 0.0
    settings = biases, layers, drawn, bidirectional, rows.batch_first
    made, *last, _ = OPERATIONS.packed_recurrent.default(
        mode, rows.padded, rows.lengths, held, list(weights), *settings
    )
    return _parts(made, rows.lengths, rows.batch_first)[0], *last


def _pad(
    rows: PackedRows, sizes: BatchSizes, batch_first: bool, fill: Any, total: int
) -> tuple[Tensor, Tensor]:
    padded = rows.padded
    if batch_first != rows.batch_first:
        padded = padded.transpose(0, 1).contiguous()
    # With a total length the shape is known, however long the longest sequence is.
    demanded = int(total) if isinstance(total, _Longest) else 0
    settings = batch_first, fill, demanded, int(total)
    made = OPERATIONS.packed_padded.default(padded, rows.lengths, *settings)
    return made, rows.lengths.clone()
