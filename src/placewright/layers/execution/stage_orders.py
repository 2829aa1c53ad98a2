"""A plan as one order per worker: programs of its layers, its place in the mesh, its groups.

A layer is refused strategies that would not compute what one process computes (`refusals`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from placewright.capturing.checks import check_plain
from placewright.capturing.source import ModelSource
from placewright.capturing.split_loss import LossSplit, loss_name, split_loss
from placewright.capturing.updates import Update, refuse_trained_loss, update_of
from placewright.errors import InputError, UnsupportedError
from placewright.graph.graph import Instruction
from placewright.layers.chain import (
    Layer,
    Split,
    chain,
    changed_state,
    draws,
    prelude_of,
    views_of_state,
)
from placewright.layers.execution.layer_module import (
    LayerModule,
    LayerOrder,
    LayerProgram,
    StageOrder,
)
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.problem import Refusal
from placewright.layers.tracing import TracedStep, batch_of, feed_tensors, trace_step

IN_ROWS = (Strategy.DATA, Strategy.SHARDED)


@dataclass(slots=True, eq=False)
class TracedModel:
    """A model traced on as many numbers of samples as plans ask for.

    `step`, `layers`: on the whole batch.
    `split`: how its loss is made of those of parts of the batch.
    """

    source: ModelSource
    batch: int = 0
    split: LossSplit = field(init=False)
    step: TracedStep = field(init=False)
    layers: tuple[Layer, ...] = field(init=False)
    _steps: dict[int, TracedStep] = field(default_factory=dict)
    _programs: dict[int, tuple[LayerProgram, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_plain(self.source)
        refuse_trained_loss(self.source.model, self.source.loss_fn)
        self.batch = self.batch or batch_of(self.source)
        self.split = split_loss(self.source)
        self.step = self.traced(self.batch)
        self.layers = chain(self.step)
        self._refuse_changed_parameters()

    def _refuse_changed_parameters(self) -> None:
        """Refuse weights that forward changes, but for lookups of an embedding with max_norm."""
        parameters = {*self.step.parameters.values()}
        for k, name in changed_state(self.step).items():
            target = self.step.instructions[k].target
            if name in parameters and not target.startswith("aten.embedding_renorm_"):
                raise UnsupportedError(
                    "the forward pass changes a parameter in place",
                    where=f"model {self.source.name}, parameter {name.removeprefix('model.')!r}",
                    by=target,
                    hint="change it in the loop, between two steps, or take "
                    "placewright.place(..., training=True)",
                )

    @property
    def draws(self) -> bool:
        """Whether a step draws random numbers."""
        return any(map(draws, self.step.instructions))

    def again(self) -> TracedModel:
        """The model traced as it is now; its batch, layers and parameters are those of before.

        Raises `InputError`: they are not.
        """
        made = TracedModel(self.source, self.batch)
        known, now = (
            {
                "layers": tuple(layer.name for layer in model.layers),
                "parameters": frozenset(model.step.parameters.values()),
                "buffers": frozenset(model.step.buffers.values()),
                "tensors in a batch": model.step.feeds,
            }
            for model in (self, made)
        )
        for what, before in known.items():
            if now[what] != before:
                raise InputError(
                    f"the model has other {what} than when it was placed",
                    where=f"model {self.source.name}",
                    by=", ".join(sorted(map(str, {*before} ^ {*now[what]}))[:3]),
                    hint="finish this trainer, and place the model as it is then",
                )
        return made

    def traced(self, samples: int) -> TracedStep:
        """The step on so many samples, traced when first asked for."""
        if samples not in self._steps:
            self._steps[samples] = trace_step(
                self.source, samples, self.split, repeatable=not self._steps
            )
        return self._steps[samples]

    def programs(self, samples: int) -> tuple[LayerProgram, ...]:
        """The programs of all layers on so many samples."""
        if samples not in self._programs:
            self._programs[samples] = layer_programs(self.traced(samples), self.layers)
        return self._programs[samples]

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters, buffers and constants by name."""
        return {n: v.detach().clone().contiguous() for n, v in self.held().items()}

    def held(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants by name."""
        model, loss = self.source.model, self.source.loss_fn
        held = {f"model.{n}": v for n, v in (*model.named_parameters(), *model.named_buffers())}
        if isinstance(loss, torch.nn.Module):
            named = (*loss.named_parameters(), *loss.named_buffers())
            held |= {f"loss.{n}": v for n, v in named}
        constants = {f"constant:{v}": t for v, t in self.step.constants.items()}
        return {**held, **constants}

    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that need gradients."""
        used = {*self.step.parameters.values()} - self.step.without_gradient
        model = self.source.model
        names = [f"model.{n}" for n, p in model.named_parameters() if p.requires_grad]
        return tuple(n for n in names if n in used)

    def feeds(self, source: ModelSource | None = None) -> dict[str, Tensor]:
        """A batch by the names of `TracedStep.feeds`; the example's without another one."""
        source = source or self.source
        given, counts = feed_tensors(source), len(self.step.counts)
        if len(given) != len(self.step.feeds) - counts:
            raise InputError(
                "the batch has other tensors than the one that was planned with",
                where=f"model {self.source.name}",
                by=f"{len(given)} in inputs and targets, planned with "
                f"{len(self.step.feeds) - counts}",
                hint="give inputs and targets of the same kinds",
            )
        return dict(zip(self.step.feeds, [*given, *self._counts(source)], strict=True))

    def _counts(self, source: ModelSource) -> list[Tensor]:
        """What a batch counts; per sample where its parts count by their rows.

        Ones for a batch of a size that is not traced: whoever takes it refuses it.
        """
        batch = batch_of(source)
        if not self.step.counts or batch not in self._steps:
            return [torch.ones((), dtype=torch.float64) for _ in self.step.counts]
        step, held = self._steps[batch], self.held()
        given = dict(zip(step.feeds, feed_tensors(source), strict=False))
        with torch.no_grad():
            found = LayerModule(count_program(step), held)(feeds=given)
        mean = self.split.reduction == "mean"
        return [count / batch if mean else count for count in found]

    def loss_share(self, samples: int) -> float:
        """By which the loss of so many samples counts in that of the batch."""
        return samples / self.batch if self.split.reduction == "mean" else 1.0


def stage_orders(
    model: TracedModel, plan: LayerPlan, workers: int, update: Update
) -> list[tuple[StageOrder, ...]]:
    """The orders of every worker, one for each of its stages; none for those that are left out.

    Raises `UnsupportedError`: the plan cannot be executed; names the stage and why.
    """
    check_executable(plan)
    orders: list[tuple[StageOrder, ...]] = [()] * workers
    ring = plan.stages[: len(worker_groups(plan))]
    for s, stage in enumerate(plan.stages):
        for r, replica in enumerate(stage.replicas):
            for c, worker in enumerate(replica.workers):
                order = StageOrder(
                    stage=s,
                    stages=len(plan.stages),
                    # A list: a trace inside looks at all objects, a half-made tuple too.
                    layers=tuple([_layer(model, stage, k, r, c) for k in stage.layers]),
                    replica=r,
                    column=c,
                    shares=stage.shares,
                    micro_batches=plan.micro_batches,
                    schedule=str(plan.schedule),
                    zero_stage=stage.zero_stage,
                    recompute=stage.recompute,
                    chain=tuple(other.replicas[r].workers[c] for other in ring),
                    across=tuple(other.workers[c] for other in stage.replicas),
                    inside=replica.workers,
                    feeds=model.step.feeds,
                    batched=tuple(f for f in model.step.feeds if f in model.step.batched),
                    loss_share=model.loss_share(_samples(stage, stage.last_layer, r, c)),
                    counts=s == len(plan.stages) - 1
                    and (c == 0 or stage.strategy(stage.last_layer) in IN_ROWS),
                    received=_specs(model, stage, replica.share),
                    sent=_specs(model, stage, replica.share, outputs=True),
                    shared=tuple(tied_layers(model.layers)),
                    update=update,
                    everyone=tuple(sorted(plan.workers)),
                    draws=model.draws,
                )
                orders[worker] = (*orders[worker], order)
    return orders


def same_parts(
    before: Sequence[Sequence[StageOrder]], after: Sequence[Sequence[StageOrder]]
) -> bool:
    """Whether every worker holds the same tensors for both: only numbers of samples differ."""

    def place(order: StageOrder) -> tuple[object, ...]:
        names = tuple((layer.name, layer.strategy) for layer in order.layers)
        groups = order.chain, order.across, order.inside, order.everyone
        ways = order.zero_stage, order.recompute, order.shared, order.update
        return order.stage, order.stages, order.replica, order.column, names, groups, ways

    for mine, others in zip(before, after, strict=True):
        if list(map(place, mine)) != list(map(place, others)):
            return False
        for own, other in zip(mine, others, strict=True):
            shared, degree = frozenset(own.shared), len(own.inside)
            for a, b in zip(own.layers, other.layers, strict=True):
                cut = degree if a.strategy == Strategy.TENSOR else 1
                if not a.program.same_tensors(b.program, cut, shared):
                    return False
    return True


def worker_groups(plan: LayerPlan) -> tuple[tuple[int, ...], ...]:
    """Workers of the stages, each group once: fewer than stages where these are interleaved."""
    return tuple(dict.fromkeys(stage.workers for stage in plan.stages))


def groups_of(orders: Sequence[Sequence[StageOrder]]) -> tuple[tuple[int, ...], ...]:
    """Process groups that the orders need, each once, in one order for all workers."""
    found: dict[tuple[int, ...], None] = {}
    for own in orders:
        for order in own:
            all_look = order.update.clip_norm is not None or order.update.scaled
            together = order.everyone if all_look else ()
            for ranks in (order.chain, order.across, order.inside, together):
                if len(ranks) > 1:
                    found[ranks] = None
    return tuple(found)


def check_executable(plan: LayerPlan) -> None:
    """Raise where no executor has what a plan asks for.

    Raises `UnsupportedError`, which names the stage.
    """
    first = plan.stages[0]
    _check_interleaved(plan)
    for s, stage in enumerate(plan.stages):
        sizes = sorted({len(replica.workers) for replica in stage.replicas})
        if len(sizes) > 1:
            raise UnsupportedError(
                "replicas of different sizes cannot be executed yet",
                where=f"stage {s}",
                by=f"replicas of {' and '.join(map(str, sizes))} workers",
                hint="give all replicas of a stage as many workers",
            )
        if stage.tensor_degree > 1 and Strategy.SHARDED in stage.strategies:
            raise UnsupportedError(
                "weights cannot be sharded inside a replica yet",
                where=f"stage {s}",
                by=f"layer {stage.layers[stage.strategies.index(Strategy.SHARDED)]} is sharded "
                f"over {stage.tensor_degree} workers",
                hint="shard over replicas (zero_stage 3), or make these layers data or tensor",
            )
        if stage.shares != first.shares or stage.tensor_degree != first.tensor_degree:
            raise UnsupportedError(
                "stages of different shapes cannot be executed yet",
                where=f"stage {s}",
                by=f"{len(stage.replicas)} x {stage.tensor_degree} workers with shares "
                f"{stage.shares}, stage 0: {len(first.replicas)} x {first.tensor_degree} with "
                f"{first.shares}",
                hint="give all stages as many replicas, of the same shares",
            )


def _check_interleaved(plan: LayerPlan) -> None:
    """Raise where `torch.distributed.pipelining` cannot interleave the stages as the plan does."""
    groups, stages = worker_groups(plan), plan.stages
    if len(groups) == len(stages):
        return
    for s, stage in enumerate(stages):
        if stage.workers != groups[s % len(groups)]:
            raise UnsupportedError(
                "interleaved stages must go round the workers in one order",
                where=f"stage {s}",
                by=f"workers {stage.workers}, expected {groups[s % len(groups)]}",
                hint="give stage s the workers of stage s modulo their number of groups",
            )
        if stage.zero_stage > 1:
            raise UnsupportedError(
                f"ZeRO {stage.zero_stage} cannot be executed on interleaved stages",
                where=f"stage {s}",
                hint="zero_stage 0 or 1, or the schedule 1f1b",
            )
    rounds = max(1, plan.micro_batches // len(groups))
    if len(groups) == 1 or len(stages) % len(groups) or plan.micro_batches % rounds:
        raise UnsupportedError(
            "these stages cannot be interleaved",
            where="the plan",
            by=f"{len(stages)} stages, {len(groups)} groups of workers, "
            f"{plan.micro_batches} micro-batches",
            hint="as many stages on every one of at least two groups, and micro-batches that are "
            "a multiple of the groups",
        )


def _samples(stage: Stage, k: int, replica: int, column: int) -> int:
    """Samples of a micro-batch that a worker takes in a layer."""
    share, degree = stage.replicas[replica].share, stage.tensor_degree
    if degree > 1 and stage.strategy(k) in IN_ROWS:
        return share // degree + (column < share % degree)
    return share


def _layer(model: TracedModel, stage: Stage, k: int, replica: int, column: int) -> LayerOrder:
    strategy, samples = stage.strategy(k), _samples(stage, k, replica, column)
    if samples == 0:
        raise UnsupportedError(
            f"layer {model.layers[k].name!r} has fewer samples than workers",
            where=f"replica {replica}",
            by=f"{stage.replicas[replica].share} samples for {stage.tensor_degree} workers",
            hint="use larger micro-batches, or fewer workers",
        )
    return LayerOrder(model.layers[k].name, str(strategy), model.programs(samples)[k])


def _specs(model: TracedModel, stage: Stage, share: int, *, outputs: bool = False) -> tuple:  # type: ignore[type-arg]
    program = model.programs(share)[stage.last_layer if outputs else stage.first_layer]
    return tuple(program.specs[v] for v in (program.outputs if outputs else program.inputs))


def tied_layers(layers: Sequence[Layer]) -> Mapping[str, tuple[int, ...]]:
    """Parameters that several layers use -> those layers."""
    found: dict[str, tuple[int, ...]] = {}
    for k, layer in enumerate(layers):
        for name in layer.parameters:
            found[name] = (*found.get(name, ()), k)
    return {name: users for name, users in found.items() if len(users) > 1}


def layer_programs(step: TracedStep, layers: Sequence[Layer]) -> tuple[LayerProgram, ...]:
    """A program for every layer; `layers` may have been found on another number of samples.

    Raises `UnsupportedError`: the model computes something else on that many samples.
    """
    if layers[-1].end != len(step.instructions):
        raise UnsupportedError(
            "the model computes something else on another number of samples",
            where=f"{step.batch} samples",
            by=f"{len(step.instructions)} calls instead of {layers[-1].end}",
            hint="its code must not depend on the batch size",
        )
    prelude = prelude_of(step)
    return tuple(_program(step, layer, prelude) for layer in layers)


def count_program(step: TracedStep) -> LayerProgram:
    """What the samples of a step count, from the batch alone.

    Raises `UnsupportedError`: it depends on parameters.
    """
    wanted, own = set(step.counts), []
    for k in reversed(range(len(step.instructions))):
        if wanted.intersection(step.instructions[k].results):
            own.append(k)
            wanted.update(step.instructions[k].reads())
    trained = sorted(step.parameters[v] for v in wanted if v in step.parameters)
    if trained:
        raise UnsupportedError(
            "the loss is divided by a number that depends on parameters",
            where=f"parameter {trained[0]}",
            hint="divide by what depends on targets and inputs alone",
        )
    return _made_of(step, sorted(own), wanted, (), step.counts)


def _program(step: TracedStep, layer: Layer, prelude: frozenset[int]) -> LayerProgram:
    own = [k for k in range(layer.first, layer.end) if k not in prelude]
    wanted = {v for k in own for v in step.instructions[k].reads()} | set(layer.outputs)
    calls = set(own)
    for k in sorted(prelude, reverse=True):  # later ones read earlier ones
        if wanted.intersection(step.instructions[k].results):
            calls.add(k)
            wanted.update(step.instructions[k].reads())
    return _made_of(step, sorted(calls), wanted, layer.inputs, layer.outputs)


def _made_of(
    step: TracedStep,
    calls: Sequence[int],
    wanted: set[str],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> LayerProgram:
    """The program of these calls, which read what is `wanted`."""
    made = {v for k in calls for v in step.instructions[k].results}

    def of(names: dict[str, str]) -> dict[str, str]:
        return {value: name for value, name in names.items() if value in wanted}

    return LayerProgram(
        samples=step.batch,
        instructions=tuple(step.instructions[k] for k in calls),
        inputs=inputs,
        outputs=outputs,
        feeds=tuple(f for f in step.feeds if f in wanted),
        parameters=of(dict(step.parameters)),
        buffers=of(dict(step.buffers)),
        constants=of({v: f"constant:{v}" for v in step.constants}),
        specs={v: step.specs[v] for v in sorted({*wanted, *made, *inputs}) if v in step.specs},
        autocast=step.autocast,
    )


NORMS = ("aten.batch_norm.default", "aten.instance_norm.default")
DRAWN = "each worker draws random numbers of its own (dropout, torch.rand)"


def tensor_refusals(model: TracedModel, degrees: Sequence[int]) -> dict[tuple[int, int], str]:
    """Layer and degree -> why the layer cannot be split so (recurrent, tied, odd head counts)."""
    if model.step.autocast:
        why = f"values in {model.step.autocast} are not summed over workers"
        return {(k, d): why for k in range(len(model.layers)) for d in degrees if d > 1}
    return {
        (k, degree): split.refusal
        for degree in degrees
        if degree > 1
        for k, split in enumerate(_splits(model, degree))
        if split.refusal
    }


def refusals(
    model: TracedModel,
    degrees: Sequence[int],
    reasons: Mapping[tuple[int, int], str],
    *,
    exact: bool,
) -> tuple[Refusal, ...]:
    """Layers that cannot be split at any of the degrees, or with `exact` not along samples.

    `reasons`: of `tensor_refusals`.
    """
    split = [d for d in degrees if d > 1]
    whole = inexact_layers(model) if exact else {}
    by_samples = tuple(Refusal(k, s, why) for k, why in whole.items() for s in IN_ROWS)
    drawn = drawn_in_parts(model, split[0]) if exact and split else frozenset()
    return by_samples + tuple(
        Refusal(k, Strategy.TENSOR, reasons.get((k, split[0]), DRAWN))
        for k in range(len(model.layers))
        if split and (k in drawn or all((k, d) in reasons for d in split))
    )


def drawn_in_parts(model: TracedModel, degree: int) -> frozenset[int]:
    """Layers that draw random numbers for parts of values where they are split."""
    return frozenset(
        k for k, split in enumerate(_splits(model, degree)) if split.draws and not split.refusal
    )


def _splits(model: TracedModel, degree: int) -> list[Split]:
    """Every layer over so many workers."""
    shared = frozenset(tied_layers(model.layers))
    return [program.split(degree, shared) for program in model.programs(model.batch)]


def whole_batch_reason(call: Instruction) -> str:
    """Why a call has to see the whole batch at once; empty if it need not."""
    args = call.args
    counted = call.target == "placewright.counted_batch_norm.default"
    if counted or (call.target in NORMS and len(args) > 5 and args[5]):
        return "batch norm takes mean and variance over the samples of one worker only"
    return DRAWN if draws(call) else ""


def inexact_layers(model: TracedModel) -> dict[int, str]:
    """Layers that compute something else on a part of the batch, and why.

    The last one has the loss; where the model mixes samples, no comparison tells which layer does.
    """
    found, last, changed = {}, len(model.layers) - 1, changed_state(model.step)
    if model.split.refusal:
        mixes, loss = model.split.mixes, f"the loss {loss_name(model.source)}"
        why = "the model mixes samples" if mixes else f"{loss} is no mean or sum over samples"
        found = dict.fromkeys(
            range(0 if mixes else last, last + 1), f"{why}: {model.split.refusal}"
        )
    for k, layer in enumerate(model.layers):
        calls = model.step.instructions[layer.first : layer.end]
        reasons = [reason for reason in map(whole_batch_reason, calls) if reason]
        reasons += [
            f"every part of the batch would change {name.removeprefix('model.')!r} in place"
            for call, name in changed.items()
            if layer.first <= call < layer.end
        ]
        if reasons:
            found.setdefault(k, reasons[0])
    return found


def demand_exact(model: TracedModel, plan: LayerPlan) -> None:
    """Raise where a plan would not compute what one process computes.

    Raises `UnsupportedError`, which names the first layer, its strategy and the reason.
    """
    degrees = {stage.tensor_degree for stage in plan.stages if stage.tensor_degree > 1}
    drawn = {degree: drawn_in_parts(model, degree) for degree in degrees}
    for k, reason in inexact_layers(model).items():
        stage = plan.stages[plan.stage_of(k)]
        strategy = stage.strategy(k)
        replicas, inside = len(stage.replicas), stage.tensor_degree
        split = replicas > 1 or (inside > 1 and strategy in IN_ROWS) or plan.micro_batches > 1
        whole = strategy is Strategy.TENSOR and k in drawn.get(inside, ())
        if split or whole:
            part = "a part of the batch" if split else "parts of its values"
            raise UnsupportedError(
                f"layer {model.layers[k].name!r} cannot be {strategy} over {part}",
                where=f"{replicas} replicas, {plan.micro_batches} micro-batches",
                by=reason,
                hint="give this layer the whole batch, train without what needs it, or accept what "
                "data parallelism usually does to it: --approximate, or exact=False",
            )


def demand_untied(model: TracedModel, plan: LayerPlan) -> None:
    """Raise where tied weights would be in two stages, or sharded.

    Raises `UnsupportedError`, which names the weight and its layers.
    """
    for name, users in tied_layers(model.layers).items():
        stages = {plan.stage_of(k) for k in users}
        sharded = any(plan.stages[s].zero_stage for s in stages)
        if len(stages) > 1 or sharded:
            names = ", ".join(repr(model.layers[k].name) for k in users)
            raise UnsupportedError(
                f"the tied weight {name!r} cannot be "
                + ("sharded" if sharded else "in several pipeline stages"),
                where=f"layers {names}",
                by=f"stages {', '.join(map(str, sorted(stages)))}",
                hint="put these layers into one stage without ZeRO",
            )


def demand_sharded(model: TracedModel, plan: LayerPlan) -> None:
    """Raise where PyTorch cannot divide the weights, or their states, as a plan's ZeRO asks for.

    Raises `UnsupportedError`, which names the stage and the weight.
    """
    held, trained, views = model.held(), {*model.trained()}, views_of_state(model.step)
    for s, stage in enumerate(plan.stages):
        if not stage.zero_stage or len(stage.replicas) == 1:
            continue
        own = dict.fromkeys(n for k in stage.layers for n in model.layers[k].parameters)
        dtypes = {held[name].dtype: name for name in own if name in trained}
        empty = [name for name in own if not held[name].dim() or not held[name].numel()]
        passed = [views[v] for k in stage.layers for v in model.layers[k].outputs if v in views]
        what = by = ""
        if stage.zero_stage == 1 and len(dtypes) > 1:
            what = "states of weights of several types cannot be divided"
            by = ", ".join(f"{name!r} is {dtype}" for dtype, name in dtypes.items())
        elif stage.zero_stage > 1 and empty:
            what = "a weight without dimensions or elements cannot be sharded"
            by = f"{empty[0]!r} has shape {tuple(held[empty[0]].shape)}"
        elif stage.zero_stage > 1 and passed:
            what, by = (
                "a weight that passes from one layer to the next cannot be sharded",
                passed[0],
            )
        if what:
            hint = f"give the stage a zero_stage other than {stage.zero_stage}"
            raise UnsupportedError(what, where=f"stage {s}", by=by, hint=hint)


def demand_executable(model: TracedModel, plan: LayerPlan, workers: int, *, exact: bool) -> None:
    """Raise where a plan cannot be executed, or with `exact` not like one process.

    Raises `UnsupportedError`, which names the stage, the layer or the weight.
    """
    check_executable(plan)
    demand_untied(model, plan)
    demand_sharded(model, plan)
    if exact:
        demand_exact(model, plan)
    stage_orders(model, plan, workers, update_of("sgd"))
