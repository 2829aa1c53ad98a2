"""Check placed steps on this machine's GPUs against eager PyTorch and against predictions.

    python benchmarks/gpu_check.py

For a person with one GPU or more. Says what is skipped where there are fewer than it takes, and
ends with 1 if something that was tried is not right.

1. The CPU and one GPU, random placements: three training steps beside eager on the CPU.
2. Two GPUs driven by one process, which copies between them.
3. Two GPUs driven by a process each, joined by NCCL.
4. `place` for calls and for a training step, beside eager.
5. Learned planners with their networks on the GPU, beside the same ones on the CPU.
6. Predicted and measured step times of plans, beside eager PyTorch on the GPU.

Kernels of a GPU add up in another order than a CPU's. So 1 to 3 compute in float64, which no kernel
rounds to TF32, and take steps of plain SGD: Adam divides by the size of a gradient, and so would
turn rounding into whole steps.
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from harness import Table, run
from link_speeds import measure_links
from placewright import Cluster, OperatorPlan, load_model, place, profile, solve
from placewright.capturing.containers import tensors_of
from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.cluster.devices import cpu_cores, gpu_texts
from placewright.operators.check import Stepper
from placewright.operators.run import running
from placewright.runtime.engines.local import Local
from small_zoo import small

MODELS = ("alexnet", "resnet50", "rnnlm", "bert")

TOLERANCE = 1e-9
"""Largest difference in float64 of the loss, a parameter or a buffer after three steps."""

CALL_TOLERANCE = 1e-3
"""Largest difference in float32 of what a call returns."""

PLACEMENTS = 2

WARM_UP, STEPS = 5, 20

ONE, TWO = Local(together=True), Local(together=False)
"""Processes for two GPUs."""


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


def cluster_of(gpus: int, *, cores: int = 1) -> Cluster:
    """The CPU with so many cores and so many GPUs."""
    cpu, *others = Cluster.detect().devices
    chosen = [d for d in others if d.kind == "gpu"][:gpus]
    return Cluster((replace(cpu, cores=cores), *chosen), name="here")


def equals_eager(cluster: Cluster, engine: Local) -> bool:
    """Three steps of each model under random placements; prints the largest difference."""
    right = True
    for name in MODELS:
        source = in_double(small(name))
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


def in_double(source: ModelSource) -> ModelSource:
    """The model and its batch in float64."""

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    batch = (source.inputs, source.targets)
    inputs, targets = tree_map_only(torch.Tensor, doubled, batch)
    return replace(source, model=source.model.double(), inputs=inputs, targets=targets)


def placed_equals_eager(cluster: Cluster) -> bool:
    """`place` for calls and for a training step: what a user calls, on plans of its own."""
    right = True
    for name in ("resnet50", "bert"):
        source = small(name)
        args, named = (
            ((), source.inputs) if isinstance(source.inputs, dict) else (source.inputs, {})
        )
        with place(source, cluster=cluster) as placed, torch.no_grad():
            given = placed(*args, **named)
            wanted = source.model.eval()(*args, **named)
        pairs = zip(tensors_of(given), tensors_of(wanted), strict=True)
        worst = max(float((a.cpu() - b).abs().max()) for a, b in pairs)
        print(f"  {name:10} a call: largest difference {worst:.2g}", flush=True)
        with place(small(name), cluster=cluster, training=True) as placed:
            measured = placed.run(steps=3, check=True)
        print(f"  {name:10} three checked training steps: {measured.check}", flush=True)
        right &= worst <= CALL_TOLERANCE
    return right


def learned_planners() -> bool:
    """Values and seconds of learned planners by where their networks are; both find plans."""
    graph = capture_source(small("bert"), training=True)
    problem = profile(graph, Cluster.preset("edge-quad"), method="analytic")
    for name in ("hp3c", "rnn", "placeto", "hsdag", "doppler"):
        ends = []
        for device in ("cpu", "cuda:0"):
            result = solve(problem, f"{name}(samples=200, device={device!r})")
            ends.append(f"{result.value * 1e3:.4g} ms after {result.runtime_s:.1f} s on {device}")
        print(f"  {name:10} {', '.join(ends)}", flush=True)
    return True


def times(models: Sequence[str]) -> bool:
    """Predicted and measured seconds of training steps, beside eager PyTorch on the GPU."""
    cluster = measure_links(cluster_of(1, cores=max(1, cpu_cores() // 2)))
    for link in cluster.links:
        latency, bandwidth = link.latency_s * 1e6, link.bandwidth / 1e9
        print(f"  link {link.source} -> {link.target}: {latency:.0f} us, {bandwidth:.1f} GB/s")
    print()
    head = ("operators on the GPU", "predicted ms", "measured ms", "error")
    table = Table("model", "plan", *head, left=2)
    for model in models:
        name, _, batch = model.partition(":")
        _rows(table, name, int(batch or 8), cluster)
    return True


def _rows(table: Table, model: str, batch: int, cluster: Cluster) -> None:
    """One model's rows: eager on the GPU, each device alone, HEFT, and what `solve` chooses."""
    name = f"{model}, batch {batch}"
    source = load_model(f"zoo:{model}", batch=batch, training=True)
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state)
    table.row(name, "eager on the GPU", "", "", f"{eager_seconds(source) * 1e3:.2f}", "")
    plans = [solve(problem, planner=f"only:{name}") for name in problem.device_names]
    plans += [solve(problem, planner="heft"), solve(problem, time_limit_s=5.0)]
    with running(graph, cluster, state, Local(emulate=False)) as runner:
        for result in plans:
            on_gpu = float(np.mean(result.plan.placement == problem.m - 1))
            measured = runner.measure(result, steps=STEPS if on_gpu else 3)
            times = [f"{s * 1e3:.2f}" for s in (result.value, measured.measured_s)]
            error = f"{result.value / measured.measured_s - 1:+.0%}"
            table.row(name, result.planner, f"{on_gpu:.0%}", *times, error)


def eager_seconds(source: ModelSource) -> float:
    """Median seconds of an eager training step with Adam on the first GPU."""
    model = copy.deepcopy(source.model).cuda()
    inputs, targets = tree_map_only(
        torch.Tensor, torch.Tensor.cuda, (source.inputs, source.targets)
    )
    step = Stepper(replace(source, model=model, inputs=inputs, targets=targets), training=True)
    seconds = []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds[WARM_UP:]))


def done(check: Check) -> bool:
    """Whether a check is right; one that raises is not, and the ones after it are still done."""
    try:
        return check.do()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return False


def main(*, models: tuple[str, ...] = ("resnet50:8", "bert:8")) -> int:
    """Do what can be done here; `models`: of the zoo, for the step times, with the batch size."""
    found, pair = gpu_texts(), partial(cluster_of, 2)
    print("\n".join(f"{k}: {text}" for k, text in found.items()) or "no GPU that PyTorch can use")
    checks = (
        Check("CPU and one GPU equal eager", 1, lambda: equals_eager(cluster_of(1), Local())),
        Check("two GPUs of one process equal eager", 2, lambda: equals_eager(pair(), ONE)),
        Check("two GPUs of two processes equal eager", 2, lambda: equals_eager(pair(), TWO), True),
        Check("placed models equal eager", 1, lambda: placed_equals_eager(cluster_of(1))),
        Check("learned planners on a GPU", 1, learned_planners),
        Check(f"step times of {' and '.join(models)}", 1, lambda: times(models)),
    )
    right = True
    for number, check in enumerate(checks, 1):
        missing = check.missing()
        print(f"{number}. {check.title}{f': skipped, {missing}' if missing else ''}", flush=True)
        begun = time.perf_counter()
        right &= bool(missing) or done(check)
        print(f"  {time.perf_counter() - begun:.0f} s", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    run(main)
