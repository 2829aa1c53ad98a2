"""What a layer cannot have: strategies that would not compute what one process computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from placewright.layers.profile.formulas import unknown_calls
from placewright.layers.profile.splitting import split_layer

NORMS = ("aten.batch_norm.default", "aten.instance_norm.default")


def tensor_refusals(model: TracedModel, degrees: Sequence[int]) -> dict[tuple[int, int], str]:
    """Layer and degree -> why the layer cannot be split so (recurrent, tied, odd head counts)."""
    shared = frozenset(tied_layers(model.layers))
    found = {}
    for k, program in enumerate(model.programs(model.batch)):
        free = frozenset(v for v, name in program.parameters.items() if name not in shared)
        for degree in degrees:
            if degree > 1:
                split = split_layer(
                    program.instructions, program.specs, free, program.outputs, degree
                )
                if split.refusal:
                    found[k, degree] = split.refusal
    return found


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
    return by_samples + tuple(
        Refusal(k, Strategy.TENSOR, reasons[k, split[0]])
        for k in range(len(model.layers))
        if split and all((k, d) in reasons for d in split)
    )


def whole_batch_reason(call: Instruction) -> str:
    """Why a call has to see the whole batch at once; empty if it need not."""
    args = call.args
    if call.target in NORMS and len(args) > 5 and args[5]:
        return "batch norm takes mean and variance over the samples of one worker only"
    if call.target == "aten.dropout.default" and args[1] > 0 and args[2]:
        return "dropout draws other random numbers on each worker"
    if call.target == "aten.scaled_dot_product_attention.default":
        drawn = args[4] if len(args) > 4 else call.kwargs.get("dropout_p", 0.0)
        return "dropout draws other random numbers on each worker" if drawn else ""
    recurrent = {"aten.lstm.input": 5, "aten.gru.input": 5}
    if call.target in recurrent and args[recurrent[call.target]] > 0 and args[6]:
        return "dropout draws other random numbers on each worker"
    return ""


def inexact_layers(model: TracedModel) -> dict[int, str]:
    """Layers that compute something else on a part of the batch, and why."""
    found = {}
    for k, layer in enumerate(model.layers):
        calls = model.step.instructions[layer.first : layer.end]
        reasons = [reason for reason in map(whole_batch_reason, calls) if reason]
        if reasons:
            found[k] = reasons[0]
    return found


def demand_exact(model: TracedModel, plan: LayerPlan) -> None:
    """Raise where a plan would not compute what one process computes.

    Raises `UnsupportedError`, which names the first layer, its strategy and the reason.
    """
    for k, reason in inexact_layers(model).items():
        stage = plan.stages[plan.stage_of(k)]
        strategy = stage.strategy(k)
        replicas, inside = len(stage.replicas), stage.tensor_degree
        split = replicas > 1 or (inside > 1 and strategy in IN_ROWS) or plan.micro_batches > 1
        if split:
            raise UnsupportedError(
                f"layer {model.layers[k].name!r} cannot be {strategy} over a part of the batch",
                where=f"{replicas} replicas, {plan.micro_batches} micro-batches",
                by=reason,
                hint="train without it, or accept what data parallelism usually does to it: "
                "--approximate, or exact=False",
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
    stage_orders(model, plan, workers, optimizer="sgd", lr=0.0)


def measured_only(model: TracedModel) -> tuple[str, ...]:
    """A line for every layer with a call that no formula covers."""
    found = []
    for layer in model.layers:
        calls = unknown_calls(model.step, layer)
        if calls:
            found.append(
                f"layer {layer.name!r} ({layer.kind}) has no formula for {', '.join(calls)}: its "
                "time and memory are measured, its FLOPs are unknown"
            )
    return tuple(found)
