"""The command line of wing 1: what a problem is made of, and the verb run.

It captures and profiles models and deploys them, so it stands above the wing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from placewright.cli.operators.learned import compare, train
from placewright.cli.operators.run import export, run
from placewright.cli.options import (
    BatchOption,
    ContiguousOption,
    LinksOption,
    MicroBatchesOption,
    ObjectiveOption,
    OnOption,
    OverlapOption,
    Source,
    TrainingOption,
)
from placewright.cli.pipeline_options import (
    BySpeedOption,
    ClustersOption,
    PipelineOptions,
    ReplicationOption,
    SpeedupOption,
    SyncOption,
)

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.cli.sources import Loaded


def load(
    console: Console,
    source: Source,
    on: OnOption = None,
    objective: ObjectiveOption = None,
    training: TrainingOption = False,
    batch: BatchOption = None,
    micro_batches: MicroBatchesOption = None,
    links: LinksOption = None,
    overlap: OverlapOption = None,
    contiguous: ContiguousOption = False,
    replication: ReplicationOption = False,
    by_speed: BySpeedOption = False,
    sync_bandwidth: SyncOption = None,
    clusters: ClustersOption = None,
    cluster_speedup: SpeedupOption = None,
) -> Loaded:
    """The problem of a model, a graph, a problem file or a published instance."""
    from placewright.cli.sources import SourceOptions
    from placewright.cli.sources import load as load_source

    pipeline = PipelineOptions(replication, sync_bandwidth, clusters, cluster_speedup, by_speed)
    options = SourceOptions(
        source,
        on,
        training,
        batch,
        objective,
        links=links,
        overlap=overlap,
        contiguous=contiguous,
        pipeline=pipeline,
        micro_batches=micro_batches,
    )
    return load_source(options, console)


verbs: dict[str, Callable[..., None]] = {"run": run, "export": export}
source_verbs: dict[str, Callable[..., None]] = {
    "compare": compare,
    "train": train,
}
examples = {
    "plan": [
        "zoo:resnet50 --training --on edge-duo -o plan.json",
        "zoo:alexnet --training --micro-batches 4 --on edge-duo",
        "zoo:resnet50 --on edge-duo --objective throughput --replication --by-speed",
        "dag:tasks.json --planner heft -f json",
        "problem.json --report plan.html --trace plan.json.gz",
    ],
    "compare": [
        "zoo:inception_v3 --on edge-quad",
        "dag:tasks.json --planner heft --planner peft",
        "dag:tasks.json --learned --evaluations 2000 --seconds 5 -f json",
    ],
    "train": [
        "zoo:resnet50 --on edge-quad --planner hp3c --checkpoint hp3c.safetensors",
        "problem.json --planner post --checkpoint post.safetensors --resume --seed 1",
    ],
    "simulate": [
        "problem.json plan.json",
        "dag:tasks.json plan.json --links contended",
    ],
    "explain": ["problem.json plan.json addmm_3", "problem.json plan.json model.layers.14"],
    "export": ["model.onnx plan.json --on edge-duo --folder placed"],
    "run": [
        "zoo:resnet50 --training --on edge-duo --steps 5 --check",
        "zoo:alexnet plan.json --on edge-duo --report run.html",
        "zoo:resnet50 --training --on edge-duo --engine testbed --adapt --steps 200 "
        "--report run.html",
    ],
}
