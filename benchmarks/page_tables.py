"""Write the Markdown tables of benchmarks_page.py."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from placewright.planning.result import relative_gap

HEAD = """# Planners, instance by instance

`python benchmarks/benchmarks_page.py`: `auto` with {seconds} s per instance, and every planner that
it ran, on two idle cores. Values are seconds by the judge; the bound is the
highest that any planner proved. Captured models are training steps with analytic
profiles (FLOPs and bytes over shares of the presets' rates), not measured ones; batch 2 on
edge-duo and edge-quad, 8 on mixed-8; memory limits hold except on edge-duo, where they are lifted.
`auto` is above no planner in any of the {count} tables: the command fails where it is.

![Makespan over the bound against the number of operators](../images/cost-against-size.svg)
"""


def page(records: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    seconds = "/".join(sorted({f"{r['seconds']:g}" for r in records}, key=float))
    parts = [HEAD.format(seconds=seconds, count=len(records)), summary(records)]
    return "\n".join([*parts, *(table(r) for r in records)])


def summary(records: Sequence[dict[str, Any]]) -> str:
    """One row per instance, and what they come to."""
    lines = [
        "## `auto`\n",
        "| instance | operators | value s | bound s | gap | won | to HEFT or single |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for r in records:
        share = ratio(r)
        share_text = "-" if share is None else f"{share:.3f}"
        lines.append(
            f"| {r['instance']} | {r['operators']} | {r['value']:.6g} | {r['lower_bound']:.6g} | "
            f"{percent(r['value'], r)} | {r['winner']} | {share_text} |"
        )
    return "\n".join([*lines, "", *totals(records)]) + "\n"


def totals(records: Sequence[dict[str, Any]]) -> list[str]:
    """Mean ratio of contended dag files at CCR 1, median gap of captured models."""
    cells = []
    ratios = [ratio(r) for r in records if "ccr1.0" in r["instance"] and is_contended(r)]
    known = [x for x in ratios if x is not None]
    if known:
        cells.append(
            f"Contended dag files at CCR 1: {fmean(known):.3f} of the better of HEFT and the best "
            f"single device, mean over {len(known)}."
        )
    gaps = [relative_gap(r["value"], r["lower_bound"]) for r in records if "@" in r["instance"]]
    if gaps:
        cells.append(
            f"Captured models: median gap to the bound {100 * median(gaps):.1f} % over {len(gaps)}."
        )
    return cells


def table(record: dict[str, Any]) -> str:
    """Planners of one instance, best first."""
    lines = [
        f"## {record['instance']}\n",
        f"{record['operators']} operators, {record['devices']} devices, bound "
        f"{record['lower_bound']:.6g} s ({record['bound']}). {record['why']}.\n",
        "| planner | value s | gap | time s |",
        "|---|---:|---:|---:|",
        f"| **auto** | {record['value']:.6g} | {percent(record['value'], record)} | "
        f"{record['runtime_s']:.1f} |",
    ]
    for r in sorted(record["planners"], key=lambda r: (not r["fits"], r["value"])):
        fits = "" if r["fits"] else ", does not fit"
        lines.append(
            f"| {r['planner']}{fits} | {r['value']:.6g} | {percent(r['value'], record)} | "
            f"{r['runtime_s']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def percent(value: float, record: dict[str, Any]) -> str:
    """Gap to the record's bound."""
    return f"{100 * relative_gap(value, record['lower_bound']):.1f} %"


def is_contended(record: dict[str, Any]) -> bool:
    """Whether transfers wait for each other."""
    return not record["instance"].endswith(",free")


def ratio(record: dict[str, Any]) -> float | None:
    """Of `auto` to the better of HEFT and the best single device, where one of them fits."""
    found = baseline(record)
    return record["value"] / found if found else None


def baseline(record: dict[str, Any]) -> float | None:
    """The better of HEFT and the best single device."""
    named = [
        r["value"]
        for r in record["planners"]
        if r["fits"] and (r["planner"] == "heft" or r["planner"].startswith("only:"))
    ]
    return min(named, default=None)
