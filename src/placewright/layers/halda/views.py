"""Pages of layers in a ring: layers per device and round, and what physics allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewright.layers.halda.judge import RingJudgement
from placewright.measurement.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import Data, GenericViews, preformatted, result_page
from placewright.report.page import html_fragment
from placewright.report.text import plain_table, seconds

GENERIC = GenericViews("s")


def summary(result: Result, measurement: Measurement | None = None) -> str:
    """Layers of each device per round, and the physical bound."""
    return f"\n{ring_table(result.judgement)}"


def ring_table(judged: RingJudgement) -> str:
    """A line per device, and one on what physics allows."""
    p, plan = judged.problem, judged.plan
    rows = [
        (d.name, str(w), str(n), str(plan.rounds * w))
        for d, w, n in zip(p.devices, plan.layers, plan.gpu_layers, strict=True)
    ]
    table = plain_table(("device", "layers per round", "on its GPU", "in all"), rows, " rrr")
    physical = f"no placement reads all weights faster than {seconds(judged.physical_s)} per token"
    if judged.value < judged.physical_s:
        physical += "; the formula undercuts that, as it charges less than whole fetches from disk"
    rounds = f"{plan.rounds} round{'s' if plan.rounds > 1 else ''}"
    return f"{rounds}\n{table}\nphysical bound: {physical}"


def page(
    result: Result, measurement: Measurement | None = None, graph: Any = None, run: Any = None
) -> str:
    """The page of a plan."""
    return result_page(result, _body(result), unit=GENERIC.unit)


def fragment(result: Result) -> str:
    """What a notebook shows."""
    return html_fragment(*_body(result))


def saved_page(kind: str, data: Data, path: Path) -> str:
    """The page of a problem or a plan file."""
    return GENERIC.saved_page(kind, data, path)


def parts(data: Data) -> dict[str, str]:
    """Rounds, and layers of every device in a saved plan."""
    plan = data["plan"]
    layers = {
        name: f"{w} per round, {plan['gpu_layers'].get(name, 0)} on its GPU"
        for name, w in plan["layers"].items()
    }
    return {"rounds": str(plan["rounds"])} | layers


def _body(result: Result) -> list[str]:
    table = preformatted("Layers in the ring", "Per round.", ring_table(result.judgement))
    return [*GENERIC.sections(result), table]
