"""Placewright decides where deep learning runs.

Public names are loaded when they are first used, so that ``import placewright`` is light. A public
name stands in two lists: the imports, which type checkers read, and `_NAMES`, which Python reads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from placewright.version import __version__ as __version__

if TYPE_CHECKING:
    from placewright.adapt.timeline import Timeline as Timeline
    from placewright.capturing.model import capture as capture
    from placewright.capturing.model import capture_source as capture_source
    from placewright.capturing.recipe import TrainingRecipe as TrainingRecipe
    from placewright.capturing.source import ModelSource as ModelSource
    from placewright.capturing.source import load_model as load_model
    from placewright.capturing.source import mean_square as mean_square
    from placewright.capturing.state import initial_state as initial_state
    from placewright.capturing.zoo import zoo_models as zoo_models
    from placewright.cluster.cluster import Cluster as Cluster
    from placewright.cluster.cluster import Device as Device
    from placewright.cluster.cluster import Link as Link
    from placewright.cluster.cluster import Node as Node
    from placewright.cluster.files import load_cluster as load_cluster
    from placewright.deployment.placed_model import PlacedModel as PlacedModel
    from placewright.deployment.placing import place as place
    from placewright.deployment.trainer import Trainer as Trainer
    from placewright.errors import CheckError as CheckError
    from placewright.errors import InfeasibleError as InfeasibleError
    from placewright.errors import InputError as InputError
    from placewright.errors import MissingDependencyError as MissingDependencyError
    from placewright.errors import PlacewrightError as PlacewrightError
    from placewright.errors import RunError as RunError
    from placewright.errors import UnknownNameError as UnknownNameError
    from placewright.errors import UnsupportedError as UnsupportedError
    from placewright.errors import WorkerError as WorkerError
    from placewright.files import read as read
    from placewright.files import write as write
    from placewright.graph.files import read_graph as read_graph
    from placewright.graph.graph import Graph as Graph
    from placewright.layers.execution.analytic_problem import layer_problem as layer_problem
    from placewright.layers.placed_training import PlacedTraining as PlacedTraining
    from placewright.layers.placed_training import place_training as place_training
    from placewright.layers.plan import LayerPlan as LayerPlan
    from placewright.layers.problem import LayerProblem as LayerProblem
    from placewright.layers.readers.piper import read_piper as read_piper
    from placewright.measurement.check import Check as Check
    from placewright.measurement.measurement import Measurement as Measurement
    from placewright.operators.adaptive.policy import Policy as Policy
    from placewright.operators.adaptive.trainer import TrainingLoop as TrainingLoop
    from placewright.operators.pipeline import Pipeline as Pipeline
    from placewright.operators.plan import OperatorPlan as OperatorPlan
    from placewright.operators.problem import Links as Links
    from placewright.operators.problem import Objective as Objective
    from placewright.operators.problem import OperatorProblem as OperatorProblem
    from placewright.operators.readers.dag import read_dag as read_dag
    from placewright.operators.readers.msr import read_expert as read_expert
    from placewright.operators.readers.msr import read_msr as read_msr
    from placewright.operators.readers.pipedream import read_pipedream as read_pipedream
    from placewright.operators.readers.tasks import from_networkx as from_networkx
    from placewright.operators.readers.tasks import tasks as tasks
    from placewright.operators.run import best_single as best_single
    from placewright.operators.run import run as run
    from placewright.operators.run import running as running
    from placewright.planning.candidates import Candidate as Candidate
    from placewright.planning.candidates import Outcome as Outcome
    from placewright.planning.candidates import Status as Status
    from placewright.planning.contract import Context as Context
    from placewright.planning.contract import Direction as Direction
    from placewright.planning.contract import Planner as Planner
    from placewright.planning.contract import Proposal as Proposal
    from placewright.planning.monitor import Monitor as Monitor
    from placewright.planning.result import Result as Result
    from placewright.planning.solving import compare as compare
    from placewright.planning.solving import solve as solve
    from placewright.planning.wing import Wing as Wing
    from placewright.planning.wings import bounds as bounds
    from placewright.planning.wings import judge as judge
    from placewright.planning.wings import planners as planners
    from placewright.planning.wings import register_wing as register_wing
    from placewright.planning.wings import wings as wings
    from placewright.profiling.build import profile as profile
    from placewright.profiling.table import ProfileTable as ProfileTable
    from placewright.requests.plan import RequestPlan as RequestPlan
    from placewright.requests.problem import RequestProblem as RequestProblem
    from placewright.requests.serving.server import ServingOptions as ServingOptions
    from placewright.requests.serving.server import running_server as running_server
    from placewright.requests.serving.server import serve_requests as serve_requests
    from placewright.runtime.session import Session as Session
    from placewright.samples.placed_samples import PlacedSamples as PlacedSamples
    from placewright.samples.placed_samples import place_samples as place_samples
    from placewright.samples.plan import SamplePlan as SamplePlan
    from placewright.samples.problem import SampleProblem as SampleProblem
    from placewright.solvers.iopddl import read_iopddl as read_iopddl
    from placewright.solvers.memory_pbqp import MemoryPbqp as MemoryPbqp
    from placewright.solvers.memory_search import solve_pbqp_memory as solve_pbqp_memory
    from placewright.solvers.pbqp import Pbqp as Pbqp
    from placewright.solvers.pbqp import solve_pbqp as solve_pbqp
    from placewright.testbed.testbed import Testbed as Testbed

_NAMES = {
    "adapt.timeline": ["Timeline"],
    "capturing.model": ["capture", "capture_source"],
    "capturing.recipe": ["TrainingRecipe"],
    "capturing.source": ["ModelSource", "load_model", "mean_square"],
    "capturing.state": ["initial_state"],
    "capturing.zoo": ["zoo_models"],
    "cluster.cluster": ["Cluster", "Device", "Link", "Node"],
    "cluster.files": ["load_cluster"],
    "deployment.placed_model": ["PlacedModel"],
    "deployment.placing": ["place"],
    "deployment.trainer": ["Trainer"],
    "errors": [
        "CheckError",
        "InfeasibleError",
        "InputError",
        "MissingDependencyError",
        "PlacewrightError",
        "RunError",
        "UnknownNameError",
        "UnsupportedError",
        "WorkerError",
    ],
    "files": ["read", "write"],
    "graph.files": ["read_graph"],
    "graph.graph": ["Graph"],
    "layers.execution.analytic_problem": ["layer_problem"],
    "layers.placed_training": ["PlacedTraining", "place_training"],
    "layers.plan": ["LayerPlan"],
    "layers.problem": ["LayerProblem"],
    "layers.readers.piper": ["read_piper"],
    "measurement.check": ["Check"],
    "measurement.measurement": ["Measurement"],
    "operators.adaptive.policy": ["Policy"],
    "operators.adaptive.trainer": ["TrainingLoop"],
    "operators.pipeline": ["Pipeline"],
    "operators.plan": ["OperatorPlan"],
    "operators.problem": ["Links", "Objective", "OperatorProblem"],
    "operators.readers.dag": ["read_dag"],
    "operators.readers.msr": ["read_expert", "read_msr"],
    "operators.readers.pipedream": ["read_pipedream"],
    "operators.readers.tasks": ["from_networkx", "tasks"],
    "operators.run": ["best_single", "run", "running"],
    "planning.candidates": ["Candidate", "Outcome", "Status"],
    "planning.contract": ["Context", "Direction", "Planner", "Proposal"],
    "planning.monitor": ["Monitor"],
    "planning.result": ["Result"],
    "planning.solving": ["compare", "solve"],
    "planning.wing": ["Wing"],
    "planning.wings": ["bounds", "judge", "planners", "register_wing", "wings"],
    "profiling.build": ["profile"],
    "profiling.table": ["ProfileTable"],
    "requests.plan": ["RequestPlan"],
    "requests.problem": ["RequestProblem"],
    "requests.serving.server": ["ServingOptions", "running_server", "serve_requests"],
    "runtime.session": ["Session"],
    "samples.placed_samples": ["PlacedSamples", "place_samples"],
    "samples.plan": ["SamplePlan"],
    "samples.problem": ["SampleProblem"],
    "solvers.iopddl": ["read_iopddl"],
    "solvers.memory_pbqp": ["MemoryPbqp"],
    "solvers.memory_search": ["solve_pbqp_memory"],
    "solvers.pbqp": ["Pbqp", "solve_pbqp"],
    "testbed.testbed": ["Testbed"],
}
"""Public names by module."""

_HOME = {name: f"placewright.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # type checkers export what is imported "as" itself
    __all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    from placewright.numerics.collector import collector_paused

    with collector_paused():
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME])
