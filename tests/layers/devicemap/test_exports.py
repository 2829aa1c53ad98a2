"""What runtimes that are not ours take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, UnsupportedError
from placewright.layers.devicemap.device_map import device_map
from tests.layers.devicemap.models import LLAMA_8B, config
from tests.layers.devicemap.test_device_map import gpus


def on_one_node(*memory: float) -> Cluster:
    """A CPU with unlimited memory, and GPUs."""
    cpu = Device("cpu", memory_bandwidth=50e9)
    made = [
        Device(f"gpu{k}", kind="gpu", memory_bytes=size, memory_bandwidth=1e12)
        for k, size in enumerate(memory)
    ]
    return Cluster((cpu, *made))


def test_accelerate_takes_every_module_once() -> None:
    """Numbers of GPUs, then ``cpu``; memory as the plan needs it."""
    found = device_map(LLAMA_8B, on_one_node(8e9, 8e9))
    data = found.export("accelerate")
    assert set(data["device_map"].values()) == {0, 1, "cpu"} == set(data["max_memory"])
    assert len([name for name in data["device_map"] if ".layers." in name]) == 32
    assert {"model.embed_tokens", "model.norm", "lm_head"} <= set(data["device_map"])
    held = {id(x): x.weight_bytes for x in found.judgement.costs}
    assert sum(data["max_memory"].values()) == pytest.approx(sum(held.values()), abs=3)
    assert any("copies" in note for note in data["notes"])


def test_accelerate_runs_on_one_machine() -> None:
    """A plan over several is refused."""
    devices = tuple(Device(f"g{k}", kind="gpu", node=f"n{k}", memory_bytes=12e9) for k in range(2))
    far = Cluster(devices, (Link("g0", "g1", 1e9), Link("g1", "g0", 1e9)))
    with pytest.raises(UnsupportedError, match="runs a model on one machine"):
        device_map(LLAMA_8B, far).export("accelerate")


def test_llama_cpp_counts_blocks_in_order() -> None:
    """The head counts as a layer of the last GPU; the rest is the CPU's."""
    found = device_map(LLAMA_8B, on_one_node(8e9, 8e9))
    flags = found.export("llamacpp")["flags"]
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    split = [int(n) for n in given["--tensor-split"].split(",")]
    assert int(given["-ngl"]) == sum(split) < 33
    assert given["--device"].count("CUDA") == len(split) == 2
    whole = device_map(LLAMA_8B, gpus(2), users=16).export("llamacpp")
    assert "-ngl 33" in whole["command"]


def test_llama_cpp_reaches_other_machines_by_rpc() -> None:
    """A server for each of their devices."""
    devices = tuple(
        Device(f"g{k}", kind="gpu", node=f"n{k // 2}", memory_bytes=6e9) for k in range(4)
    )
    pairs = [(a.name, b.name) for a in devices for b in devices if a.node != b.node]
    cluster = Cluster(devices, tuple(Link(a, b, 1e9) for a, b in pairs))
    data = device_map(LLAMA_8B, cluster).export("llamacpp")
    assert "--rpc" in data["flags"]
    assert "50052" in data["command"]
    assert "50053" in data["command"]
    assert data["command"].count("RPC[") == 2


def test_vllm_cuts_the_pipeline_by_blocks() -> None:
    """Blocks of every stage, in the order of the ranks."""
    found = device_map(LLAMA_8B, gpus(4), users=32)
    data = found.export("vllm")
    partition = data["environment"]["VLLM_PP_LAYER_PARTITION"]
    assert sum(map(int, partition.split(","))) == 32
    assert data["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert "--pipeline-parallel-size 4" in data["command"]
    with pytest.raises(UnsupportedError, match="devices of one kind"):
        device_map(LLAMA_8B, on_one_node(8e9)).export("vllm")


def test_torch_splits_before_the_first_module_of_each_stage() -> None:
    """One point less than stages."""
    data = device_map(LLAMA_8B, gpus(4), users=32).export("torch")
    assert len(data["split_points"]) == 3 == len(data["stages"]) - 1
    assert all(name.startswith("model.layers.") for name in data["split_points"])


def test_an_unknown_target_is_refused() -> None:
    """With those that are known."""
    with pytest.raises(InputError, match="target"):
        device_map(LLAMA_8B, gpus(1)).export("ollama")  # type: ignore[arg-type]


NAMES = ("llama", "qwen2", "mixtral", "gemma2", "gpt2", "t5")


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_loads_the_map_and_generates(name: str, tmp_path: Path) -> None:
    """A checkpoint loaded by the map, half of it on disk, gives the tokens of the whole model.

    Bytes per device are those that accelerate itself counts.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("accelerate.utils.modeling")
    data = config(name)
    kind = transformers.AutoConfig.for_model(data["model_type"], **_without(data, "model_type"))
    auto = transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else auto
    torch.manual_seed(0)
    model = auto.from_config(kind, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    whole = sum(p.numel() * 4 for p in model.parameters())
    device = Device("cpu", memory_bytes=whole * 0.9, disk_bandwidth=1e9)
    found = device_map(tmp_path, Cluster((device,)), context=16, dtype="f32", memory_share=1.0)
    exported = found.export("accelerate")
    assert set(exported["device_map"].values()) == {"cpu", "disk"}
    sizes = modeling.compute_module_sizes(model)
    disk = sum(sizes.get(k, 0) for k, d in exported["device_map"].items() if d == "disk")
    assert disk == pytest.approx(found.judgement.costs[0].disk_bytes, rel=0.03)
    loaded = auto.from_pretrained(
        tmp_path,
        device_map=exported["device_map"],
        offload_folder=tmp_path / "offload",
        dtype=torch.float32,
    ).eval()
    x = torch.tensor([[5, 9, 3]])
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "use_cache": True}
    assert torch.equal(model.generate(x, **options), loaded.generate(x, **options))


def _without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != key}


def test_a_device_without_a_block_is_left_out_with_a_note() -> None:
    """Runtimes that cut by blocks put an embedding where their first block is."""
    devices = (
        Device("small", kind="gpu", memory_bytes=1.3e9, memory_bandwidth=1e11),
        Device("large", kind="gpu", memory_bytes=15.9e9, memory_bandwidth=1e12),
    )
    found = device_map(LLAMA_8B, Cluster(devices), context=512, memory_share=1.0)
    assert found.ranges["small"] == (0, 1)
    data = found.export("vllm")
    assert data["environment"]["VLLM_PP_LAYER_PARTITION"] == "32"
    assert data["notes"] == ["small is left out: it holds no block, but embed"]
