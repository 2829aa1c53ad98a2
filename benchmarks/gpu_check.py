"""Check placed steps on this machine's GPUs against eager PyTorch and against predictions.

    python benchmarks/gpu_check.py

For a person with one GPU or more. Says what is skipped where there are fewer than it takes, and
ends with 1 if something that was tried is not right.

1. The CPU and one GPU, random placements: three training steps beside eager on the CPU.
2. Two GPUs driven by one process, which copies between them.
3. Two GPUs driven by a process each, joined by NCCL.
4. Predicted and measured step times of the best single GPU and of the plan.

Kernels of a GPU add up in another order than a CPU's, and cuDNN's convolutions may round to TF32:
results are compared within a tolerance, after steps of plain SGD (Adam divides by the size of a
gradient, and so would turn rounding into whole steps).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from link_speeds import measure_links
from placewright import Cluster, Device, OperatorPlan, load_model, profile, solve
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.cluster.detect import gpu_texts
from placewright.operators.run import best_single, running
from placewright.runtime.engines.local import Local
from placewright.testing.small_zoo import small

MODELS = ("alexnet", "resnet50", "rnnlm", "bert")

TOLERANCE = 5e-3
"""Largest absolute difference of the loss, a parameter or a buffer after three steps."""

PLACEMENTS = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One of the checks: what it needs, and what it does.

    Attributes
    ----------
    do
        Prints what it finds; whether it is right.
    """

    title: str
    gpus: int
    do: Callable[[], bool]
    nccl: bool = False

    def missing(self) -> str:
        """What is not here, or nothing."""
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if here < self.gpus:
            return f"needs {self.gpus} GPU{'s' * (self.gpus > 1)}, {here} here"
        if self.nccl and not dist.is_nccl_available():
            return "needs NCCL, which this PyTorch does not have"
        return ""


def cluster_of(gpus: int, *, cpu: bool = True) -> Cluster:
    """The CPU and so many GPUs."""
    here = Cluster.detect().devices
    chosen = [d for d in here if d.kind == "gpu"][:gpus]
    first = [Device("cpu", cores=1, memory_bytes=here[0].memory_bytes)] if cpu else []
    return Cluster((*first, *chosen), name="here")


def equals_eager(cluster: Cluster, engine: Local) -> bool:
    """Three steps of each model under random placements; prints the largest difference."""
    right = True
    for name in MODELS:
        source = small(name)
        graph = capture_source(source, training=True, optimizer="sgd", lr=1e-2)
        problem = profile(graph, cluster, method="analytic")
        state = initial_state(source, graph.program)
        rng, worst = np.random.default_rng(0), 0.0
        with running(graph, cluster, state, engine) as runner:
            words = str(runner.session.layout)
            for seed in range(PLACEMENTS):
                groups = rng.integers(0, problem.m, size=int(problem.colocation.max()) + 1)
                plan = OperatorPlan(groups[problem.colocation])
                runner.load(problem, plan, seed)
                worst = max(worst, runner.check(source, seed).max_abs_error)
        right &= worst <= TOLERANCE
        verdict = "right" if worst <= TOLERANCE else f"WRONG, more than {TOLERANCE:g}"
        print(f"  {name:10} {words}: largest difference {worst:.2g}, {verdict}", flush=True)
    return right


def times(model: str, batch: int, gpus: int) -> bool:
    """Predicted and measured seconds of a step, of the best single device and of the plan."""
    cluster = measure_links(cluster_of(gpus))
    for link in cluster.links:
        print(f"  link {link.source} -> {link.target}: {link.latency_s * 1e6:.0f} us, "
              f"{link.bandwidth / 1e9:.1f} GB/s")  # fmt: skip
    source = load_model(f"zoo:{model}", batch=batch, training=True)
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state)
    single, plan = best_single(problem), solve(problem, time_limit_s=20.0)
    with running(graph, cluster, state, Local(emulate=False)) as runner:
        for result in filter(None, (single, plan)):
            measured = runner.measure(result, steps=20)
            error = result.value / measured.measured_s - 1
            print(
                f"  {result.planner:16} predicted {result.value * 1e3:8.2f} ms, measured "
                f"{measured.measured_s * 1e3:8.2f} ms ({error:+.0%}); {measured.engine}",
                flush=True,
            )
    return True


def main() -> int:
    """Do what can be done here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="of the zoo, for the step times")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    found = gpu_texts()
    print("\n".join(f"{k}: {text}" for k, text in found.items()) or "no GPU that PyTorch can use")
    checks = (
        Check("CPU and one GPU equal eager", 1, lambda: equals_eager(cluster_of(1), Local())),
        Check(
            "two GPUs of one process equal eager",
            2,
            lambda: equals_eager(cluster_of(2), Local(together=True)),
        ),
        Check(
            "two GPUs of two processes equal eager",
            2,
            lambda: equals_eager(cluster_of(2), Local(together=False)),
            nccl=True,
        ),
        Check(
            f"step times of {args.model}, batch {args.batch}",
            1,
            lambda: times(args.model, args.batch, len(found)),
        ),
    )
    right = True
    for number, check in enumerate(checks, 1):
        missing = check.missing()
        print(f"{number}. {check.title}{f': skipped, {missing}' if missing else ''}", flush=True)
        right &= bool(missing) or check.do()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
