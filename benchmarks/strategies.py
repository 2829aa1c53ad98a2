"""Compare predictions of layer plans with published measurements: errors and rank correlation.

    python benchmarks/strategies.py [table] [FOLDER] [--plans]
    python benchmarks/strategies.py simulate FILE [-f json]

FOLDER holds sets of files (default ``strategies`` of the published data), each with profile,
cluster and plan of a training step that others measured; ``simulate`` predicts the step and the
peak memory of one. Predictions of the table are made from copies without the fields that say what
was measured. The pick: among plans for the same
nodes and global batch, how much slower the plan predicted fastest really is than the fastest one;
the largest over the groups.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from scipy.stats import spearmanr

from harness import DATA, run
from measured_strategies.reader import read_strategy
from placewright.layers.files import plan_json
from placewright.layers.judge import judge
from placewright.report.text import percent, plain_table, seconds, size

HIDDEN = ("source", "measured", "suspect", "reference")


def main(
    verb: Literal["table", "simulate"] = "table",
    path: Path | None = None,
    *,
    plans: bool = False,
    f: Literal["table", "json"] = "table",
) -> None:
    """Score every set, with measured and predicted seconds of all `plans`, or predict one step."""
    if verb == "simulate" and path is not None:
        simulate(path, f)
    else:
        scores(path or DATA / "strategies", plans_too=plans)


def simulate(file: Path, form: str) -> None:
    """Print what is predicted for one plan, whether it fits or not."""
    problem, plan = read_strategy(file)
    judged = judge(problem, plan)
    peak = judged.peak_memory_bytes
    if form == "json":
        head = {"problem": problem.name, "step_s": judged.value, "peak_memory_bytes": peak}
        found = head | {"fits": judged.feasible, "plan": plan_json(judged)}
        print(json.dumps(found, indent=2, allow_nan=False))
        return
    memory = "unknown" if peak is None else size(peak)
    print(f"{problem.name}: step {seconds(judged.value)}, peak memory {memory}")


def scores(folder: Path, *, plans_too: bool) -> None:
    """Print a row per set and predictor."""
    rows = []
    for name in sorted({str(p.parent.relative_to(folder)) for p in folder.rglob("*.json")}):
        files = sorted((folder / name).glob("*.json"))
        plans = [scored(path) for path in files]
        for key, who in (("ours", "Placewright"), ("reference", "its authors")):
            rows += [row(name, who, [p for p in plans if p is not None], key)]
        if plans_too:
            for plan in filter(None, plans):
                print(plan["name"], plan["step"]["measured"], round(plan["step"]["ours"], 4))
    header = ("set", "predictor", "plans", "median", "mean", "max", "rank", "memory", "pick")
    print(plain_table(header, rows, "  rrrrrrr"))


def scored(path: Path) -> dict[str, Any] | None:
    """Measured and predicted step and memory of one plan, ``None`` if it did not run."""
    data = json.loads(path.read_text())
    measured = data.get("measured") or {}
    if measured.get("step_s") is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        copy.write_text(json.dumps({k: v for k, v in data.items() if k not in HIDDEN}))
        judged = judge(*read_strategy(copy))
    suspect, reference = data.get("suspect") or {}, data.get("reference") or {}
    step: dict[str, float | None] = {
        "measured": None if "step_s" in suspect else measured["step_s"],
        "ours": judged.value,
        "reference": reference.get("step_s"),
    }
    memory = {
        "measured": None if "peak_memory_bytes" in suspect else measured.get("peak_memory_bytes"),
        "ours": judged.peak_memory_bytes,
        "reference": reference.get("peak_memory_bytes"),
    }
    group = json.dumps([data["cluster"]["nodes"], data["plan"]["global_batch"]])
    return {"name": data["name"], "step": step, "memory": memory, "group": group}


def errors(plans: Sequence[dict[str, Any]], what: str, key: str) -> list[float]:
    """Relative errors where both are known."""
    pairs = [(p[what]["measured"], p[what][key]) for p in plans]
    return [abs(b / a - 1) for a, b in pairs if a is not None and b is not None]


def row(name: str, who: str, plans: Sequence[dict[str, Any]], key: str) -> tuple[str, ...]:
    """One line of the table."""
    known = [p for p in plans if p["step"]["measured"] is not None and p["step"][key] is not None]
    off = errors(known, "step", key)
    memory = errors(plans, "memory", key)
    rank = spearmanr([p["step"]["measured"] for p in known], [p["step"][key] for p in known])
    return (
        name,
        who,
        str(len(known)),
        percent(statistics.median(off)),
        percent(statistics.fmean(off)),
        percent(max(off)),
        f"{rank.statistic:.3f}",
        percent(statistics.median(memory)) if memory else "-",
        percent(pick(known, key)),
    )


def pick(plans: Sequence[dict[str, Any]], key: str) -> float:
    """Largest loss of a group's plan that is predicted fastest."""
    groups = defaultdict(list)
    for plan in plans:
        groups[plan["group"]].append(plan["step"])
    lost = []
    for group in groups.values():
        chosen = min(group, key=lambda step: step[key])["measured"]
        lost.append(chosen / min(step["measured"] for step in group) - 1)
    return float(max(lost))


if __name__ == "__main__":
    run(main)
