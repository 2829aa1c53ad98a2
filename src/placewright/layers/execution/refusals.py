"""What a layer cannot have: strategies that would not compute what one process computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.capturing.split_loss import loss_name
from placewright.capturing.updates import update_of
from placewright.errors import UnsupportedError
from placewright.graph.program import Instruction
from placewright.layers.execution.stage_orders import (
    IN_ROWS,
    TracedModel,
    check_executable,
    stage_orders,
    tied_layers,
)
from placewright.layers.plan import LayerPlan, Strategy
from placewright.layers.problem import Refusal
from placewright.layers.profile.splitting import Split, draws

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
    if call.target in NORMS and len(args) > 5 and args[5]:
        return "batch norm takes mean and variance over the samples of one worker only"
    return DRAWN if draws(call) else ""


def inexact_layers(model: TracedModel) -> dict[int, str]:
    """Layers that compute something else on a part of the batch, and why.

    The last one has the loss; where the model mixes samples, no comparison tells which layer does.
    """
    found, last = {}, len(model.layers) - 1
    if model.split.refusal:
        mixes, loss = model.split.mixes, f"the loss {loss_name(model.source)}"
        why = "the model mixes samples" if mixes else f"{loss} is no mean or sum over samples"
        found = dict.fromkeys(
            range(0 if mixes else last, last + 1), f"{why}: {model.split.refusal}"
        )
    for k, layer in enumerate(model.layers):
        calls = model.step.instructions[layer.first : layer.end]
        reasons = [reason for reason in map(whole_batch_reason, calls) if reason]
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


def demand_executable(model: TracedModel, plan: LayerPlan, workers: int, *, exact: bool) -> None:
    """Raise where a plan cannot be executed, or with `exact` not like one process.

    Raises `UnsupportedError`, which names the stage, the layer or the weight.
    """
    check_executable(plan)
    demand_untied(model, plan)
    if exact:
        demand_exact(model, plan)
    stage_orders(model, plan, workers, update_of("sgd"))
