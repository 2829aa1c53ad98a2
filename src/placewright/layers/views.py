"""The pages of plans of wing 2: the strip of layers, pipeline timeline, memory of the workers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.layers.judge import LayerJudgement, judge, stage_load
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import crowding, replica_costs
from placewright.measurement import Measurement
from placewright.numerics.arrays import FloatArray
from placewright.planning.result import Result
from placewright.planning.views import (
    Data,
    memory_section,
    preformatted,
    result_facts,
    result_page,
    saved_plan_page,
    text_page,
    value_sentence,
)
from placewright.planning.wing import PartExplanation
from placewright.report.gantt import timeline
from placewright.report.page import (
    device_class,
    drawing,
    facts,
    heading,
    html_fragment,
    label,
    number,
    scroll,
    section,
    tag,
    text,
)
from placewright.report.text import plain_table, seconds, size

MOST_ROWS = 32
MOST_TRACKS = 64


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """Stages with their layers, workers, strategies and memory, and who is left out."""
    parts = [_stages(result.problem, result.plan, result.judgement)]
    left = [n for w, n in enumerate(result.problem.worker_names) if w not in result.plan.workers]
    if left:
        parts.append(f"left out: {', '.join(left[:16])}" + (", ..." if len(left) > 16 else ""))
    if measurement is not None:
        parts.append(
            f"predicted {seconds(result.value)}, measured {seconds(measurement.measured_s)}"
        )
    return "\n" + "\n".join(parts)


def _stages(p: LayerProblem, plan: LayerPlan, judged: LayerJudgement) -> str:
    rows = []
    for s, stage in enumerate(plan.stages[:MOST_ROWS]):
        shares = sorted(set(stage.shares))
        held = float(max(judged.held_bytes[w] for w in stage.workers))
        kinds = [*dict.fromkeys(str(stage.strategy(i)) for i in stage.layers)]
        kinds += [f"ZeRO {stage.zero_stage}"] if stage.zero_stage else []
        kinds += ["recompute"] if stage.recompute else []
        said = " ".join(kinds)
        each = f"{shares[0]}" if len(shares) == 1 else f"{shares[0]}-{shares[-1]}"
        if p.variants is not None:  # each replica takes its part of the samples, whatever it says
            each = f"1/{len(stage.replicas)}" if len(stage.replicas) > 1 else "1"
            names = (p.variants.names[plan.variants[i]] for i in stage.layers)
            said = ", ".join([*kinds, *dict.fromkeys(names)])
        rows.append(
            (
                str(s),
                f"{p.layer_names[stage.first_layer]} .. {p.layer_names[stage.last_layer]}",
                f"{len(stage.replicas)} x {stage.tensor_degree}",
                _worker_names(p, stage.workers),
                said,
                each,
                "-" if math.isnan(held) else size(held),
            )
        )
    header = ("stage", "layers", "replicas x degree", "workers", "strategies", "samples", "peak")
    head = f"{_count(plan.micro_batches, 'micro-batch')}, schedule {plan.schedule}"
    if p.variants is not None:
        samples = p.variants.batch_samples
        head = f"a full pipeline of {_count(samples, 'micro-batch')} of one sample"
    more = len(plan.stages) - len(rows)
    rest = f"\n... and {more} more stages" if more else ""
    return f"{head}\n{plain_table(header, rows, '     rr')}{rest}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'es' if number > 1 else ''}"


def _worker_names(p: LayerProblem, workers: Sequence[int]) -> str:
    """The first and the last of many."""
    names = [p.worker_names[w] for w in workers]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} .. {names[-1]}"


def page(
    result: Result,
    measurement: Measurement | None = None,
    graph: Any = None,
    run: Any = None,
) -> str:
    """The page of a plan."""
    return result_page(result, [*_body(result, measurement), *_measured(run)])


def _measured(run: Any) -> Iterator[str]:
    """Of a `LayerRun`: predicted beside measured, speed-ups beside the physical limit, memory."""
    if run is not None:
        yield preformatted("Predicted and measured", "In turns on the same workers.", repr(run))


def fragment(result: Result) -> str:
    """What a notebook shows."""
    return html_fragment(*_body(result, None))


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a problem or a plan file."""
    if "plan" not in data:
        from placewright.layers.files import read_problem

        return text_page(path.stem, kind, path, repr(read_problem(path)))
    stages = preformatted("Stages", "", json.dumps(data["plan"]["stages"], indent=2))
    return saved_plan_page(data, path, kind, [stages])


def parts(data: Data) -> dict[str, str]:
    """Strategy and workers of every layer in a saved plan, and its micro-batches."""
    plan = data["plan"]
    found = {key: str(plan[key]) for key in ("micro_batches", "schedule") if key in plan}
    variants = iter(plan.get("variants", ()))
    for stage in plan["stages"]:
        shares = [f"{' + '.join(r['workers'])} ({r['share']})" for r in stage["replicas"]]
        usual = "tensor" if stage.get("tensor_degree", 1) > 1 else "data"
        named = stage.get("layer_strategies") or {
            # Written by hand: only its ends have names.
            f"{stage['first_layer']} .. {stage['last_layer']}": ", ".join(
                dict.fromkeys(stage.get("strategies") or [usual])
            )
        }
        for layer, strategy in named.items():
            chosen = next(variants, None) if "layer_strategies" in stage else None
            found[layer] = f"{strategy} on {', '.join(shares)}"
            found[layer] += "" if chosen is None else f", variant {chosen}"
    return found


def _body(result: Result, measurement: Measurement | None) -> Iterator[str]:
    p, plan = result.problem, result.plan
    verdict = value_sentence(result)
    if measurement is not None:
        verdict += f" Measured: <b>{text(seconds(measurement.measured_s))}</b>."
    yield heading(p.name, "layers plan", verdict)
    yield facts(result_facts(result))
    subtitle = "Each box is a layer; rows are stages, colours strategies, widths times."
    yield section("Layers", subtitle, scroll(layer_strip(p, plan)))
    yield preformatted("Stages", "", _stages(p, plan, result.judgement))
    trace = result.judgement.trace()
    if trace is not None:
        if trace.devices <= MOST_TRACKS:
            chart = timeline(trace, title="pipeline timeline")
            yield section("Pipeline", "Passes of the micro-batches, transfers, exchange.", chart)
        yield memory_section(trace)


WIDTH, LEFT, RIGHT, ROW, GAP = 960.0, 90.0, 10.0, 18.0, 6.0
ORDER = tuple(Strategy)


def layer_strip(p: LayerProblem, plan: LayerPlan) -> str:
    """An SVG drawing."""
    weight = _weights(p)
    left = np.concatenate([[0.0], np.cumsum(weight)])
    scale = (WIDTH - LEFT - RIGHT) / float(left[-1])
    parts, y = [], 4.0
    for s, stage in enumerate(plan.stages):
        parts.append(label(LEFT - 8, y + 13, f"stage {s}", "name", anchor="end"))
        for i in stage.layers:
            strategy = stage.strategy(i)
            box = tag(
                "rect",
                x=number(LEFT + scale * left[i]),
                y=number(y),
                width=number(max(scale * weight[i] - 1, 1.0)),
                height=number(ROW),
                class_="span",
            )
            tip = f"{p.layer_names[i]}: {strategy}, stage {s}, {len(stage.workers)} workers"
            parts.append(tag("g", box, class_=device_class(ORDER.index(strategy)), data_tip=tip))
        y += ROW + GAP
    used = {stage.strategy(i) for stage in plan.stages for i in stage.layers}
    for k, strategy in enumerate(s for s in ORDER if s in used):
        x = number(LEFT + 130 * k)
        box = tag("rect", x=x, y=number(y), width="12", height="12", class_="span")
        parts.append(tag("g", box, class_=device_class(ORDER.index(strategy))))
        parts.append(label(LEFT + 130 * k + 18, y + 11, str(strategy), "busy"))
    return drawing(WIDTH, y + 20, *parts, title="layers by stage and strategy")


def _weights(p: LayerProblem) -> FloatArray:
    """Seconds of one sample, at least a thousandth of the whole."""
    if p.variants is not None:
        one = p.variants.time_s[:, 0].min(axis=1)
    else:
        one = np.nan_to_num(p.forward_s[0, 0, 0] + p.backward_s[0, 0, 0])
    return np.asarray(np.maximum(one, float(one.sum()) / 1000 or 1.0), dtype=np.float64)


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
        factor, k = crowding(p, len(plan.workers)), i - stage.first_layer
        costs = [replica_costs(p, stage, r).times(factor) for r in stage.replicas]
        facts["forward"] = _of_replicas([float(c.forward_s[k]) for c in costs])
        facts["backward"] = _of_replicas([float(c.backward_s[k]) for c in costs])
    else:
        facts["variant"] = p.variants.names[plan.variants[i]]
        facts["load of its stage"] = seconds(stage_load(p, plan, stage))
    changes = {}
    if i == stage.first_layer and s > 0:
        changes[f"in stage {s - 1}"] = _priced(p, _moved(plan, s - 1, i))
    if i == stage.last_layer and s + 1 < len(plan.stages):
        changes[f"in stage {s + 1}"] = _priced(p, _moved(plan, s, i - 1))
    return PartExplanation(p.layer_names[i], facts, changes)


def _of_replicas(times_s: Sequence[float]) -> str:
    """Seconds of a micro-batch, the least and the most where replicas differ."""
    return " to ".join(dict.fromkeys((seconds(min(times_s)), seconds(max(times_s)))))


def _moved(plan: LayerPlan, s: int, last: int) -> LayerPlan | None:
    """`plan` with stage `s` ending at layer `last`.

    Layers keep their strategies. One that comes to workers of another degree does as its neighbour
    there.
    """
    one, two = plan.stages[s], plan.stages[s + 1]
    if last < one.first_layer or last + 1 > two.last_layer:
        return None
    alike = one.tensor_degree == two.tensor_degree and (one.strategies or two.strategies)

    def of(stage: Stage, layers: range) -> tuple[Strategy, ...]:
        if not (stage.strategies or alike):
            return ()
        ends = stage.first_layer, stage.last_layer
        own = (one if i in one.layers else two for i in layers)
        near = (min(max(i, ends[0]), ends[1]) for i in layers)
        held = zip(own, near, layers, strict=True)
        return tuple(x.strategy(i) if alike else stage.strategy(k) for x, k, i in held)

    first, second = range(one.first_layer, last + 1), range(last + 1, two.last_layer + 1)
    pair: tuple[Stage, Stage] = (
        replace(one, last_layer=last, strategies=of(one, first)),
        replace(two, first_layer=last + 1, strategies=of(two, second)),
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
    judged = judge(p, plan)
    held = size(float(judged.least_bytes[w]))
    held = f"at least {held}" if math.isnan(judged.held_bytes[w]) else held
    own = (r.share for s in stages for r in plan.stages[s].replicas if w in r.workers)
    shares = " and ".join(dict.fromkeys(map(str, own)))
    share = f"{shares} of {plan.micro_batch} samples of a micro-batch"
    if p.variants is not None:
        copies = len(plan.stages[stages[0]].replicas)
        share = f"1 of {copies} samples" if copies > 1 else "all samples"
    facts = {
        "stage": ", ".join(map(str, stages)),
        "share": share,
        "memory": f"{held} of {size(float(p.memory_bytes[w]))}",
    }
    return PartExplanation(name, facts, {})
