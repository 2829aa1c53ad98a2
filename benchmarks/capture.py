"""Measure the time of capturing the eight models of the zoo at full size, and count what it finds.

    python benchmarks/capture.py [MODEL ...]

Batch 1 for inference, 2 for training. Nothing is computed and no weights are made. The first
capture of a process also imports parts of PyTorch (about a second); it is made before.
"""

from __future__ import annotations

import argparse
import time
import warnings

from placewright import load_model
from placewright.capturing.model import capture_source
from placewright.capturing.zoo import zoo_models
from placewright.graph.graph import Graph

COLUMNS = ("model", "step", "operators", "groups", "signatures", "GFLOP", "resident MB", "seconds")


def measure(name: str, training: bool) -> tuple[Graph, float]:
    """The graph and the wall seconds of its capture, building the model included."""
    start = time.perf_counter()
    source = load_model(f"zoo:{name}", 2 if training else 1, training, weights=False)
    graph = capture_source(source, training=training)
    return graph, time.perf_counter() - start


def row(name: str, training: bool) -> str:
    """One line of the table."""
    graph, seconds = measure(name, training)
    groups = {op.colocation or op.name for op in graph.operators}
    cells = (
        name,
        "training" if training else "inference",
        str(len(graph.operators)),
        str(len(groups)),
        str(len({op.signature for op in graph.operators})),
        f"{graph.flops / 1e9:.2f}",
        f"{graph.resident_bytes / 1e6:.0f}",
        f"{seconds:.2f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(zoo_models()))
    models = parser.parse_args().models
    warnings.simplefilter("ignore")
    for training in (False, True):
        measure("alexnet", training)
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name in models:
        for training in (False, True):
            print(row(name, training), flush=True)


if __name__ == "__main__":
    main()
