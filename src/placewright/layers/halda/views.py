"""Pages of layers in a ring: layers per device and round, and what physics allows."""

from __future__ import annotations

from collections.abc import Iterator

from placewright.layers.halda.judge import RingJudgement
from placewright.measurement import Measurement
from placewright.planning.result import Result
from placewright.planning.views import Data, GenericViews, preformatted
from placewright.report.text import plain_table, seconds


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


class HaldaViews(GenericViews):
    """How plans of a ring are shown."""

    def summary(self, result: Result, measurement: Measurement | None = None) -> str:
        """Layers of each device per round, and the physical bound."""
        return f"\n{ring_table(result.judgement)}"

    def sections(self, result: Result) -> Iterator[str]:
        """The usual ones, and the layers of each device."""
        yield from super().sections(result)
        yield preformatted("Layers in the ring", "Per round.", ring_table(result.judgement))

    def parts(self, data: Data) -> dict[str, str]:
        """Rounds, and layers of every device in a saved plan."""
        plan = data["plan"]
        layers = {
            name: f"{w} per round, {plan['gpu_layers'].get(name, 0)} on its GPU"
            for name, w in plan["layers"].items()
        }
        return {"rounds": str(plan["rounds"])} | layers


VIEWS = HaldaViews("s")
