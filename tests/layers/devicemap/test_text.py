"""``placewright generate``: plan, load, generate, compare."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import load_cluster
from placewright.errors import InfeasibleError, InputError, UnsupportedError
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.devicemap.files import read_problem, write_problem
from placewright.layers.devicemap.text import generate_text
from placewright.layers.generation import layer_timer
from placewright.runtime.engines.local import LocalGroup
from tests.cli.run_cli import run_cli
from tests.layers.generation.test_generator import boards, model_of

CLUSTER = """
devices:
  - {name: a, kind: cpu, memory: 140KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
  - {name: b, kind: cpu, memory: 140KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
links:
  - {from: a, to: b, bandwidth: 10Gbps, latency: 20us}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    model_of("llama").save_pretrained(path)
    return path


def test_a_model_that_fits_on_neither_board(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both hold a part; the tokens are those of one process."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    words = ("generate", folder, "12 7 90", "--on", cluster)
    output = run_cli(capsys, *words, "--new-tokens", 12, "--check", "-f", "json")
    assert output.code == 0
    found = output.data
    assert len(found["tokens"]) == 12
    assert found["equal"] is True
    assert sorted(found["ranges"]) == ["a", "b"]
    assert found["measured_token_s"] > 0 < found["predicted_token_s"]


def test_plans_that_workers_cannot_execute(folder: Path, tmp_path: Path) -> None:
    """Weights in four bits, layers that are read from disk in every step."""
    packed = device_map(folder, boards_with_memory("1GiB", tmp_path), context=64, dtype="int4")
    with pytest.raises(UnsupportedError, match="int4"):
        packed.generator(folder)
    spilling = device_map(
        folder, boards_with_memory("70KiB, disk_bandwidth: 1GB/s", tmp_path), context=8
    )
    assert any(each.from_disk for each in spilling.judgement.plan.ranges)
    with pytest.raises(UnsupportedError, match="from disk"):
        spilling.generator(folder)


def test_costs_that_workers_measure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the plan is made; it is for what they execute. One that is left has no room."""
    monkeypatch.setattr(layer_timer, "BUSY_S", 0.01)
    cluster = boards_with_memory("140KiB", tmp_path)
    planned = device_map(folder, cluster, context=32, prompt=8, users=3, measure="local")
    times = planned.problem.times
    assert times is not None
    for each in (times.block_s, times.prompt_block_s, times.answer_s):
        assert len(each) == 2
        assert min(each) > 0
    assert [each.users for each in times.busy] == [1, 2, 3]
    assert min(min(each.block_s + each.answer_s) for each in times.busy) > 0
    assert min(times.latency_s[0][1], times.latency_s[1][0]) > 0
    assert planned.judgement.token_s > min(times.answer_s)
    file = write_problem(planned.problem, tmp_path / "measured.json")
    assert read_problem(file) == planned.problem
    assert len(planned.block_ranges) == 2
    with planned.generator(folder, adapt=True) as placed:
        assert isinstance(placed.group, LocalGroup)
        placed.group.processes[0].kill()
        with pytest.raises(InfeasibleError, match="context"):
            placed.generate(torch.tensor([[5, 7]]), max_new_tokens=4, do_sample=False)


def boards_with_memory(memory: str, folder: Path) -> Cluster:
    """Both of `CLUSTER`, with other memory."""
    file = folder / "other.yaml"
    file.write_text(CLUSTER.replace("140KiB", memory))
    return load_cluster(str(file))


def test_what_cannot_be_generated(folder: Path, tmp_path: Path) -> None:
    """A text without a tokenizer, a folder without a model, a context that does not fit."""
    with pytest.raises(InputError, match="no tokenizer"):
        generate_text(folder, "Once upon a time", boards("a"))
    with pytest.raises(InputError, match="no configuration"):
        generate_text(tmp_path, "1 2", boards("a"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("140KiB", "60KiB"))
    with pytest.raises(InfeasibleError, match="context"):
        generate_text(folder, "1 2", load_cluster(str(tmp_path / "cluster.yaml")))
