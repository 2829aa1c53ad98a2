"""The strip of layers shows strategies by the page's colours."""

from __future__ import annotations

import re

from placewright.layers.conformance import tiny
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy
from placewright.layers.views import layer_strip


def test_boxes_have_their_strategy_s_colour() -> None:
    """The style sheet fills class span inside of a colour's class; the legend names those used."""
    p = tiny([1.0, 1.0], 2, 1)
    strategies = (Strategy.TENSOR, Strategy.REPLICATED)
    plan = LayerPlan((Stage(0, 1, (Replica((0, 1), 4),), 2, strategies),))
    drawn = layer_strip(p, plan)
    boxes = re.findall(r'<g class="(d\d)"[^>]*><rect[^>]* class="span"', drawn)
    order = tuple(Strategy)
    assert boxes == [f"d{order.index(s)}" for s in strategies] * 2  # layers, then the legend
    assert drawn.count("<rect") == len(boxes)
    assert "replicated" in drawn
    assert "sharded" not in drawn
