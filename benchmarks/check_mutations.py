"""Put deliberate faults into capture, executors, references and splits; a check must find each.

    python benchmarks/check_mutations.py
    python benchmarks/check_mutations.py --only "micro-batch"

A fault changes the captured program, its initial state, or functions of Placewright: here (then
capture and reference both have it), or in the worker processes. Then the check of
``operators run --check`` or ``layers run --check`` compares the steps with one process. The exit
code is 1 where it passes with a fault in place, or fails without one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import Table, run
from placewright import Cluster, Device, TrainingRecipe
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.errors import CheckError
from placewright.graph.graph import ORDER_ONLY, SCRATCH, Graph, Instruction, Program
from placewright.layers.execution.session import LayerSession
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.execution.worker import LayerWorker
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage
from placewright.layers.run import MOST_ERROR, checked
from placewright.operators.check import check_session
from placewright.runtime.engines.local import Local
from placewright.runtime.executor import StepExecutor
from placewright.runtime.program import order
from placewright.runtime.session import Session

SEED, STEPS = 3, 2

PAIR = Cluster((Device("a", node="m"), Device("b", node="n")), name="pair")

HERE = "check_mutations" if __name__ == "__main__" else __name__

Patch = tuple[str, Callable[[Any], Any]]
"""``module:attribute`` and what makes the faulty one of the original."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One deliberate fault.

    Attributes
    ----------
    source
        In `SOURCES` or `LAYERS`, the model and for layers the plan that show it.
    edit
        Changes of instructions of the captured program, by name.
    state
        Changes of its initial values, by name.
    here, workers
        Patches of this process, before capture, and of the workers.
    """

    part: str
    source: str
    edit: Mapping[str, Callable[[Instruction], Instruction]] = field(default_factory=dict)
    state: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    here: tuple[Patch, ...] = ()
    workers: tuple[Patch, ...] = ()


def broken(patches: Sequence[Patch]) -> ExitStack:
    """Put faults into functions, wherever they are imported; its `close` takes them out."""
    undo = ExitStack()
    for path, make in patches:
        module, _, attribute = path.partition(":")
        *classes, name = attribute.split(".")
        owner: Any = import_module(module)
        for inner in classes:
            owner = getattr(owner, inner)
        original = getattr(owner, name)
        loaded = [m for n, m in list(sys.modules.items()) if n.startswith("placewright")]
        owners = [owner] if classes else [m for m in loaded if vars(m).get(name) is original]
        faulty = make(original)
        for each in owners:
            setattr(each, name, faulty)
            undo.callback(setattr, each, name, original)
    return undo


class Breakable:
    """Workers that take a fault by its name."""

    undo = ExitStack()

    @order("taking a fault")
    def take_fault(self, name: str) -> None:
        """Replace the fault that it has, if any."""
        Breakable.undo.close()
        Breakable.undo = broken(FAULTS[name].workers if name else ())


class BreakableSteps(Breakable, StepExecutor):
    """Of operators."""


class BreakableLayers(Breakable, LayerWorker):
    """Of layers."""


@dataclass(frozen=True, slots=True)
class BreakableEngine:
    """Workers of this machine that take faults."""

    program: str
    name: str = "local"

    def group(self, cluster: Cluster, program: str = "") -> Any:
        """See `Engine`."""
        return Local().group(cluster, f"{HERE}:{self.program}")

    def emulated(self, cluster: Cluster, hosts: Sequence[Any]) -> str:
        """See `Engine`."""
        return ""


class Whole(nn.Module):
    """A step with what is easily lost: dropout, frozen statistics, a view written in place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm, self.frozen, self.drop = nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Dropout(0.25)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        y = self.norm(self.first(x)).relu().clone()
        y[:, 2:4].mul_(0.5)
        self.mean.lerp_(y.detach().mean(0), 0.1)
        z = self.frozen(self.second(self.drop(y)) - y)
        scores: Tensor = self.last(z - self.mean)
        return scores


class Both(nn.Module):
    """Two inputs of one shape, and no state that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Not symmetric."""
        made: Tensor = self.second(self.first(x).tanh() - y).relu() - x
        return made


def _whole() -> ModelSource:
    model = Whole()
    model.frozen.eval()
    rest = [p for n, p in model.named_parameters() if not n.startswith("first")]
    groups: list[dict[str, Any]] = [
        {"params": [*model.first.parameters()]},
        {"params": rest, "lr": 0.02},
    ]
    recipe = TrainingRecipe(torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1), clip_norm=0.1)
    return ModelSource(
        model, torch.randn(8, 6), functional.cross_entropy, torch.arange(8) % 4, "whole", recipe
    )


def _net(loss: Any = functional.cross_entropy, **recipe: Any) -> Callable[[], ModelSource]:
    """Labels of which some are ignored; seven rows are no multiple of the micro-batches."""

    def made() -> ModelSource:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        momentum = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        labels, own = torch.tensor([0, -100, 2, 3, -100, 1, 2]), TrainingRecipe(momentum, **recipe)
        return ModelSource(model, torch.randn(7, 6), loss, labels, "net", own)

    return made


def _both() -> ModelSource:
    return ModelSource(Both(), (torch.randn(4, 6), torch.randn(4, 6)), name="both")


def _stack(*norms: nn.Module) -> Callable[[], ModelSource]:
    def made() -> ModelSource:
        model = nn.Sequential(nn.Linear(6, 8), *norms, nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        for norm in norms:
            norm.eval()
        return ModelSource(model, (torch.randn(12, 6),), functional.mse_loss, torch.randn(12, 8))

    return made


SOURCES: dict[str, Callable[[], ModelSource]] = {
    "whole": _whole,
    "both": _both,
    "parts": _net(micro_batches=3),
    "rows": _net(lambda scores, labels: (scores - 1).square().mean(), micro_batches=3),
    "autocast": _net(autocast="bfloat16"),
}
"""Steps of operators."""


def _data(last: int, *shares: int) -> LayerPlan:
    replicas = tuple(Replica((w,), share) for w, share in enumerate(shares))
    return LayerPlan((Stage(0, last, replicas),))


def _pipeline(last: int) -> LayerPlan:
    first, second = (Replica((w,), 3) for w in (0, 1))
    return LayerPlan((Stage(0, 0, (first,)), Stage(1, last, (second,))), 4, Schedule.GPIPE)


LAYERS: dict[str, tuple[Callable[[], ModelSource], Callable[[int], LayerPlan]]] = {
    "data": (_stack(), lambda last: _data(last, 7, 5)),
    "pipeline": (_stack(), _pipeline),
    "frozen norm": (_stack(nn.BatchNorm1d(8)), lambda last: _data(last, 12)),
}
"""Steps of layers, and their plans by the number of the last layer."""


def _as(target: str, arguments: slice = slice(1)) -> Callable[[Instruction], Instruction]:
    """Another operation in its place, on some of the arguments."""
    return lambda i: replace(i, target=target, args=tuple(i.args[arguments]), kwargs={})


_lost = _as("aten.clone.default")


def _kept(i: Instruction) -> Instruction:
    """An update that leaves its tensor as it is."""
    return replace(i, target="aten.add_.Tensor", args=(i.args[0], 0), kwargs={})


def _argument(k: int, value: Any) -> Callable[[Instruction], Instruction]:
    return lambda i: replace(i, args=(*i.args[:k], value, *i.args[k + 1 :]))


def _scaled(k: int, by: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.cat([t[:k], t[k : k + 1] * by, t[k + 1 :]])


def _nothing(_: Any) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _stale(take: Any) -> Any:
    """The tensor of the step before."""
    seen: dict[Any, Tensor] = {}

    def faulty(self: Any, message: Any) -> Tensor:
        now: Tensor = take(self, message).clone()
        before: Tensor = seen.get(message, now)
        seen[message] = now
        return before

    return faulty


def _mixed_up(send: Any) -> Any:
    """The tensor of the same shape that was sent before."""
    seen: dict[Any, Tensor] = {}

    def faulty(self: Any, message: Any, tensor: Tensor) -> None:
        key = tuple(tensor.shape), tensor.dtype
        other = seen.get(key, tensor)
        seen[key] = tensor.clone()
        send(self, message, other)

    return faulty


def _rounded(send: Any) -> Any:
    return lambda self, message, tensor: send(
        self,
        message,
        tensor.bfloat16().to(tensor.dtype) if tensor.dtype.is_floating_point else tensor,
    )


def _forgetting(step: Any) -> Any:
    """First moments of Adam begin anew in every step."""

    def faulty(self: Any, *args: Any) -> Any:
        for part in self.compiled.parts:
            for name in part.index:
                if name.endswith("/exp_avg"):
                    part.registers[part.index[name]].zero_()
        return step(self, *args)

    return faulty


def _all_trained(_: Any) -> Any:
    return lambda model, *, training: model.train(training)


def _without_decay(rebound: Any) -> Any:
    def faulty(optimizer: Any, replaced: Any) -> Any:
        made = rebound(optimizer, replaced)
        for group in made.param_groups:
            group["weight_decay"] = 0.0
        return made

    return faulty


def _swapped(refilled: Any) -> Any:
    """The first two tensors of inputs."""

    def faulty(tree: Any, values: Iterator[Any]) -> Any:
        if not isinstance(tree, tuple) or len(tree) < 2:
            return refilled(tree, values)
        first, second = next(values), next(values)
        return refilled(tree, chain([second, first], values))

    return faulty


def _equal_shares(micro_batches: Any) -> Any:
    def faulty(tensors: Any, count: int, reduction: str) -> Iterator[Any]:
        for part in micro_batches(tensors, count, reduction):
            yield replace(part, share=1.0 / count)

    return faulty


def _averaged(summed: Any) -> Any:
    def faulty(state: Any, bucket: Any) -> Any:
        return summed(state, bucket).then(lambda done: done.value() / 2)

    faulty.__annotations__.clear()
    return faulty


def _other_rows(feed: Any) -> Any:
    def faulty(self: Any, batch: Mapping[str, Tensor]) -> None:
        first = next(iter(batch))
        feed(self, {**batch, first: batch[first].roll(1, 0)})

    return faulty


def _one_left_out(run: Any) -> Any:
    def faulty(self: Any, *, update: bool) -> float:
        parameter = next(iter(self.updated))
        before = parameter.detach().clone()
        loss: float = run(self, update=update)
        parameter.data.copy_(before)
        return loss

    return faulty


def _too_fast(made: Any) -> Any:
    def faulty(self: Any, parameters: Any, names: Any = ()) -> Any:
        optimizer = made(self, parameters, names)
        optimizer.param_groups[0]["lr"] *= 1.1
        return optimizer

    return faulty


def _last_sent(forward: Any) -> Any:
    """A pipeline stage sends the activations of the micro-batch before."""
    seen: list[Any] = []

    def faulty(self: Any, *values: Any, **batched: Any) -> Any:
        made = forward(self, *values, **batched)
        if self.is_last:
            return made
        seen.append(made)
        return seen[-2].detach().requires_grad_() if len(seen) > 1 else made

    return faulty


_STEP, _EAGER = "placewright.runtime.step", "placewright.operators.check:Stepper"
_EXCHANGE = "placewright.runtime.messages:Exchange"
_SPLIT = "placewright.capturing.containers"
_STAGE = "placewright.layers.execution.stage_step"
_MADE = "placewright.capturing.updates:Update.made"
_MODE = (("placewright.capturing.python_state:set_mode", _all_trained),)


def _capture(**edit: Callable[[Instruction], Instruction]) -> Fault:
    return Fault("capture", "whole", {k.replace("__of__", "/"): v for k, v in edit.items()})


def _worker(part: str, source: str, path: str, make: Callable[[Any], Any]) -> Fault:
    return Fault(part, source, workers=((path, make),))


def _shared(part: str, source: str, path: str, make: Callable[[Any], Any]) -> Fault:
    return Fault(part, source, here=((path, make),))


FAULTS: dict[str, Fault] = {
    "operator dropped": _capture(sub=_lost),
    "operands swapped": _capture(sub=_as("aten.sub.Tensor", slice(None, None, -1))),
    "write through a view missed": _capture(slice_scatter=_lost),
    "part of a gradient dropped": _capture(add_1=_lost),
    "statistics of a norm not updated": _capture(copy__1=_kept),
    "counter of a norm not updated": _capture(copy__3=_kept),
    "frozen statistics with another eps": Fault(
        "capture", "whole", {"_native_batch_norm_legit_no_training": _argument(6, 1e-3)}
    ),
    "gradient of one parameter not clipped": Fault(
        "capture", "whole", {"second.bias/clipped": _lost}
    ),
    "update of one parameter skipped": Fault("capture", "whole", {"last.bias/update": _kept}),
    "dropout keeps other shares": _capture(bernoulli=_argument(2, 0.7)),
    "dropout not scaled": _capture(div=_lost),
    "learning rate off by 10 %": Fault(
        "capture", "whole", state={"setting:group.1": _scaled(0, 1.1)}
    ),
    "weight decay dropped": Fault("capture", "whole", state={"setting:group.0": _scaled(4, 0.0)}),
    "labels of another row": Fault("capture", "whole", state={"target:0": lambda t: t.roll(1)}),
    "another seed": _worker(
        "executor",
        "whole",
        "placewright.runtime.executor:StepExecutor.seed",
        lambda seed: wraps(seed)(lambda self, given: seed(self, given + 1)),
    ),
    "received tensor of the last step": _worker("executor", "whole", f"{_EXCHANGE}.take", _stale),
    "the same, in inference": _worker("executor", "both", f"{_EXCHANGE}.take", _stale),
    "another tensor sent": _worker("executor", "whole", f"{_EXCHANGE}.send", _mixed_up),
    "sent in half precision": _worker("executor", "both", f"{_EXCHANGE}.send", _rounded),
    "state of the optimizer begun anew": _worker(
        "executor", "whole", f"{_STEP}.devices:PlacedDevices.step", _forgetting
    ),
    "new inputs not taken": _worker(
        "executor", "both", f"{_STEP}.devices:PlacedDevices.feed", _nothing
    ),
    "reference does not update": _shared("reference", "whole", f"{_EAGER}._update", _nothing),
    "reference does not clip": _shared("reference", "whole", f"{_EAGER}._clip", _nothing),
    "reference without weight decay": _shared(
        "reference", "whole", "placewright.operators.check:rebound", _without_decay
    ),
    "mode of a module, in both": Fault("both", "whole", here=_MODE),
    "arguments swapped, in both": _shared(
        "both", "both", "placewright.capturing.containers:refilled", _swapped
    ),
    "micro-batches weighed alike, in both": _shared(
        "split", "rows", f"{_SPLIT}:micro_batches", _equal_shares
    ),
    "first rows in every micro-batch, in both": _shared(
        "split",
        "rows",
        f"{_SPLIT}:MicroBatch.part",
        lambda part: lambda self, value: part(replace(self, start=0), value),
    ),
    "ignored labels counted, in both": _shared(
        "split",
        "parts",
        "placewright.capturing.split_loss:whole_counts",
        lambda counts: lambda *args: [c + 2 for c in counts(*args)],
    ),
    "autocast left out, in both": _shared(
        "both",
        "autocast",
        "placewright.capturing.source:TrainingRecipe.casting",
        lambda _: lambda self: nullcontext(),
    ),
    "gradients averaged, not summed": _worker("layers", "data", f"{_STAGE}:_summed", _averaged),
    "rows of another replica": _worker("layers", "data", f"{_STAGE}:StageStep.feed", _other_rows),
    "replicas weighed alike": _shared(
        "layers",
        "data",
        "placewright.layers.execution.stage_orders:TracedModel.loss_share",
        lambda _: lambda self, samples: 0.5,
    ),
    "layers: update of one parameter skipped": _worker(
        "layers", "data", f"{_STAGE}:StageStep.run", _one_left_out
    ),
    "layers: learning rate off by 10 %": _worker("layers", "data", _MADE, _too_fast),
    "layers: another optimizer": _worker(
        "layers",
        "pipeline",
        _MADE,
        lambda made: lambda self, parameters, names=(): torch.optim.Adam([*parameters], lr=0.1),
    ),
    "layers: activations of the micro-batch before": _worker(
        "layers",
        "pipeline",
        "placewright.layers.execution.stage_step:StageModule.forward",
        _last_sent,
    ),
    "layers: mode of a module, in both": Fault("layers", "frozen norm", here=_MODE),
}
"""By name."""


def _drawn(make: Callable[[], ModelSource]) -> ModelSource:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


@contextmanager
def operator_check(name: str) -> Iterator[Callable[[str], str]]:
    """Workers for a source; a function from a fault to what the check says, empty if it passes."""
    source = _drawn(SOURCES[name])
    training = source.loss_fn is not None
    plain = cache(lambda: capture_source(source, training=training))
    state = initial_state(source, plain().program)
    with Session(plain(), PAIR, state, BreakableEngine("BreakableSteps")) as session:

        def check(fault_name: str) -> str:
            fault = FAULTS.get(fault_name, Fault("", name))
            with broken(fault.here):
                graph = capture_source(source, training=training) if fault.here else plain()
                session.graph = graph = _edited(graph, fault)
                session.order_all("take_fault", fault_name)
                session.load(_alternating(graph), range(len(graph.operators)), SEED)
                if fault.state:
                    session.feed({key: change(state[key]) for key, change in fault.state.items()})
                try:
                    check_session(
                        session, source, seed=SEED, steps=STEPS, devices=PAIR.devices
                    ).demand()
                except CheckError as error:
                    return str(error)
                return ""

        yield check


def _edited(graph: Graph, fault: Fault) -> Graph:
    program = graph.program
    assert isinstance(program, Program)
    edits = fault.edit
    instructions = tuple(edits[i.name](i) if i.name in edits else i for i in program.instructions)
    assert fault.edit.keys() <= {i.name for i in instructions}, fault.edit.keys()
    reads = {i.name: set(i.reads()) for i in instructions}
    tensors = tuple(
        replace(
            tensor, consumers=tuple(c for c in tensor.consumers if _reads(reads[c], tensor.name))
        )
        for tensor in graph.tensors
    )
    return replace(graph, tensors=tensors, program=replace(program, instructions=instructions))


def _reads(values: set[str], name: str) -> bool:
    return name in values or name.startswith((ORDER_ONLY, SCRATCH))


def _alternating(graph: Graph) -> list[int]:
    """Group by group on one device after the other."""
    groups = [op.colocation or op.name for op in graph.operators]
    number = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    return [number[group] % 2 for group in groups]


@contextmanager
def layer_check(name: str) -> Iterator[Callable[[str], str]]:
    """As `operator_check`, for a plan of layers."""
    make, planned = LAYERS[name]
    source = _drawn(make)
    engine: Any = BreakableEngine("BreakableLayers")
    with LayerSession(TracedModel(source), PAIR, engine, optimizer="sgd", lr=0.1) as session:
        traced, plan = session.model, planned(len(session.model.layers) - 1)

        def check(fault_name: str) -> str:
            fault = FAULTS.get(fault_name, Fault("", name))
            with broken(fault.here):
                session.model = TracedModel(source) if fault.here else traced
                session.group.order_all("take_fault", fault_name)
                _, relative = checked(session, plan)
            return f"differs by {relative:.2g} of its size" if not relative <= MOST_ERROR else ""

        yield check


def results(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Faults, and after each source's the name "", with what the check says."""
    for source in (*SOURCES, *LAYERS):
        own = [name for name in names if FAULTS[name].source == source]
        if own:
            opened = operator_check if source in SOURCES else layer_check
            with opened(source) as check:
                for name in (*own, ""):
                    yield name, check(name)


def main(*, only: tuple[str, ...] = ("",)) -> int:
    """Print the table; 1 unless the check fails with each fault, and passes without."""
    names = [name for name in FAULTS if any(text in name for text in only)]
    table, wrong = Table("fault", "in", "the check says", left=3), 0
    for name, said in results(names):
        wrong += bool(said) is (not name)
        text = " ".join(said.split()) or ("NOT FOUND" if name else "passed")
        table.row(name or "none", FAULTS[name].part if name else "", text)
    print(f"\n{len(names)} faults, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    run(main)
