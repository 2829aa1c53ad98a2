"""Peak memory of every worker beside what the judge predicted: training steps and inference.

    python benchmarks/memory.py
    python benchmarks/memory.py --models alexnet resnet50 --planner only:board-a topological-split

A worker of a CPU has tensors of its part, what arrives, and what PyTorch's kernels need meanwhile;
the table says how far their sum is from the judge's peak. Devices without operators are left out.
"""

from __future__ import annotations

import argparse
from statistics import median

from placewright import Cluster, load_model, place
from placewright.report.text import plain_table, size

MODELS = ("alexnet", "vgg16", "resnet50", "inception_v3", "bert", "gpt2", "lstm", "gnmt")


def main() -> None:
    """Print a row per device, and the median error."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=MODELS)
    options.add_argument("--on", default="edge-duo")
    options.add_argument("--planner", nargs="+", default=("topological-split",))
    options.add_argument("--inference", action="store_true")
    asked = options.parse_args()
    rows, errors = [], []
    for model in asked.models:
        for planner in asked.planner:
            for device, predicted, measured in peaks(
                model, asked.on, planner, training=not asked.inference
            ):
                errors.append(predicted / measured - 1.0)
                rows.append(
                    (model, planner, device, size(predicted), size(measured), f"{errors[-1]:+.1%}")
                )
                print(*rows[-1], flush=True)
    print(plain_table(("model", "plan", "device", "judge", "measured", "error"), rows, "   rrr"))
    within = sum(abs(e) <= 0.05 for e in errors)
    print(f"median error {median(map(abs, errors)):.1%}; within 5 %: {within} of {len(errors)}")


def peaks(
    model: str, cluster: str, planner: str, *, training: bool
) -> list[tuple[str, float, float]]:
    """Device, predicted and measured bytes where the plan puts operators."""
    source = load_model(f"zoo:{model}", training=training)
    with place(
        source,
        cluster=Cluster.preset(cluster),
        training=training,
        method="analytic",
        planner=planner,
        emulate=False,
    ) as placed:
        placed.run(steps=1, warmup=0)  # libraries are loaded then, which no plan is charged for
        found = placed.memory()
        used = set(placed.plan.placement.tolist())
        names = placed.workload.cluster.device_names
        return [
            (name, float(found[name].predicted_bytes), float(found[name].measured_bytes))
            for d, name in enumerate(names)
            if d in used
        ]


if __name__ == "__main__":
    main()
