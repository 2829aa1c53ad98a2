"""The page of a saved plan of wing 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placewright.errors import UnknownNameError
from placewright.planning.trace import Trace
from placewright.report.gantt import gantt
from placewright.report.saved_result import (
    Data,
    saved_candidates,
    saved_facts,
    saved_name,
    saved_provenance,
    saved_title,
)
from placewright.report.sheet import facts, heading, legend, section, sheet
from placewright.report.svg import tag


def saved_plan_page(data: Data, path: Path) -> str:
    """The page of wing 1's plan file.

    Raises
    ------
    InputError
        A field that is missing or wrong.
    """
    from placewright.io.boundary import validate
    from placewright.operators.formats.schema import PlanFile

    validate(PlanFile, data, where=str(path))
    trace, name = saved_trace(data, str(path)), saved_name(data, path)
    count = Counter(data["plan"]["placement"].values())
    devices = trace.tracks[: trace.devices]
    body = [
        heading(name, f"{data.get('objective', '')} plan, from {path.name}"),
        facts(saved_facts(data)),
        legend(devices, [f"{count[d]} operators" for d in devices]),
        section(
            "Timeline",
            "Who runs what when. Coloured tracks are devices, grey ones the links between them.",
            tag("div", gantt(trace, title="predicted timeline"), class_="scroll"),
        ),
        saved_candidates(data),
        saved_provenance(data),
    ]
    return sheet(saved_title(data, path), *body)


def saved_trace(data: Data, where: str = "plan") -> Trace:
    """The schedule and the transfers of a saved plan.

    Links are one track per pair of devices: a plan does not say which of them share a channel.
    """
    plan = data["plan"]
    operators, transfers = plan.get("schedule") or [], plan.get("transfers") or []
    devices = tuple(dict.fromkeys(_device_names(plan)))
    _check_known(devices, operators, where)
    pairs = list(dict.fromkeys(f"{t['source']}->{t['target']}" for t in transfers))
    tracks = {name: k for k, name in enumerate((*devices, *pairs))}
    track = [tracks[o["device"]] for o in operators]
    track += [tracks[f"{t['source']}->{t['target']}"] for t in transfers]
    both = [*operators, *transfers]
    return Trace(
        tracks=tuple(tracks),
        devices=len(devices),
        labels=(*(o["op"] for o in operators), *(t["tensor"] for t in transfers)),
        track=np.array(track, dtype=np.int64),
        label=np.arange(len(both)),
        start_s=np.array([span["start_s"] for span in both], dtype=np.float64),
        end_s=np.array([span["end_s"] for span in both], dtype=np.float64),
    )


def _check_known(devices: Sequence[str], spans: Sequence[Data], where: str) -> None:
    strange = next((span for span in spans if span["device"] not in devices), None)
    if strange is not None:
        place = f"{where}: plan.schedule, operator {strange['op']!r}"
        raise UnknownNameError("device", strange["device"], devices, where=place)


def _device_names(plan: Data) -> list[str]:
    named = plan.get("devices") or sorted(set(plan["placement"].values()))
    return [str(name) for name in named]
