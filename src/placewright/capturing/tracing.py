"""A plain step function becomes one functional ATen graph, on fake tensors.

Two traces, because autograd and functionalization do not mix. The first records what the step
does: forward, loss, backward, with in-place operations as they are. In-place operations are
hidden dependencies: before an operator may move, the second trace replays the first under
`torch.func.functionalize`, which leaves values that never change and, at the end, one ``copy_``
for every buffer that the step updates.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from placewright.capturing.batch_norm import FUNCTIONAL_BATCH_NORM
from placewright.capturing.constants import check_constants
from placewright.capturing.draws import is_draw, is_mask, mask
from placewright.capturing.feed import Feed, Slot
from placewright.capturing.known_values import KNOWN_SCALARS, known_values_seen
from placewright.capturing.refusal import OUTSIDE, changed_in_place, refusal
from placewright.capturing.rewinds import Rewinds, followed_generator
from placewright.capturing.shape_rules import shape_rules
from placewright.capturing.strided import strided_updates, update
from placewright.errors import PlacewrightError, UnsupportedError

Step = Callable[..., Sequence[Tensor]]

KEPT = "kept"
"""Annotation of a copy that only keeps a value from being changed in place."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A functional graph and what its placeholders and outputs mean.

    Attributes
    ----------
    module
        Every node carries ``meta["custom"]`` with ``module`` and ``phase``.
    slots
        One per placeholder, in order.
    outputs
        Names of the first outputs.
    gradients
        Keys of the parameters whose gradients are the outputs after those.
    """

    module: fx.GraphModule
    slots: tuple[Slot, ...]
    outputs: tuple[str, ...]
    gradients: tuple[str, ...] = ()


def trace(step: Step, fed: Feed) -> fx.GraphModule:
    """The functional graph of ``step(*values)``, dead code removed.

    Raises
    ------
    UnsupportedError
        The step cannot be traced: says where in the model and why.
    """
    values = [slot.value for slot in fed.slots]
    recorded, rewinds = _record(step, values, fed.model)
    _check_operations(recorded.graph)
    check_constants(recorded, fed.model, fed.loss_fn)
    _name_backward(recorded.graph)
    repeats = rewinds.repeats(recorded.graph)
    return _functional(recorded, repeats, values, type(fed.model).__name__)


def _record(
    step: Step, values: Sequence[Tensor], model: nn.Module
) -> tuple[fx.GraphModule, Rewinds]:
    path: list[str] = []
    try:
        with (
            traceback.preserve_node_meta(),
            _modules_named(model, path),
            shape_rules(),
            followed_generator() as rewinds,
            known_values_seen(),
            _quiet(),
        ):
            recorded = make_fx(
                step,
                tracing_mode="fake",
                decomposition_table=FUNCTIONAL_BATCH_NORM | KNOWN_SCALARS,
                _allow_non_fake_inputs=True,
            )(*values)
    except PlacewrightError:
        raise
    except (Exception, SystemExit) as error:
        raise refusal(error, path[-1] if path else "", type(model).__name__) from error
    return recorded, rewinds


def _check_operations(graph: fx.Graph) -> None:
    """Objects of TorchScript classes (packed weights of quantized layers) are no tensors."""
    for node in graph.nodes:
        if node.op == "get_attr" and "torchbind" in str(node.target):
            users = ", ".join(sorted({str(user.target) for user in node.users}))
            raise UnsupportedError(
                "an operation on packed weights, which are no tensors",
                where=f"module {(node.meta.get('custom') or {}).get('module', '')!r}",
                by=users,
                hint="capture the model before it is quantized or packed",
            )


def _functional(
    recorded: fx.GraphModule,
    repeats: Mapping[fx.Node, fx.Node],
    values: Sequence[Tensor],
    model: str,
) -> fx.GraphModule:
    replay = _Replay(recorded, repeats)

    def call(*values: Tensor) -> Any:
        return replay.run(*values)

    try:
        with traceback.preserve_node_meta(), torch.no_grad(), shape_rules(), _quiet():
            plain = [value.detach() for value in values]
            result = make_fx(
                torch.func.functionalize(call), tracing_mode="fake", _allow_non_fake_inputs=True
            )(*plain)
    except PlacewrightError:
        raise
    except Exception as error:
        if OUTSIDE in str(error) and replay.at is not None:
            raise changed_in_place(replay.at) from error
        raise refusal(error, "", model) from error
    result.graph.eliminate_dead_code(_has_effect)
    return result


class _Replay(fx.Interpreter):
    """Runs a graph so that what it records inherits each node's annotations.

    Masks of dropout are drawn by an operation of our own, see `placewright.capturing.draws`.

    Parameters
    ----------
    repeats
        Draw -> an earlier draw of the same numbers, whose result is taken instead.
    """

    def __init__(self, recorded: fx.GraphModule, repeats: Mapping[fx.Node, fx.Node]) -> None:
        super().__init__(recorded)
        self.repeats = repeats
        self.drawn: dict[fx.Node, Any] = dict.fromkeys(repeats.values())
        self.strided = strided_updates(recorded.graph)
        self.at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.at = n
        with traceback.set_current_meta(n):
            if n in self.repeats:
                return _kept(self.drawn[self.repeats[n]])
            made = self._run(n)
            if n in self.drawn:
                self.drawn[n] = _kept(made)
            return made

    def _run(self, n: fx.Node) -> Any:
        if is_mask(n):
            return mask(*self.fetch_args_kwargs_from_env(n)[0])
        if n in self.strided:
            return update(n, *self.fetch_args_kwargs_from_env(n))
        return super().run_node(n)


def _kept(drawn: Any) -> Any:
    """A copy that the caller may change in place; lowering leaves it out again."""
    with traceback.annotate({KEPT: True}):
        return tree_map_only(Tensor, torch.clone, drawn)


@contextmanager
def _modules_named(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Annotate what a module records with its path; `path` is left as it was at an error."""
    with ExitStack() as hooks:
        open_: list[Any] = []
        for name, module in model.named_modules():

            def enter(_m: nn.Module, _args: Any, name: str = name) -> None:
                annotation = traceback.annotate({"module": name})
                annotation.__enter__()
                open_.append(annotation)
                path.append(name)

            def leave(_m: nn.Module, _args: Any, output: Any) -> None:
                open_.pop().__exit__(None, None, None)
                if output is not None:
                    path.pop()

            first = module.register_forward_pre_hook(enter)
            last = module.register_forward_hook(leave, always_call=True)
            hooks.callback(first.remove)
            hooks.callback(last.remove)
        yield


def _name_backward(graph: fx.Graph) -> None:
    """Give backward nodes the module of the forward node they differentiate (``seq_nr``)."""
    module_of: dict[int, str] = {}
    for node in graph.nodes:
        custom, number = node.meta.get("custom") or {}, node.meta.get("seq_nr", -1)
        if custom.get("phase") != "backward" and "module" in custom:
            module_of.setdefault(number, custom["module"])
    for node in graph.nodes:
        custom = node.meta.get("custom") or {}
        if custom.get("phase") == "backward" and node.meta.get("seq_nr") in module_of:
            node.meta["custom"] = {**custom, "module": module_of[node.meta["seq_nr"]]}


def _has_effect(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    changes = bool(getattr(schema, "is_mutable", False))
    # A draw that nobody reads still moves the generator on for the draws after it.
    return node.op in ("placeholder", "output") or changes or is_draw(node)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings and logs about a trace's inner workings, and without collecting garbage.

    A user can do nothing about the former. A trace makes a million small objects that all stay:
    looking for garbage among them takes a fifth of its time.
    """
    log, collects = logging.getLogger("torch._subclasses.fake_tensor"), gc.isenabled()
    was_silent, log.disabled = log.disabled, True
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was_silent
        if collects:
            gc.enable()
