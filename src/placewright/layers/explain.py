"""Why a layer, or a worker, is where it is: its costs, and what other stages would change."""

from __future__ import annotations

from dataclasses import replace

from placewright.errors import InputError, UnknownNameError
from placewright.layers.costs.passes import replica_costs
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Stage
from placewright.layers.problem import LayerProblem
from placewright.planning.wing import PartExplanation
from placewright.report.text import seconds, size


def explain(problem: LayerProblem, plan: LayerPlan, name: str) -> PartExplanation:
    """Explain the layer, or the worker, called `name`.

    Raises `UnknownNameError`: nothing is called so; offers the nearest.
    """
    if name in problem.layer_names:
        return _layer(problem, plan, problem.layer_names.index(name))
    if name in problem.worker_names:
        return _worker(problem, plan, problem.worker_names.index(name))
    known = (*problem.layer_names, *problem.worker_names)
    raise UnknownNameError("layer or worker", name, known, where=problem.name)


def _layer(p: LayerProblem, plan: LayerPlan, i: int) -> PartExplanation:
    s = plan.stage_of(i)
    stage = plan.stages[s]
    names = [p.worker_names[w] for w in stage.workers]
    facts = {
        "stage": f"{s} of {len(plan.stages)}, layers {stage.first_layer} to {stage.last_layer}",
        "strategy": str(stage.strategy(i)),
        "workers": ", ".join(names[:8]) + (", ..." if len(names) > 8 else ""),
        "parameters": f"{p.parameters[i, 0]:.4g}",
    }
    if p.variants is None:
        costs = replica_costs(p, stage, stage.replicas[0])
        k = i - stage.first_layer
        facts["forward"] = seconds(float(costs.forward_s[k]))
        facts["backward"] = seconds(float(costs.backward_s[k]))
    changes = {}
    if i == stage.first_layer and s > 0:
        changes[f"in stage {s - 1}"] = _priced(p, _moved(plan, s - 1, i))
    if i == stage.last_layer and s + 1 < len(plan.stages):
        changes[f"in stage {s + 1}"] = _priced(p, _moved(plan, s, i - 1))
    return PartExplanation(p.layer_names[i], facts, changes)


def _moved(plan: LayerPlan, s: int, last: int) -> LayerPlan | None:
    """`plan` with stage `s` ending at layer `last`."""
    one, two = plan.stages[s], plan.stages[s + 1]
    if last < one.first_layer or last + 1 > two.last_layer:
        return None
    every = [*(one.strategy(i) for i in one.layers), *(two.strategy(i) for i in two.layers)]
    cut = last + 1 - one.first_layer
    if one.tensor_degree != two.tensor_degree:
        every = []
    pair: tuple[Stage, Stage] = (
        replace(one, last_layer=last, strategies=tuple(every[:cut])),
        replace(two, first_layer=last + 1, strategies=tuple(every[cut:])),
    )
    return replace(plan, stages=(*plan.stages[:s], *pair, *plan.stages[s + 2 :]))


def _priced(p: LayerProblem, plan: LayerPlan | None) -> str:
    if plan is None:
        return "the stage would be empty"
    try:
        found = judge(p, plan)
    except InputError as error:
        return error.what
    return seconds(found.value) + (f", {found.violation}" if found.violation else "")


def _worker(p: LayerProblem, plan: LayerPlan, w: int) -> PartExplanation:
    name = p.worker_names[w]
    stages = [s for s, stage in enumerate(plan.stages) if w in stage.workers]
    if not stages:
        return PartExplanation(name, {"stage": "left out"}, {})
    held = judge(p, plan).held_bytes[w]
    share = next(r.share for r in plan.stages[stages[0]].replicas if w in r.workers)
    facts = {
        "stage": ", ".join(map(str, stages)),
        "share": f"{share} of {plan.micro_batch} samples of a micro-batch",
        "memory": f"{size(float(held))} of {size(float(p.memory_bytes[w]))}",
    }
    return PartExplanation(name, facts, {})
