"""Workflows of WfCommons: old and new schemas are one problem; refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError
from placewright.operators.readers.task_graphs import read_wfcommons

CLUSTER = Cluster.preset("edge-duo")
NEW: dict[str, Any] = {
    "name": "two",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "a1", "name": "a", "parents": [], "children": ["b1"],
                 "inputFiles": ["in"], "outputFiles": ["mid"]},
                {"id": "b1", "name": "b", "parents": ["a1"], "children": [],
                 "inputFiles": ["mid"], "outputFiles": ["out"]},
                {"id": "c1", "name": "b", "parents": ["a1"], "children": []},
            ],
            "files": [{"id": "mid", "sizeInBytes": 5}, {"id": "out", "sizeInBytes": 7}],
        },
        "execution": {
            "tasks": [{"id": f"{'abc'[k]}1", "runtimeInSeconds": k + 2} for k in range(3)]
        },
    },
}  # fmt: skip
OLD: dict[str, Any] = {
    "name": "two",
    "schemaVersion": "1.4",
    "workflow": {
        "tasks": [
            {"id": "a1", "name": "a", "parents": [], "runtimeInSeconds": 2, "files": [
                {"link": "input", "name": "in", "sizeInBytes": 1},
                {"link": "output", "name": "mid", "sizeInBytes": 5}]},
            {"id": "b1", "name": "b", "parents": ["a1"], "runtime": 3, "files": [
                {"link": "input", "name": "mid", "size": 5},
                {"link": "output", "name": "out", "size": 7}]},
            {"id": "c1", "name": "b", "parents": ["a1"], "runtime": 4, "files": []},
        ],
    },
}  # fmt: skip


def written(folder: Path, data: Any) -> Path:
    """A file with these data."""
    path = folder / "flow.json"
    path.write_text(json.dumps(data))
    return path


def test_files_are_tensors_and_other_children_wait(tmp_path: Path) -> None:
    """Seconds over speeds; a file to all its readers; zero bytes where nothing is read."""
    problem = read_wfcommons(written(tmp_path, NEW), CLUSTER)
    assert problem.operator_names == ("a1", "b1", "c1")
    assert problem.tensor_names == ("a1:mid", "b1:out", "a1->c1")
    assert problem.tensor_bytes.tolist() == [5, 7, 0]
    assert problem.compute_s[2].tolist() == [4 / device.speed for device in CLUSTER.devices]
    assert problem.operator_kinds == ("a", "b", "b")


def test_schemas_before_1_5_are_the_same_problem(tmp_path: Path) -> None:
    """Times and files stand with the tasks there."""
    new = read_wfcommons(written(tmp_path, NEW), CLUSTER)
    assert read_wfcommons(written(tmp_path, OLD), CLUSTER).hash() == new.hash()


def test_children_wait_whoever_names_them(tmp_path: Path) -> None:
    """A schema lets a parent name its children, or the reverse."""
    text = json.dumps(OLD).replace('"parents": ["a1"], ', "")
    data = json.loads(text.replace('"parents": []', '"children": ["c1", "b1"]'))
    found, usual = (read_wfcommons(written(tmp_path, x), CLUSTER) for x in (data, OLD))
    assert found.hash() == usual.hash()


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    """Each has its own size and readers; links are written in any case."""
    data = json.loads(json.dumps(OLD))
    a, b, c = data["workflow"]["tasks"]
    a["files"] = [{"link": "output", "name": "f", "path": f"/{k}/", "size": k} for k in (3, 4)]
    b["files"] = [{"link": "Input", "name": "f", "path": "/3/", "size": 3}]
    c["files"] = [{"link": "input", "name": "f", "path": "/4/", "size": 4}]
    problem = read_wfcommons(written(tmp_path, data), CLUSTER)
    assert problem.tensor_names == ("a1:/3/f", "a1:/4/f")
    assert problem.tensor_bytes.tolist() == [3, 4]
    assert problem.consumers.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"parents": ["a1"], "runtime": 3', '"parents": ["a2"], "runtime": 3', "parent 'a2'"),
        (
            '"parents": ["a1"], "runtime": 3',
            '"parents": ["b"], "runtime": 3',
            "of several tasks.*b1, c1",
        ),
        ('"id": "c1"', '"id": "a1"', "'a1'.*is there twice"),
        ('"runtime": 4, ', "", "'c1'.*has no seconds"),
        ('"runtime": 4', '"runtime": -4', "runtime"),
        ('"tasks"', '"task"', "no operators|needs operators"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """The error names the file and the task."""
    text = json.dumps(OLD).replace(old, new)
    with pytest.raises(InputError, match=words) as error:
        read_wfcommons(written(tmp_path, json.loads(text)), CLUSTER)
    assert "flow.json" in error.value.where


def test_the_size_of_a_file_is_what_its_writer_says(tmp_path: Path) -> None:
    """Readers of old schemas may leave it out, or say another one."""
    for said in (None, 25):
        data = copy.deepcopy(OLD)
        data["workflow"]["tasks"][1]["files"][0]["size"] = said
        problem = read_wfcommons(written(tmp_path, data), CLUSTER)
        assert 5.0 in problem.tensor_bytes.tolist()
        assert 25.0 not in problem.tensor_bytes.tolist()


def test_sizes_and_times_that_are_missing_or_two_are_refused(tmp_path: Path) -> None:
    """A transfer would be free, or one of the two be taken."""
    data = copy.deepcopy(NEW)
    files = data["workflow"]["specification"]["files"]
    files.append({"id": "mid", "sizeInBytes": 5})  # the same again says nothing else
    read_wfcommons(written(tmp_path, data), CLUSTER)
    files[-1]["sizeInBytes"] = 99
    with pytest.raises(InputError, match=r"file 'mid': has two sizes \(5.0, 99.0\)"):
        read_wfcommons(written(tmp_path, data), CLUSTER)
    del files[:]
    with pytest.raises(InputError, match="file 'mid': has no size"):
        read_wfcommons(written(tmp_path, data), CLUSTER)
    data = copy.deepcopy(NEW)
    data["workflow"]["execution"]["tasks"].append({"id": "a1", "runtimeInSeconds": 7})
    with pytest.raises(InputError, match="task 'a1': has two times"):
        read_wfcommons(written(tmp_path, data), CLUSTER)
