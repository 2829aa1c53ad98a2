"""Placewright decides where deep learning runs.

Public names are loaded when they are first used, so that ``import placewright`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline
    from placewright.capturing.model import capture, capture_source
    from placewright.capturing.recipe import TrainingRecipe
    from placewright.capturing.source import ModelSource, load_model, mean_square
    from placewright.capturing.state import initial_state
    from placewright.capturing.zoo import zoo_models
    from placewright.cluster.cluster import Cluster, Device, Link, Node
    from placewright.cluster.files import load_cluster
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.placing import place
    from placewright.deployment.trainer import Trainer
    from placewright.errors import (
        CheckError,
        InfeasibleError,
        InputError,
        MissingDependencyError,
        PlacewrightError,
        RunError,
        UnknownNameError,
        UnsupportedError,
        WorkerError,
    )
    from placewright.graph.files import read_graph
    from placewright.graph.graph import Graph
    from placewright.layers.placed_training import PlacedTraining, place_training
    from placewright.layers.plan import LayerPlan
    from placewright.layers.problem import LayerProblem
    from placewright.layers.readers.piper import read_piper
    from placewright.layers.readers.strategy import read_strategy
    from placewright.measurement.check import Check
    from placewright.measurement.measurement import Measurement
    from placewright.operators.adaptive.policy import Policy
    from placewright.operators.adaptive.trainer import TrainingLoop
    from placewright.operators.pipeline import Pipeline
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import Links, Objective, OperatorProblem
    from placewright.operators.readers.dag import read_dag
    from placewright.operators.readers.msr import read_expert, read_msr
    from placewright.operators.readers.pipedream import read_pipedream
    from placewright.operators.run import best_single, run, running
    from placewright.planning.contract import Context, Direction, Planner, Proposal
    from placewright.planning.monitor import Monitor
    from placewright.planning.result import Candidate, Outcome, Result, Status
    from placewright.planning.solving import compare, solve
    from placewright.planning.wing import Wing
    from placewright.planning.wings import bounds, judge, planners, register_wing, wings
    from placewright.profiling.build import profile
    from placewright.profiling.table import ProfileTable
    from placewright.requests.serving.server import (
        ServingOptions,
        running_server,
        serve_requests,
    )
    from placewright.runtime.session import Session
    from placewright.samples.placed_samples import PlacedSamples, place_samples
    from placewright.samples.plan import SamplePlan
    from placewright.samples.problem import SampleProblem
    from placewright.solvers.iopddl import read_iopddl
    from placewright.solvers.memory_pbqp import MemoryPbqp
    from placewright.solvers.memory_search import solve_pbqp_memory
    from placewright.solvers.pbqp import Pbqp, solve_pbqp
    from placewright.testbed.testbed import Testbed

__version__ = "0.1.0"

_HOME = {
    "Candidate": "placewright.planning.result",
    "Check": "placewright.measurement.check",
    "CheckError": "placewright.errors",
    "Cluster": "placewright.cluster.cluster",
    "Context": "placewright.planning.contract",
    "Device": "placewright.cluster.cluster",
    "Direction": "placewright.planning.contract",
    "Graph": "placewright.graph.graph",
    "InfeasibleError": "placewright.errors",
    "InputError": "placewright.errors",
    "LayerPlan": "placewright.layers.plan",
    "LayerProblem": "placewright.layers.problem",
    "Link": "placewright.cluster.cluster",
    "Links": "placewright.operators.problem",
    "Measurement": "placewright.measurement.measurement",
    "MemoryPbqp": "placewright.solvers.memory_pbqp",
    "MissingDependencyError": "placewright.errors",
    "ModelSource": "placewright.capturing.source",
    "Monitor": "placewright.planning.monitor",
    "Node": "placewright.cluster.cluster",
    "Objective": "placewright.operators.problem",
    "OperatorPlan": "placewright.operators.plan",
    "OperatorProblem": "placewright.operators.problem",
    "Outcome": "placewright.planning.result",
    "Pbqp": "placewright.solvers.pbqp",
    "Pipeline": "placewright.operators.pipeline",
    "PlacedModel": "placewright.deployment.placed_model",
    "PlacedSamples": "placewright.samples.placed_samples",
    "PlacedTraining": "placewright.layers.placed_training",
    "PlacewrightError": "placewright.errors",
    "Planner": "placewright.planning.contract",
    "Policy": "placewright.operators.adaptive.policy",
    "ProfileTable": "placewright.profiling.table",
    "Proposal": "placewright.planning.contract",
    "Result": "placewright.planning.result",
    "RunError": "placewright.errors",
    "SamplePlan": "placewright.samples.plan",
    "SampleProblem": "placewright.samples.problem",
    "ServingOptions": "placewright.requests.serving.server",
    "Session": "placewright.runtime.session",
    "Status": "placewright.planning.result",
    "Testbed": "placewright.testbed.testbed",
    "Timeline": "placewright.adapt.timeline",
    "TrainingRecipe": "placewright.capturing.recipe",
    "Trainer": "placewright.deployment.trainer",
    "TrainingLoop": "placewright.operators.adaptive.trainer",
    "UnknownNameError": "placewright.errors",
    "UnsupportedError": "placewright.errors",
    "Wing": "placewright.planning.wing",
    "WorkerError": "placewright.errors",
    "best_single": "placewright.operators.run",
    "bounds": "placewright.planning.wings",
    "capture": "placewright.capturing.model",
    "capture_source": "placewright.capturing.model",
    "compare": "placewright.planning.solving",
    "initial_state": "placewright.capturing.state",
    "judge": "placewright.planning.wings",
    "load_cluster": "placewright.cluster.files",
    "load_model": "placewright.capturing.source",
    "mean_square": "placewright.capturing.source",
    "place": "placewright.deployment.placing",
    "place_samples": "placewright.samples.placed_samples",
    "place_training": "placewright.layers.placed_training",
    "planners": "placewright.planning.wings",
    "profile": "placewright.profiling.build",
    "read_dag": "placewright.operators.readers.dag",
    "read_expert": "placewright.operators.readers.msr",
    "read_graph": "placewright.graph.files",
    "read_iopddl": "placewright.solvers.iopddl",
    "read_msr": "placewright.operators.readers.msr",
    "read_pipedream": "placewright.operators.readers.pipedream",
    "read_piper": "placewright.layers.readers.piper",
    "read_strategy": "placewright.layers.readers.strategy",
    "register_wing": "placewright.planning.wings",
    "run": "placewright.operators.run",
    "running": "placewright.operators.run",
    "running_server": "placewright.requests.serving.server",
    "serve_requests": "placewright.requests.serving.server",
    "solve": "placewright.planning.solving",
    "solve_pbqp": "placewright.solvers.pbqp",
    "solve_pbqp_memory": "placewright.solvers.memory_search",
    "wings": "placewright.planning.wings",
    "zoo_models": "placewright.capturing.zoo",
}

__all__ = [
    "Candidate",
    "Check",
    "CheckError",
    "Cluster",
    "Context",
    "Device",
    "Direction",
    "Graph",
    "InfeasibleError",
    "InputError",
    "LayerPlan",
    "LayerProblem",
    "Link",
    "Links",
    "Measurement",
    "MemoryPbqp",
    "MissingDependencyError",
    "ModelSource",
    "Monitor",
    "Node",
    "Objective",
    "OperatorPlan",
    "OperatorProblem",
    "Outcome",
    "Pbqp",
    "Pipeline",
    "PlacedModel",
    "PlacedSamples",
    "PlacedTraining",
    "PlacewrightError",
    "Planner",
    "Policy",
    "ProfileTable",
    "Proposal",
    "Result",
    "RunError",
    "SamplePlan",
    "SampleProblem",
    "ServingOptions",
    "Session",
    "Status",
    "Testbed",
    "Timeline",
    "Trainer",
    "TrainingLoop",
    "TrainingRecipe",
    "UnknownNameError",
    "UnsupportedError",
    "Wing",
    "WorkerError",
    "__version__",
    "best_single",
    "bounds",
    "capture",
    "capture_source",
    "compare",
    "initial_state",
    "judge",
    "load_cluster",
    "load_model",
    "mean_square",
    "place",
    "place_samples",
    "place_training",
    "planners",
    "profile",
    "read_dag",
    "read_expert",
    "read_graph",
    "read_iopddl",
    "read_msr",
    "read_pipedream",
    "read_piper",
    "read_strategy",
    "register_wing",
    "run",
    "running",
    "running_server",
    "serve_requests",
    "solve",
    "solve_pbqp",
    "solve_pbqp_memory",
    "wings",
    "zoo_models",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
