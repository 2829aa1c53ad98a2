"""The strip of layers: one row per stage, one box per layer, coloured by strategy."""

from __future__ import annotations

import numpy as np

from placewright.layers.plan import LayerPlan, Strategy
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray
from placewright.report.page import device_class, drawing, label, number, tag

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
