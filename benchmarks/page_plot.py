"""Draw the plot of benchmarks_page.py: the value over the bound against the number of operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHOWN = {"auto": "o", "ceft+pbqp": "^", "heft": "s", "best single device": "x"}


def plot_cost(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Scatter of value over bound against the number of operators; the same SVG each time."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "placewright"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, marker in SHOWN.items():
        points = [(r["operators"], cost(r, name)) for r in records]
        drawn = [(n, value) for n, value in points if value is not None]
        if drawn:
            across, up = zip(*drawn, strict=True)
            axes.scatter(across, up, marker=marker, s=26, label=name, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operators")
    axes.set_ylabel("makespan / lower bound")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def cost(record: dict[str, Any], name: str) -> float | None:
    """Value over bound, ``None`` where the planner has no plan that fits."""
    if name == "auto":
        return float(record["value"] / record["lower_bound"])
    wanted = [
        r["value"]
        for r in record["planners"]
        if r["fits"] and (r["planner"] == name or (name[:4] == "best" and "only:" in r["planner"]))
    ]
    return float(min(wanted) / record["lower_bound"]) if wanted else None
