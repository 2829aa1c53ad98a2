"""Checks for models that a program cannot represent, and errors of a trace in a user's terms.

A step that is not a function of its inputs is refused: a captured one repeats its first run.

What the code of a model draws from Python's or NumPy's random numbers, counts in an attribute or
reads from a clock is a number for a trace, which every later step would have again. So the forward
pass is traced twice, with all numbers far away that the first trace has changed (counters), and
both traces must record the same calls.
"""

from __future__ import annotations

import math
import random
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from placewright.capturing.containers import memory_of
from placewright.capturing.python_state import PythonState
from placewright.capturing.source import ModelSource
from placewright.errors import InputError, PlacewrightError, UnsupportedError, text_of
from placewright.graph.graph import input_name

PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor; falsy where it has none."""

UNTRACKED_MUTATION = "mutating a non-functional tensor"
"""In the error of ``functionalize`` (PyTorch 2.13) where a step changes a plain tensor in place."""


def check_parameters(source: ModelSource) -> None:
    """Refuse hooks on parameters that are trained: they would not be called."""
    trained = [member for member in source.members()[0] if member.value.requires_grad]
    for member in trained:
        if any(getattr(member.value, hooks, None) for hooks in PARAMETER_HOOKS):
            raise UnsupportedError(
                "a hook on a parameter, which a captured step would not call",
                where=f"model {type(source.model).__name__}, parameter {member.key!r}",
                hint="remove the hook, or do what it does in forward",
            )


def check_plain(source: ModelSource) -> None:
    """Refuse compiled and scripted modules, whose code a trace cannot see, and uninitialised ones.

    Raises `InputError`: a lazy module has not been called yet; a trace would initialise it.
    """
    name = type(source.model).__name__
    for path, module in source.model.named_modules():
        compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                "a compiled model" if compiled else "a scripted model",
                where=f"model {name}" + (f", module {path!r}" if path else ""),
                hint="give the plain module that it was made from: workers execute a program of "
                "their own",
            )
    for role, members in zip(("parameter", "buffer"), source.members(), strict=True):
        for member in members:
            if is_lazy(member.value):
                raise InputError(
                    "a lazy module has not seen its first input yet",
                    where=f"model {name}, {role} {member.key!r}",
                    hint="call the model once before it is captured",
                )


def sparse(value: Tensor, where: str) -> UnsupportedError:
    """The error for a tensor that has no strides, which no message keeps."""
    return UnsupportedError(
        f"a tensor of layout {value.layout}",
        where=where,
        by=f"shape {tuple(value.shape)}",
        hint="make it dense with .to_dense(), or keep its indices and values as two tensors and "
        "multiply by index_add",
    )


def check_memory(mutated: Collection[str], source: ModelSource) -> None:
    """Refuse in-place changes of a tensor that shares memory with another program input."""
    held = [
        (input_name(role, key), value)
        for (role, key), value in source.values().items()
        if isinstance(value, Tensor)
    ]
    for one, other in _overlapping(held):
        if one in mutated or other in mutated:
            raise UnsupportedError(
                f"{one!r} and {other!r} share memory, and a step changes both at once",
                where=f"model {type(source.model).__name__}",
                hint="make one of them a copy (clone), or give one tensor both names",
            )


def _overlapping(held: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Names of tensors whose extents in memory overlap."""
    extents = sorted((*_extent(value), name) for name, value in held if value.numel())
    for k, (memory, _, end, name) in enumerate(extents):
        for other, start, _, behind in extents[k + 1 :]:
            if other != memory or start >= end:
                break
            yield name, behind


def _extent(value: Tensor) -> tuple[int, int, int]:
    """Identity of the storage, the first element in it and the one after the last."""
    memory: int = value.untyped_storage()._cdata
    pairs = zip(value.shape, value.stride(), strict=True)
    span = int(sum((n - 1) * s for n, s in pairs)) + 1
    first = int(value.storage_offset())
    return memory, first, first + span


def check_constants(recorded: fx.GraphModule, source: ModelSource) -> None:
    """Refuse tensors that a trace took in as constants and that may change or need a gradient.

    A tensor that a step reads and that is none of its inputs (a table, a scale) becomes a constant
    of the program, which never changes.
    """
    parameters, buffers = source.members()
    named = [("buffer", m) for m in buffers] + [("parameter", m) for m in parameters]
    owners = {_memory(m.value): f"{role} {m.key!r}" for role, m in named}
    for node in recorded.graph.nodes:
        value = getattr(recorded, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        owner = owners.get(_memory(value))
        if owner is None and not value.requires_grad:
            continue
        what = "a tensor that requires a gradient is no parameter of the model or the loss"
        hint = "make it an nn.Parameter attribute of a module, or detach it"
        if owner is not None:
            what = f"{owner} is read past its name, so that a change of it would not be seen"
            hint = (
                "read it as an attribute of its module in forward, not through a list, a closure "
                "or a view that was made before"
            )
        module = _module_of(node)
        raise UnsupportedError(
            what,
            where=f"model {type(source.model).__name__}"
            + (f", module {module!r}" if module else ""),
            by=f"shape {tuple(value.shape)}, read by {_readers(node) or 'nothing'}",
            hint=hint,
        )


def _memory(value: Tensor) -> int:
    """As `memory_of`, of a fake tensor that of the constant that it stands for."""
    real: Any = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    return 0 if real is None else memory_of(real)


def quantized(where: str, by: str) -> UnsupportedError:
    """The error for a tensor of integers with a scale, which no message keeps."""
    return UnsupportedError(
        "a quantized tensor",
        where=where,
        by=by,
        hint="keep its integers, scale and zero point as tensors of their own, or round with "
        "torch.fake_quantize_per_tensor_affine",
    )


def check_operations(graph: fx.Graph) -> None:
    """Refuse packed weights of quantized layers, which are no tensors, and quantized tensors."""
    for node in graph.nodes:
        if "aten.quantize_per_" in str(node.target):
            raise quantized(f"module {_module_of(node)!r}", str(node.target))
        if node.op == "get_attr" and "torchbind" in str(node.target):
            raise UnsupportedError(
                "an operation on packed weights, which are no tensors",
                where=f"module {_module_of(node)!r}",
                by=_readers(node),
                hint="capture the model before it is quantized or packed",
            )


def _module_of(node: fx.Node) -> str:
    return str((node.meta.get("custom") or {}).get("module", ""))


def _readers(node: fx.Node) -> str:
    return ", ".join(sorted({str(user.target) for user in node.users}))


def changed_in_place(node: fx.Node) -> UnsupportedError:
    """A call changes a tensor that the program neither keeps nor returns."""
    module = _module_of(node)
    return UnsupportedError(
        "a tensor that is no parameter and no buffer is changed in place",
        where=f"operator {node.name!r}" + (f" of module {module!r}" if module else ""),
        by=str(node.target),
        hint="register it with register_buffer, or use the out-of-place form of the operation",
    )


ONE_ROW = "more than 1 value per channel"
"""In the error of a batch norm that is to train on one row."""


def trace_error(
    error: BaseException, module: str, model: str, *, given: str = ""
) -> PlacewrightError:
    """The error to raise where PyTorch raised `error` in `module` of `model`.

    `given`: what the model was called with.
    """
    where = f"model {model}" + (f", module {module!r}" if module else "")
    text = " ".join(text_of(error).split())[:300]
    kind = type(error).__name__
    if reads_values(error):
        read, hint = _value_read(text)
        return UnsupportedError(
            f"what it computes depends on values, not on shapes alone: {read}",
            where=where + _line_of(error),
            by=f"{kind}: {text}",
            hint=hint,
        )
    if "UnsupportedOperator" in kind:
        return UnsupportedError(
            "an operator has no shape rule for fake tensors",
            where=where,
            by=text,
            hint="register one with torch.library.register_fake",
        )
    if isinstance(error, RecursionError):
        return InputError(
            "its modules are nested deeper than Python's recursion limit lets a trace go",
            where=f"model {model}",
            by=f"sys.getrecursionlimit() is {sys.getrecursionlimit()}",
            hint="raise it with sys.setrecursionlimit before the model is placed, if the model "
            "runs in plain PyTorch, or write the nested modules as a loop",
        )
    if ONE_ROW in text:
        return InputError(
            f"calling it raised {kind}: {text}",
            where=where,
            by=given,
            hint="batch norm cannot train on one row: take fewer micro-batches, or a batch size "
            "that leaves none with a single row",
        )
    return InputError(
        f"calling it raised {kind}: {text}",
        where=where,
        by=given,
        hint="check that model(*inputs), in training also loss_fn(outputs, targets), runs in plain "
        "PyTorch on the CPU; if so, an operation has no shape rule for fake tensors there",
    )


def reads_values(error: BaseException) -> bool:
    """Whether PyTorch raised it because a trace has no values."""
    kind = type(error).__name__
    named = any(name in kind for name in ("DataDependent", "DynamicOutputShape"))
    return named or "data-dependent" in str(error)


_VALUE_READS: Sequence[tuple[str, str, str]] = (
    (
        "nonzero masked_select",
        "boolean indexing or nonzero() makes as many rows as are true",
        "compute on all rows and keep what is wanted: torch.where(mask, new, old) in place of "
        "old[mask] = new, a sum of x * mask in place of x[mask]; of experts every one on all "
        "tokens, by its gate, which is 0 where it was not chosen",
    ),
    (
        "repeat_interleave",
        "repeat_interleave by a tensor makes as many rows as its sum",
        "give it output_size=... and repeats that are no input, or gather by an index that is one",
    ),
    (
        "unique bincount histc",
        "a tensor has as many elements as different values are found",
        "give the number of classes: one_hot(x, n) or zeros(n).index_add(...) in place of it",
    ),
    (
        "_local_scalar_dense item equal is_nonzero",
        "a number of Python is made of a tensor: `.item()`, `.tolist()`, `int(...)`, "
        "`if tensor:`, torch.equal",
        "keep it a tensor: torch.where in place of `if`, arange(n) < length in place of "
        "range(int(length)); or give the number as an input that is no tensor",
    ),
)
"""Operators that read values, what of a model's code they are, and what to write instead."""


def _value_read(text: str) -> tuple[str, str]:
    """What reads values, and the way out."""
    named = text.partition("aten.")[2].partition(".")[0] or "item"
    for names, read, hint in _VALUE_READS:
        if any(named.strip("_").startswith(name.strip("_")) for name in names.split()):
            return read, hint
    return f"{named} reads them", (
        "replace it by operations whose results have a known shape, such as torch.where, or "
        "capture a part of the model that has none"
    )


_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, np))


def _line_of(error: BaseException) -> str:
    """The innermost line of code that is neither PyTorch's nor ours, with what it says."""
    own = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_LIBRARIES, own, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    said = f" ({last.line})" if last.line else ""
    return f", {Path(last.filename).name} line {last.lineno}{said[:100]}"


_FAR = 100_003
"""Added to every counter in the second trace: beyond any warm-up that a model counts down."""

_NEXT = 10
"""Steps whose counters are tried one by one: a model may do something else in the fifth alone."""

_NEXT_CALLS = 20_000
"""Traced calls of all these steps together, of which a large model has fewer."""


@contextmanager
def python_generators_kept() -> Iterator[Callable[[], list[str]]]:
    """Put the generators of Python and NumPy back at the end; yields which have been drawn from."""
    python, numpy = random.getstate(), np.random.get_state()

    def drawn() -> list[str]:
        found = ["random"] if random.getstate() != python else []
        return found + ["numpy.random"] * _differ(np.random.get_state(), numpy)

    try:
        yield drawn
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def python_draws_refused(model: str) -> Iterator[None]:
    """Raise `UnsupportedError` where the block draws from the generators of Python or NumPy.

    Also where it ends in an error of ours, which draws may be the cause of: a model whose layers
    were all dropped by chance has a loss that depends on no parameter.
    """
    cause: PlacewrightError | None = None
    with python_generators_kept() as drawn:
        try:
            yield
        except PlacewrightError as error:
            cause = error
        found = drawn()
    if found:
        raise UnsupportedError(
            f"the forward pass draws from {' and '.join(found)}, so every step of a program would "
            "have the first numbers again",
            where=f"model {model}",
            hint="draw with torch (torch.rand, dropout), whose draws are operators; or outside of "
            "the model, and give them as an input",
        ) from cause
    if cause is not None:
        raise cause


def check_repeatable(
    recorded: fx.Graph, again: Callable[[], fx.GraphModule], state: PythonState, model: str
) -> None:
    """Trace the forward pass `again`, from `state`, and compare it with what was recorded.

    Raises `UnsupportedError`: they differ.
    """
    counters = state.changed_numbers()
    made = {
        f"{box.path}.{key}".rstrip("."): partial(box.put, key, value)
        for box, key, value in state.new_numbers()
    }
    grown = {
        box.path: partial(box.lengthen, box.now(), _LONG)
        for box in state.containers
        if box.is_grown()
    }
    state.restore()
    for left in (made, grown):
        if left:
            _check_left(recorded, again, state, model, left)
    error: PlacewrightError | None = None
    tries = min(_NEXT, _NEXT_CALLS // (len(recorded.nodes) + 1)) if counters else 0
    for turn in range(tries + 1):
        for container, key, old, new in counters:
            container.put(key, _later(old, new, turn))
        try:
            difference = _first_difference(recorded, again())
        except PlacewrightError as raised:
            if not counters:
                raise
            error, difference = raised, (next(iter(recorded.nodes)), raised.what)
        finally:
            state.restore()
        if difference is not None:
            break
    else:
        return
    if counters:
        try:  # whether it is they that matter
            other = _first_difference(recorded, again())
        finally:
            state.restore()
        names = [f"{box.path}.{key}".rstrip(".") for box, key, _, _ in counters[:3]]
        if other is None:
            raise _counted(model, ", ".join(names), *difference) from error
        difference = other
    node, what = difference
    raise UnsupportedError(
        "the forward pass is not a function of its inputs: called twice, it does something else",
        where=_where(model, node),
        by=what,
        hint="a clock, a generator of its own or a counter decides: draw or read it outside and "
        "give it as an input, or register a buffer and change it in place",
    )


def _later(old: float, new: float, turn: int) -> float:
    """A number that was `old` and then `new`, far behind that or, in later turns, step by step."""
    if turn:
        return old + turn * (new - old)
    if isinstance(old, float) and old and 0 < new / old < 1:
        return 0.0  # one that decays
    return old + math.copysign(_FAR, new - old)


_LONG = 1009
"""Entries of lists that grow, in a second trace."""


def _check_left(
    recorded: fx.Graph,
    again: Callable[[], fx.GraphModule],
    state: PythonState,
    model: str,
    left: Mapping[str, Callable[[], None]],
) -> None:
    """Refuse what the first trace has left, by name, where a second that begins with it differs.

    Counters that it has made, ``getattr(self, "calls", 0) + 1`` say, and lists by whose length it
    computes. Where the second fails, they are of something else that is made once, and say nothing.
    """
    for put in left.values():
        put()
    try:
        difference = _first_difference(recorded, again())
    except Exception:
        return
    finally:
        state.restore()
    if difference is None:
        return
    try:
        other = _first_difference(recorded, again())
    finally:
        state.restore()
    if other is None:
        raise _counted(model, ", ".join(list(left)[:3]), *difference)


def _where(model: str, node: fx.Node) -> str:
    module = (node.meta.get("custom") or {}).get("module", "")
    return f"model {model}" + (f", module {module!r}" if module else "")


def _counted(model: str, counters: str, node: fx.Node, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the forward pass computes with what it changes itself ({counters}), so every "
        "step of a program would have the first ones again",
        where=_where(model, node),
        by=what,
        hint="make them buffers (register_buffer) that are changed in place",
    )


def _first_difference(first: fx.Graph, second: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """The first call of `first` that `second`, whose calls are its beginning, does otherwise."""
    theirs = {node: k for k, node in enumerate(second.graph.nodes)}
    ours = {node: k for k, node in enumerate(first.nodes)}
    for one, other in zip(first.nodes, second.graph.nodes, strict=False):
        if other.op == "output":
            return None
        mine, its = _key(one, first.owning_module, ours), _key(other, second, theirs)
        if mine != its:
            return one, f"{one.target} {_differing(mine, its)}"
    return None


def _key(node: fx.Node, owner: Any, numbers: dict[fx.Node, int]) -> tuple[Any, ...]:
    """What a node does: its target and arguments, nodes by their position."""
    if node.op == "get_attr":
        value = getattr(owner, str(node.target), None)
        return node.op, _contents(value)
    place = lambda n: ("node", numbers[n])  # noqa: E731
    given = fx.node.map_arg((node.args, dict(node.kwargs)), place)
    return node.op, "" if node.op == "placeholder" else str(node.target), repr(given)


def _contents(value: Any) -> Any:
    """A constant's bytes; fakes have what they were made of."""
    real = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if not isinstance(real, Tensor) or real.layout is not torch.strided or real.is_meta:
        return type(value).__name__
    raw = real.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return tuple(real.shape), str(real.dtype), hash(raw.numpy().tobytes())


def _differing(mine: tuple[Any, ...], its: tuple[Any, ...]) -> str:
    if mine[0] == "get_attr" or its[0] == "get_attr":
        return "reads another constant"
    if mine[1] != its[1]:
        return f"is replaced by {its[1]}"
    return f"gets {mine[2]}, then {its[2]}"[:200]


def _differ(one: Any, other: Any) -> bool:
    return any(np.any(a != b) for a, b in zip(one, other, strict=True))
