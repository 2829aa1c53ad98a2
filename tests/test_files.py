"""read() and write(): every kind of file by its keys, every published format by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewright import files
from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, PlacewrightError
from placewright.files import document_kind, formats, kind_if_small, read, read_document, write
from placewright.graph.graph import Graph, Operator, Tensor
from placewright.layers.files import problem_json, read_piper
from placewright.operators.readers.neural_networks import read_msr
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.solving import solve
from placewright.planning.wings import wings
from tests.cli.run_cli import run_cli
from tests.published import published

QUICK = {"operators": "heft", "layers": "dp", "samples": "nothing", "requests": "jf"}


@pytest.mark.parametrize("wing", QUICK)
@pytest.mark.parametrize("ending", ["json", "yaml", "json.gz"])
def test_problems_and_plans_of_every_wing_come_back(wing: str, ending: str, tmp_path: Path) -> None:
    """What is written is read by its keys, whatever the file is called."""
    conformance = wings()[wing].conformance
    assert conformance is not None
    kit = conformance()
    problem = next(iter(kit.tiny_instances().values()))
    path = write(problem, tmp_path / f"file.{ending}")
    assert read(path).hash() == problem.hash()
    known = wings()[wing].planning().planners(problem)
    result = solve(problem, QUICK[wing] if QUICK[wing] in known else next(iter(known)))
    path = write(result, tmp_path / f"other.{ending}")
    assert kit.same_plan(read(path, problem=problem), result.plan)
    with pytest.raises(PlacewrightError, match="is a plan, and needs the problem it is for"):
        read(path)


def test_problems_of_every_wing_are_read_from_a_dict() -> None:
    """What would stand in their files: nodes, servers, layers by name."""
    cluster = {"devices": [{"name": "a", "memory": "2GiB"}, {"name": "b", "speed": 0.5}]}
    assert read(cluster).device_names == ("a", "b")
    link = {"from": "a", "to": "b", "bandwidth": "1MB/s"}
    nodes = [{"name": x, "samples": 8, "seconds_per_sample": 0.1} for x in "ab"]
    samples = {"nodes": nodes, "sample_bytes": 4, "links": [link]}
    assert read(samples).node_names == ("a", "b")
    requests = {
        "duration": 10,
        "variants": [{"name": "v", "family": "f", "accuracy": 0.9}],
        "servers": [{"name": "s", "latency": {"v": [0.1]}}],
        "arrivals": [{"family": "f", "rate": 2, "deadline": 1}],
    }
    assert read(requests).service.server_names == ("s",)
    layers = wings()["layers"].conformance
    assert layers is not None
    wanted = next(iter(layers().tiny_instances().values()))
    assert read(problem_json(wanted)).hash() == wanted.hash()
    with pytest.raises(PlacewrightError, match=r"nodes\[0\].samples"):
        read({**samples, "nodes": [nodes[0] | {"samples": -8}]})


def test_clusters_and_graphs_come_back(tmp_path: Path) -> None:
    """They belong to no wing."""
    cluster = Cluster.preset("edge-duo")
    assert read(write(cluster, tmp_path / "c.yaml")) == cluster
    operators = (Operator("a", "k"), Operator("b", "k"))
    graph = Graph("g", operators, (Tensor("t", "a", 8, ("b",)),))
    assert read(write(graph, tmp_path / "g.json")).operator_names == ("a", "b")


def test_every_wing_names_its_published_formats() -> None:
    """By the name before the colon."""
    named = {"dag", "stg", "wfcommons", "msr", "pipedream", "piper", "serving"}
    assert named <= set(formats())


def test_published_formats_are_read_by_their_names() -> None:
    """With options of their readers, as arguments or behind the file's name."""
    dag = published("dag/layered_n100_ccr1.0_s0.json")
    assert read(f"dag:{dag}").hash() == read_dag(dag).hash()
    assert read(f"dag:{dag}", links="contended").hash() == read_dag(dag, "contended").hash()
    msr = published("msr/latency/op_bert3_inference.json")
    scaled = read_msr(msr, cost_scale=1000.0)
    assert read(f"msr:{msr}?cost_scale=1000").hash() == scaled.hash()
    pipedream = published("pipedream/alexnet.graph.txt")
    assert read(f"pipedream:{pipedream}", cluster="edge-duo").n == 44
    piper = next(published("piper").rglob("*.json"))
    wanted = read_piper(piper, devices=4, memory_bytes=16 * 2.0**30)
    assert read(f"piper:{piper}?devices=4&memory=16GiB").hash() == wanted.hash()


@pytest.mark.parametrize("verb", ["operators plan dag", "layers plan piper", "layers plan flow"])
def test_a_folder_is_refused_where_one_problem_is_wanted(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name without a file, too: that is not the current folder."""
    (tmp_path / "a.json").write_text("{}")
    *words, form = verb.split()
    assert f"{tmp_path}: is a folder" in run_cli(capsys, *words, f"{form}:{tmp_path}").err
    assert "names no file" in run_cli(capsys, *words, f"{form}:?").err


DAG = {
    "nodes": [{"name": "a", "speed": 1.0}, {"name": "b", "speed": 2.0}],
    "links": [{"source": "a", "target": "b", "speed": 4.0}],
    "tasks": [{"name": "x", "cost": 6.0}, {"name": "y", "cost": 3}],
    "dependencies": [{"source": "x", "target": "y", "size": 8.0}],
}


def test_a_task_graph_may_be_a_dict_json_or_yaml(tmp_path: Path) -> None:
    """The same problem."""
    import yaml

    (tmp_path / "dag.json").write_text(json.dumps(DAG))
    (tmp_path / "dag.yaml").write_text(yaml.safe_dump(DAG))
    made = [read_dag(DAG), read(f"dag:{tmp_path}/dag.json"), read(f"dag:{tmp_path}/dag.yaml")]
    assert len({problem.hash() for problem in made}) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: read("dagg:x.json"), "unknown format 'dagg'.*did you mean 'dag'"),
        (lambda: read("dag:none.json"), "none.json: cannot be read"),
        (lambda: read("none.json"), "none.json: cannot be read"),
        (lambda: read("pipedream:x.txt"), "needs a cluster.*cluster=..."),
        (lambda: read("dag:x.json", link="free"), "unknown option 'link'.*'links'"),
        (lambda: read("piper:x.json?memori=3"), "unknown option 'memori'.*'memory'"),
        (lambda: read("piper:x.json?memory=3GiX"), "3GiX"),
        (lambda: read("serving:x.json"), "needs a scenario"),
        (lambda: write(5, "x.json"), "there is no file of this kind.*got 5.*a Cluster"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(call: Callable[[], Any], words: str) -> None:
    """With the option, the format or the file."""
    with pytest.raises(PlacewrightError, match=f"(?s){words}"):
        call()


def test_a_plan_is_not_read_for_the_problem_of_another_wing(tmp_path: Path) -> None:
    """By what the problem is."""
    tiny = [wings()[name].conformance for name in ("operators", "samples")]
    problem, other = (next(iter(kit().tiny_instances().values())) for kit in tiny if kit)
    saved = solve(problem, time_limit_s=1.0).save(tmp_path / "plan.json")
    with pytest.raises(InputError, match="for another kind of problem"):
        read(saved, problem=other)


def test_other_keys_are_no_document(tmp_path: Path) -> None:
    """They are listed."""
    path = tmp_path / "x.json"
    path.write_text('{"nothing": 1}')
    with pytest.raises(PlacewrightError, match=r"is none of Placewright's documents.*nothing"):
        read(path)


def kept(folder: Path, text: str) -> Path:
    """A file with that text."""
    path = folder / "some.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("data", [[1, 2], {"things": 1}, {"things": {"plan_": "plans"}}])
def test_what_is_not_ours_is_refused_with_and_without_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: object
) -> None:
    """A large file need not even be JSON to be refused."""
    for text, large in ((json.dumps(data), files.LARGE), (json.dumps(data)[:-1], 0)):
        monkeypatch.setattr(files, "LARGE", large)
        with pytest.raises(InputError, match="none of Placewright's documents"):
            document_kind(kept(tmp_path, text))


@pytest.mark.parametrize("text", ['{"x": 1, "compute_s": []}', r'{"compute\u005fs": []}'])
def test_what_is_ours_is_parsed_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Wherever its telling key stands, and however it is written."""
    monkeypatch.setattr(files, "LARGE", 0)
    path = kept(tmp_path, text)
    assert read_document(path) == json.loads(text)
    assert document_kind(path) == "problem"


@pytest.mark.parametrize(
    ("name", "piece", "times"),
    [("x.json", "[],", files.MOST_PARTS + 1), ("x.yaml", "- 1\n", files.READ_YAML_BYTES // 4 + 1)],
)
def test_files_that_take_long_or_much_memory_have_no_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, piece: str, times: int
) -> None:
    """Three megabytes of empty lists become a hundred; YAML takes seconds for each megabyte."""
    read: list[str] = []
    for parse in ("parse_json", "parse_yaml"):
        monkeypatch.setattr(files, parse, lambda text, where: read.append(where))
    file = tmp_path / name
    file.write_text(piece * times)
    assert kind_if_small(file, name) == ""
    assert not read
    file.write_text(piece)
    assert kind_if_small(file, name) == ""
    assert read == [name]
