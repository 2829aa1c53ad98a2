"""Every reader of files, and right files for each: what `fuzz_readers.py` starts from."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import onnx_model

Files = Mapping[str, bytes]
"""What lies in a folder, by name; the first is the one that is named to the reader."""

PLAIN, SLOW, TENSORFLOW = "plain", "slow", "tensorflow"
"""Groups of readers, one process each: the second runs whole commands, the third TensorFlow."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of files.

    Attributes
    ----------
    read
        Takes the file's path.
    seeds
        Right files.
    writes
        Whether it writes files that are called ``out...``.
    """

    name: str
    read: Callable[[str], object]
    seeds: Sequence[Files]
    writes: bool = False


def readers(group: str) -> list[Reader]:
    """The readers of a group, with right files made in code."""
    made = {PLAIN: _plain, SLOW: _commands, TENSORFLOW: _tensorflow}[group]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        return made(Path(folder))


def _plain(folder: Path) -> list[Reader]:
    found = [*_clusters_and_graphs(), *_problems(folder), *_published(), *_kept(folder)]
    return [*found, *_models(folder)]


def _json(data: Any, name: str = "file.json") -> Files:
    return {name: json.dumps(data).encode()}


def _yaml(data: Any, name: str = "file.yaml") -> Files:
    import yaml

    return {name: yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode()}


def _packed(files: Files) -> Files:
    import gzip

    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


CLUSTER = """\
schema_version: 1
name: two
devices:
  - {name: a, cores: 1, memory: 2GiB, speed: 1.0, node: a, efficiency: {matmul: 0.5}}
  - {name: b, kind: gpu, memory: 1GiB, speed: 0.5, node: b, peak_flops: 1TFLOPS, precision: fp16}
links:
  - {from: a, to: b, bandwidth: 1Gbps, latency: 200us, channel: wire}
"""

DAG = {
    "nodes": [{"name": "n0", "speed": 1.0}, {"name": "n1", "speed": 2.0}],
    "links": [{"source": "n0", "target": "n1", "speed": 3.0}],
    "tasks": [{"name": "t0", "cost": 4.0, "kind": "k"}, {"name": "t1", "cost": 2}],
    "dependencies": [{"source": "t0", "target": "t1", "size": 5.0}],
}
DOT = 'digraph { a [cpu=1.5, gpu="0.1", shape=box]; b [cpu=2, gpu=1]; a -> b [bytes="4e6"] }'
STG = "2\n0 0 0\n1 4 1 0 5\n2 3 1 1 2\n3 0 1 2 0 # end\n"
WORKFLOW = {
    "name": "w",
    "workflow": {
        "tasks": [
            {
                "id": "a",
                "runtime": 2,
                "parents": [],
                "files": [{"link": "output", "name": "f", "sizeInBytes": 5}],
            },
            {
                "id": "b",
                "runtimeInSeconds": 3.5,
                "parents": ["a"],
                "files": [{"link": "input", "name": "f", "size": 5}],
            },
        ]
    },
}
WORKFLOW_PARTS = {
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "a", "name": "a", "outputFiles": ["f"]},
                {"id": "b", "name": "b", "parents": ["a"], "inputFiles": ["f"]},
            ],
            "files": [{"id": "f", "sizeInBytes": 5}],
        },
        "execution": {"tasks": [{"id": x, "runtimeInSeconds": 1.5} for x in "ab"]},
    },
}
MSR = {
    "maxSizePerFPGA": 10.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": 7, "cpuLatency": 4.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 3.0},
        {"id": 2, "supportedOnFpga": 1, "cpuLatency": 6.0, "fpgaLatency": 2.0, "colorClass": 1},
    ],
    "edges": [{"sourceId": 7, "destId": 2, "cost": 0.5}],
}
EXPERT = {"cpus": [{"nodes": [7]}], "fpgas": [{"nodes": [2]}, {"nodes": []}]}
_NUMBERS = "forward_compute_time={}, backward_compute_time=2, activation_size={}, parameter_size=4"
PIPEDREAM = (
    f"node1 -- Input -- {_NUMBERS.format(9, 1)}\nnode2 -- Linear(a -- b) -- "
    f"{_NUMBERS.format(1, '[8; 2]')}\nnode3 -- ReLU -- {_NUMBERS.format(3, 6.0)}\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n"
)


def _piper_node(i: int) -> dict[str, Any]:
    variant = {
        "id": "vanilla",
        "timePerSample": 1.0,
        "parameterSize": 4.0,
        "memoryUsageA": 10.0,
        "memoryUsageB": 10.0,
        "syncTimeFw": {str(i - 1): 0.0} if i else {},
        "syncTimeBw": {} if i else {str(i + 1): 0.0},
    }
    return {"id": i, "name": f"n{i}", "TMPCs": {"1": [variant]}}


PIPER = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 1e9,
    "bandwidth": 1e9,
    "mbsInBatch": 4,
    "nodes": [_piper_node(0), _piper_node(1)],
    "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 0.0}],
}


SERVING: dict[str, Any] = {
    "format": "serving/1",
    "families": {"f": {"small": {"accuracy": 0.7}, "large": {"accuracy": 0.9}}},
    "variant_sets": {"all": ["small", "large"]},
    "latency_s": {"cpu": {"small": {"1": 0.01, "4": 0.02}, "large": {"1": 0.1}}},
    "scenarios": {
        "s": {
            "servers": {"cpu": 2},
            "variants": "all",
            "max_batch": 4,
            "duration_s": 2.0,
            "streams": [
                {"family": "f", "deadline_s": 0.1, "step_s": 1.0, "process": "counts",
                 "counts": [3, 4]},
                {"family": "f", "deadline_s": 0.1, "step_s": 1.0, "process": "poisson",
                 "rate_per_s": [5.0, 6.0]},
            ],
            "policies": {"rates_per_s": [10.0], "ms_variant": {"10": "small"}},
        }
    },
}  # fmt: skip
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"
)
SAMPLES = {
    "name": "three",
    "nodes": [
        {"name": "a", "classes": {"cat": 20, "dog": 3}, "seconds_per_sample": "1ms", "storage": 99},
        {"name": "b", "samples": 4, "classes": {"cat": 4}, "seconds_per_sample": 0.002,
         "keep": {"cat": 1}, "uplink": "1Gbps", "fixed_s": 0.1},
    ],
    "links": [{"from": "a", "to": "b", "bandwidth": "1MB/s", "latency": "1ms",
               "price_per_byte": 0.0}],
    "sample_bytes": "1KiB",
    "epochs": 2,
    "batch": 4,
    "gradient_bytes": "1KiB",
    "protected": ["dog"],
    "forbid": [{"from": "b", "to": "a"}],
}  # fmt: skip
REQUESTS = {
    "variants": [
        {"name": "small", "family": "f", "accuracy": 0.7, "memory": "1MiB"},
        {"name": "large", "family": "f", "accuracy": 0.9, "candidate": True},
    ],
    "servers": [
        {"name": "a", "latency": {"small": ["8ms", "12ms", None]}, "memory": "1GiB",
         "load": {"small": "1s"}, "bandwidth": "1Gbps", "round_trip": "1ms"},
        {"name": "b", "latency": {"small": [0.01], "large": [0.1]}, "candidate": True},
    ],
    "duration": 2,
    "arrivals": [
        {"family": "f", "rate": 20, "deadline": "0.1s", "process": "gamma"},
        {"family": "f", "rate": 1, "deadline": [0.1, 0.2], "process": "azure", "file": "t.csv",
         "min_accuracy": [0, 0.6]},
    ],
    "noise": 0.1,
    "rates_per_s": [10],
    "rate_variants": ["small"],
}  # fmt: skip


def _clusters_and_graphs() -> list[Reader]:
    from placewright.cluster.files import load_cluster, read_cluster
    from placewright.graph.files import graph_from_json, graph_json, read_graph

    graph = graph_json(_graph())
    assert graph_from_json(graph, where="seed").name
    cluster = {"file.yaml": CLUSTER.encode()}
    return [
        Reader("cluster", read_cluster, [cluster]),
        Reader("cluster (command line)", load_cluster, [cluster]),
        Reader("graph", read_graph, [_json(graph), _packed(_json(graph))]),
    ]


def _graph() -> Any:
    import torch

    from placewright.capturing.model import capture

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    return capture(net, torch.zeros(2, 4))


def _problems(folder: Path) -> list[Reader]:
    """Problems and plans of all wings, as read by the functions of each."""
    from placewright.planning.wings import families

    found = []
    for _, wing in families():
        name, files, conformance = wing.name, wing.files(), wing.conformance
        assert conformance is not None
        given = _problem_seeds(name, files, list(conformance().tiny_instances().values()), folder)
        found.append(Reader(f"{name}: problem", files.read_problem, given))
        problem = _written_problem(files, given[0], folder)
        plan = _plan_seed(name, problem)
        read = partial(_second, files.read_proposal, problem)
        found.append(Reader(f"{name}: plan", read, [_json(plan), _yaml(plan)]))
    return found


def _second(read: Callable[[str, Any], object], problem: Any, path: str) -> object:
    return read(path, problem)


def _plan_seed(name: str, problem: Any) -> dict[str, Any]:
    """A plan by hand: solving would compile kernels first."""
    plan: dict[str, Any] = {"policy": "rolling", "parameters": {"price": 2.0}, "seed": 1}
    if name == "operators":
        device = problem.device_names[0]
        plan = {"placement": dict.fromkeys(problem.operator_names, device)}
        plan["order"] = list(problem.operator_names)
    elif name == "layers":
        first, last = problem.layer_names[0], problem.layer_names[-1]
        replica = {"workers": [problem.worker_names[0]], "share": problem.global_batch}
        plan = {"stages": [{"first_layer": first, "last_layer": last, "replicas": [replica]}]}
        plan |= {"micro_batches": 1, "schedule": "1f1b"}
    elif name == "samples":
        moves = {"from": problem.node_names[0], "to": problem.node_names[1], "samples": 2}
        plan = {"moves": [moves | {"class": problem.class_names[0]}], "note": ""}
    elif name == "layers.flow":
        plan = {"placement": {problem.node_names[0]: [0, problem.layers]}, "tokens_per_s": {}}
    elif name == "layers.halda":
        device = problem.devices[0].name
        plan = {"rounds": 1, "layers": {device: problem.model.num_layers}}
        plan |= {"gpu_layers": {device: 0}, "physical_bound_s": 0.5}
    elif name == "layers.devicemap":
        layers = {"device": problem.cluster.device_names[0], "start": 0, "end": problem.n}
        plan = {"ranges": [layers], "hops": [], "token_s": 0.01}
    return {"schema_version": 1, "problem_hash": problem.hash(), "value": 1.5, "plan": plan}


def _problem_seeds(name: str, files: Any, problems: list[Any], folder: Path) -> list[Files]:
    own: dict[str, list[Files]] = {
        "samples": [_yaml(SAMPLES)],
        "requests": [{**_yaml(REQUESTS), "t.csv": AZURE.encode()}],
    }
    written = []
    for k, problem in enumerate([*problems[:2], problems[-1]]):
        path = files.write_problem(problem, folder / "file.json")
        data = json.loads(path.read_text())
        written.append(_json(data) if k else _yaml(data))
    return [*own.get(name, []), *written, _packed(written[1])]


def _written_problem(files: Any, seed: Files, folder: Path) -> Any:
    for name, data in seed.items():
        (folder / name).write_bytes(data)
    return files.read_problem(folder / next(iter(seed)))


def _published() -> list[Reader]:

    from placewright.cluster.files import load_cluster
    from placewright.layers.files import read_piper
    from placewright.operators.readers.dot import read_dot
    from placewright.operators.readers.neural_networks import read_expert, read_msr, read_pipedream
    from placewright.operators.readers.task_graphs import read_dag, read_stg, read_wfcommons
    from placewright.requests.files import read_catalogue
    from placewright.requests.readers import read_arrivals, serving_catalogue, serving_problem

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "msr.json"
        path.write_text(json.dumps(MSR))
        msr = read_msr(path)
    return [
        Reader("dag", read_dag, [_json(DAG), _yaml(DAG)]),
        Reader("dot", read_dot, [{"file.dot": DOT.encode()}]),
        Reader("stg", read_stg, [{"file.stg": STG.encode()}]),
        Reader(
            "wfcommons",
            partial(_second, read_wfcommons, load_cluster("edge-duo")),
            [_json(WORKFLOW), _json(WORKFLOW_PARTS)],
        ),
        Reader("msr", read_msr, [_json(MSR)]),
        Reader("msr expert", partial(_second, read_expert, msr), [_json(EXPERT)]),
        Reader(
            "pipedream",
            partial(_second, read_pipedream, load_cluster("edge-duo")),
            [{"file.txt": PIPEDREAM.encode()}],
        ),
        Reader("piper", read_piper, [_json(PIPER), _yaml(PIPER)]),
        Reader("serving", partial(_second, serving_problem, "s"), [_json(SERVING)]),
        Reader("serving catalogue", partial(_second, serving_catalogue, "s"), [_json(SERVING)]),
        Reader("requests catalogue", read_catalogue, [_yaml(REQUESTS)]),
        Reader("arrivals", read_arrivals, [{"file.csv": AZURE.encode()}]),
    ]


def _kept(folder: Path) -> list[Reader]:
    """What Placewright keeps: profiles, parameters, snapshots, testbeds, tensors."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from placewright.adapt.snapshot import NOTE, SnapshotFolder
    from placewright.graph.graph import TensorSpec
    from placewright.io.tensor_files import INDEX, stored_tensors
    from placewright.operators.planners.learned.planner import (
        Schema,
        load_parameters,
        save_parameters,
    )
    from placewright.profiling.profiler import ProfileTable
    from placewright.testbed.record import RECORD, record_in

    profile = {"schema_version": 1, "machine": "m", "entries": {"k": {"op": 0.5}}}
    save_file({"w": torch.ones(3), "v": torch.ones(2, 2)}, folder / "t.safetensors")
    tensors = (folder / "t.safetensors").read_bytes()
    schema = Schema("post", "costs 1", "64 groups")
    parameters = save_parameters(folder / "p.safetensors", {"a": np.zeros(2)}, schema, n=7)
    spec = {"w": TensorSpec((3,), "float32", (1,))}
    snapshots = SnapshotFolder(folder / "snapshots", "net", spec)
    passing = snapshots.begin(1)
    save_file({"w": torch.zeros(3)}, passing / "worker-0.safetensors")
    kept = snapshots.commit(passing, step=1, random_state=b"\1", placement={"op": "a"})
    record = {
        "schema_version": 1,
        "owner": None,
        "id": "placewright-two-abcdef",
        "cluster": CLUSTER,
        "namespaces": ["a", "b"],
        "groups": ["placewright/a"],
        "cpus": [0, 1],
        "links_cpu": 0,
        "boot": "x",
        "made_ns": 1,
        "owners": [{"pid": 1, "start": 2}],
        "whole": True,
    }

    def snapshot(path: str) -> object:
        """A snapshot's note and tensors, as its folder has them; damaged ones are passed over."""
        step = Path(path).parent
        run = SnapshotFolder(step.parent, "net", spec)
        return run._read(step)

    def tensors_of(path: str) -> object:
        return [t.read() for t in stored_tensors(path).values() if t.size < 1 << 20]

    index = {"weight_map": {"w": "t.safetensors", "v": "t.safetensors"}}
    return [
        Reader("profile table", ProfileTable.read, [_json(profile)]),
        Reader("tensors", tensors_of, [{"file.safetensors": tensors}]),
        Reader("tensor index", tensors_of, [{**_json(index, INDEX), "t.safetensors": tensors}]),
        Reader(
            "checkpoint",
            partial(_second, load_parameters, schema),
            [{"file.safetensors": parameters.read_bytes()}],
        ),
        Reader(
            "snapshot",
            snapshot,
            [{NOTE: (kept / NOTE).read_bytes()} | {
                p.name: p.read_bytes() for p in kept.glob("*.safetensors")
            }],
        ),
        Reader(
            "testbed record",
            lambda path: record_in(Path(path).parent),
            [_json(record, RECORD)],
        ),
    ]  # fmt: skip


def _onnx(*, beside: bool = False, functions: bool = False) -> Files:
    """A small model, with its weights in a file beside it, or with a function of its own."""
    import numpy as np
    import onnx

    ends = "(float[2, 4] x) => (float[2, 4] y)"
    last = "own.Twice" if functions else "Relu"
    first = "c = Constant <value = float[4] {1, 1, 1, 1}> (); m = MatMul (x, w)"
    nodes = f"{first}; s = Add (m, c); y = {last} (s)"
    model = onnx.ModelProto.FromString(onnx_model(ends, nodes, w=np.ones((4, 4), np.float32)))
    weight, constant = model.graph.initializer[0], model.graph.node[0].attribute[0].t
    if functions:
        model.functions.append(onnx.parser.parse_function(TWICE))
    if not beside:
        return {"file.onnx": model.SerializeToString()}
    raw = weight.raw_data
    constant.CopyFrom(onnx.numpy_helper.from_array(np.ones((4,), np.float32), "held"))
    for tensor in (weight, constant):
        onnx.external_data_helper.set_external_data(tensor, "w.bin", 0, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    return {"file.onnx": model.SerializeToString(), "w.bin": raw}


TWICE = '<domain: "own", opset_import: ["" : 20]> Twice (a) => (b) { b = Add (a, a) }'
OPEN = ("(float[rows, 4] x) => (float[rows, 4] y)", "y = Relu (x)")


def _models(folder: Path) -> list[Reader]:
    from placewright.capturing.files.onnx_graph import capture_onnx
    from placewright.requests.serving.accuracy import read_rows
    from placewright.requests.serving.families import Variant, make_family, read_family

    served = make_family("f", [Variant("v", 0.9, onnx_model(*OPEN))])
    rows = io.BytesIO()
    np.savez_compressed(rows, x=np.ones((3, 4), np.float32), labels=np.arange(3))
    variants = {"small": {"file": "m.onnx", "accuracy": 0.9}}
    family = {"name": "f", "random": True, "variants": variants}
    found = [
        Reader(
            "onnx",
            lambda path: capture_onnx(Path(path)),
            [_onnx(), _onnx(beside=True), _onnx(functions=True)],
        ),
        Reader("rows", lambda path: read_rows(path, served), [{"file.npz": rows.getvalue()}]),
        Reader("family", read_family, [{**_yaml(family), "m.onnx": onnx_model(*OPEN)}]),
    ]
    with contextlib.suppress(ImportError):
        import openvino as ov

        from placewright.capturing.files.openvino_graph import capture_openvino

        (folder / "m.onnx").write_bytes(_onnx()["file.onnx"])
        ov.save_model(ov.Core().read_model(folder / "m.onnx"), folder / "m.xml")
        files = {f"file{s}": (folder / f"m{s}").read_bytes() for s in (".xml", ".bin")}
        found.append(Reader("openvino", capture_openvino, [files]))
    return found


def _commands(folder: Path) -> list[Reader]:
    """Commands with a file as an argument; what they write is called ``out...``."""
    seeds = {reader.name: reader.seeds for reader in _plain(folder)}
    pages = [
        f for name, some in seeds.items() if name.endswith((" plan", " problem")) for f in some
    ]
    operators = {**seeds["operators: problem"][0], "plan.json": b""}
    operators["plan.json"] = next(iter(seeds["operators: plan"][0].values()))
    command = _command
    return [
        command("show FILE --no-open -o OUT.html", [*pages, *seeds["cluster"], *seeds["graph"]]),
        command("devices --on FILE", seeds["cluster"]),
        command("profile FILE --on edge-duo --method analytic -o OUT.json", seeds["graph"]),
        command("operators plan FILE --planner heft -o OUT.json", seeds["operators: problem"]),
        command("operators plan dag:FILE --planner heft --report OUT.html", seeds["dag"]),
        command("operators plan pipedream:FILE --on edge-duo --planner heft", seeds["pipedream"]),
        command("operators simulate FILE plan.json -o OUT.yaml", [operators]),
        command("layers plan FILE --planner single --trace OUT.json", seeds["layers: problem"]),
        command("layers plan piper:FILE --planner dp --time-limit 1", seeds["piper"]),
        command("samples plan FILE --planner greedy --report OUT.html", seeds["samples: problem"]),
        command("requests plan FILE --planner edf-fastest", seeds["requests: problem"]),
        command("capture FILE -o OUT.json", [_onnx(), _onnx(beside=True)]),
    ]


def _command(line: str, seeds: Sequence[Files]) -> Reader:
    return Reader(line, partial(_run, line), seeds, writes=True)


def _run(line: str, path: str) -> None:
    """Run a command in this process; an error that nobody has foreseen is raised."""
    from placewright.cli.main import UNEXPECTED, main
    from placewright.errors import PlacewrightError

    folder = Path(path).parent
    words = [
        w.replace("FILE", path)
        .replace("OUT", str(folder / "out"))
        .replace("plan.json", str(folder / "plan.json"))
        for w in line.split()
    ]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*words, "-q"])
        except SystemExit as left:
            code = left.code
    if UNEXPECTED in err.getvalue() or "Traceback" in err.getvalue():
        raise AssertionError(err.getvalue())
    if code:
        raise PlacewrightError(err.getvalue().strip() or "no message", where=path or line)


def _tensorflow(folder: Path) -> list[Reader]:
    import numpy as np
    import tensorflow as tf

    from placewright.capturing.tensorflow.worker import WorkerOrders, answer

    orders = WorkerOrders()

    def load(path: str) -> None:
        """The answer of the process that has TensorFlow, which names what it did not foresee."""
        found = answer(orders, json.dumps({"order": "load", "source": {"path": path}}))
        if "error" in found:
            from placewright.errors import PlacewrightError

            if "TensorFlow raised" in found["what"]:
                raise AssertionError(found["by"])
            raise PlacewrightError(found["what"], where=found["where"], hint=found["hint"])

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 4), name="x")
        tf.nn.relu(tf.matmul(x, tf.constant(np.ones((4, 3), np.float32))) + 1.0, name="y")
    seeds: list[Files] = [{"file.pb": graph.as_graph_def().SerializeToString()}]
    inputs = tf.keras.Input(batch_shape=(2, 4))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(inputs))
    model.save(folder / "m.keras")
    seeds.append({"file.keras": (folder / "m.keras").read_bytes()})
    return [Reader("tensorflow", load, seeds)]
