"""`device_map`: sources, answers, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InfeasibleError, InputError, UnknownNameError, UnsupportedError
from placewright.layers.devicemap.device_map import ERROR, DeviceMap, device_map
from placewright.layers.devicemap.reading import language_model
from tests.layers.devicemap.models import LLAMA_8B, LLAMA_70B, config, tiny


def gpus(count: int, memory: float = 80 * 2.0**30, **changes: Any) -> Cluster:
    """GPUs of one node, over one switch."""
    one = {"kind": "gpu", "peak_flops": 312e12, "memory_bandwidth": 2e12} | changes
    names = [f"gpu{k}" for k in range(count)]
    devices = tuple(Device(name, memory_bytes=memory, **one) for name in names)
    links = tuple(Link(a, b, 25e9, 10e-6, "switch") for a in names for b in names if a != b)
    return Cluster(devices, links, "gpus")


def mixed() -> Cluster:
    """Two GPUs with their CPU, and a small board behind a slow link."""
    devices = (
        Device("cpu", memory_bytes=64 * 2.0**30, peak_flops=1e12, memory_bandwidth=100e9),
        *gpus(2, 24 * 2.0**30).devices,
        Device("board", node="board", memory_bytes=4 * 2.0**30, memory_bandwidth=10e9),
    )
    return Cluster(devices, (Link("cpu", "board", 125e6, 2e-4), Link("board", "cpu", 125e6, 2e-4)))


def check_ranges(found: DeviceMap) -> None:
    """Consecutive, and all layers."""
    ends = list(found.ranges.values())
    assert ends[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    assert ends[-1][1] == found.problem.n


def test_70b_on_equal_gpus_is_consecutive_and_balanced() -> None:
    """What anyone would deploy: within a block of an even split, at least as fast as others."""
    found = device_map(LLAMA_70B, gpus(8), context=8192, users=64)
    check_ranges(found)
    blocks = [end - start for start, end in found.ranges.values()]
    assert len(blocks) == 8
    assert max(blocks) - min(blocks) <= 3  # embedding and norm count as layers
    assert found.proved
    assert found.gap == 0
    for other in found.candidates():
        if not other.why:
            assert found.judgement.value <= other.judgement.value * (1 + 1e-9)


def test_8b_for_one_stream_stays_on_one_gpu() -> None:
    """A cut would add a hop; the other GPU is left out, and it is said why."""
    found = device_map(LLAMA_8B, gpus(2))
    assert list(found.ranges) == ["gpu0"]
    assert "more time per token" in found.left_out()["gpu1"]


def test_bytes_are_those_of_the_published_model() -> None:
    """Weights 16.06 GB in bf16; caches 128 KiB per token and user."""
    found = device_map(LLAMA_8B, gpus(2), context=8192, users=4)
    costs = found.judgement.costs
    assert sum(cost.weight_bytes for cost in costs) == 2 * 8_030_261_248
    assert sum(cost.cache_bytes for cost in costs) == 4 * 8192 * 128 * 1024


def test_decode_is_bound_by_memory_and_prefill_by_flops() -> None:
    """A token takes all weights once through memory; a prompt takes its products."""
    cluster = gpus(1, launch_overhead_s=0.0, efficiency={"matmul": 1.0, "memory": 1.0})
    found = device_map(LLAMA_8B, cluster, context=1024)
    layers = found.problem.model.layers
    read = 2 * (8_030_261_248 - layers[0].parameters) + 1024 * 128 * 1024
    assert found.judgement.token_s == pytest.approx(read / 2e12, rel=1e-6)
    blocks = sum(x.multiplied for x in layers if x.matrices)
    pairs = 1024 * 1025 / 2 * 32 * 2 * 4096
    computed = 2 * (1024 * blocks + pairs) / 312e12 + 2 * layers[-1].multiplied / 2e12
    assert found.judgement.first_token_s == pytest.approx(computed, rel=1e-3)


def test_slow_devices_are_left_out_with_the_reason() -> None:
    """The board holds no block for its memory's sake; the CPU only slows down."""
    found = device_map(LLAMA_8B, mixed(), context=8192)
    assert list(found.ranges) == ["gpu1"] or list(found.ranges) == ["gpu0"]
    left = found.left_out()
    assert set(left) == {"cpu", "gpu0", "gpu1", "board"} - set(found.ranges)
    assert all("a block takes" in why for why in left.values())


def test_a_plan_on_fewer_devices_is_named_where_it_is_nearly_as_good() -> None:
    """Users that take turns on devices gain little beside a batch on one; the plan stays."""
    found = device_map(LLAMA_8B, gpus(4, 80 * 2.0**30), context=1024, users=2)
    simpler = found.simpler()
    assert simpler is not None
    assert len(simpler.plan.ranges) == 1 < len(found.ranges)
    assert found.judgement.value < simpler.value <= found.judgement.value * (1 + ERROR)
    assert "simpler: gpu" in repr(found)
    assert list(found.as_json()["simpler"]["ranges"]) != list(found.ranges)
    assert device_map(LLAMA_8B, gpus(4, 80 * 2.0**30), context=1024).simpler() is None


def test_a_disk_takes_what_does_not_fit() -> None:
    """Weights of the last blocks are read in each step, at the rate of the disk."""
    one = gpus(1, 12 * 2.0**30)
    with pytest.raises(InfeasibleError, match="too little"):
        device_map(LLAMA_8B, one)
    device = Device(
        "gpu0", kind="gpu", memory_bytes=12 * 2.0**30, memory_bandwidth=2e12, disk_bandwidth=3e9
    )
    found = device_map(LLAMA_8B, Cluster((device,)))
    each, cost = found.judgement.plan.ranges[0], found.judgement.costs[0]
    assert each.from_disk > 0
    assert cost.memory_bytes <= 0.9 * 12 * 2.0**30
    assert found.judgement.token_s > cost.disk_bytes / 3e9


def test_sliding_windows_bound_the_cache() -> None:
    """Past the window a longer context takes no more memory."""
    data = LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096}
    short, long = (
        device_map(data, gpus(1), context=context).judgement.costs[0].cache_bytes
        for context in (4096, 32768)
    )
    assert short == long == 4096 * 128 * 1024


def test_tied_weights_are_held_once_where_both_ends_meet() -> None:
    """And twice where the last device is another than the first."""
    data = LLAMA_8B | {"tie_word_embeddings": True}
    one = device_map(data, gpus(1)).judgement.costs
    two = device_map(data, gpus(2), users=32).judgement.costs
    table = 2 * 128256 * 4096
    whole = 2 * (8_030_261_248 - 128256 * 4096)
    assert sum(cost.weight_bytes for cost in one) == whole
    assert sum(cost.weight_bytes for cost in two) == whole + table


def test_sources_mean_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping, a file, a folder, and a name in the cache of the hub.

    A user without a home has no cache: not in a folder ``~`` of the current one.
    """
    text = json.dumps(LLAMA_8B)
    snapshot = tmp_path / "hub" / "models--meta--small" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (snapshot / "config.json").write_text(text)
    (tmp_path / "config.json").write_text(text)
    layers = language_model(LLAMA_8B).layers
    for source in (tmp_path / "config.json", tmp_path, str(tmp_path), "meta/small"):
        assert language_model(source).layers == layers
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~" / ".cache").mkdir(parents=True)
    (tmp_path / "~" / ".cache" / "huggingface").symlink_to(tmp_path)
    with pytest.raises(InputError, match="no configuration of a model is there"):
        language_model("meta/small")


@pytest.mark.parametrize(
    "name",
    [
        *("llama, biases, tied", "mixtral", "gpt2", "gemma2", "falcon", "falcon, grouped"),
        *("deepseek_v3", "t5"),
    ],
)
def test_modules_on_the_meta_device_mean_the_same(name: str) -> None:
    """Parameters of each block, caches and what is tied are those of the configuration."""
    transformers = pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model

    data = config(name)
    made, module = language_model(data), meta_model(data, name)
    counted = language_model(module)
    assert counted.parameters() == made.parameters()
    own, other = (
        [(x.parameters, x.cache_width, x.state_width, x.window) for x in m.layers if x.matrices]
        for m in (made, counted)
    )
    assert own == other
    assert counted.block_name == made.block_name
    if name != "t5":  # whose embeddings are three modules
        assert [x.tied for x in counted.layers if x.name == "head"] == [made.layers[-1].tied]
    kind = transformers.AutoConfig.for_model(data.pop("model_type"), **data)
    assert language_model(kind).layers == made.layers


def test_architectures_without_formulas_are_counted_in_modules() -> None:
    """Where transformers knows them."""
    pytest.importorskip("transformers")
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99}
    small |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "head_dim": 16}
    found = device_map({"model_type": "glm4", **small}, gpus(1), context=64)
    assert [x.name for x in found.problem.model.layers if x.matrices] == [
        "block 0",
        "block 1",
        "block 2",
    ]
    assert found.problem.model.layers[-1].name == "head"


@pytest.mark.parametrize("kind", ["qwen3_next", "xglm", "modernbert-decoder"])
def test_what_is_kept_is_what_a_forward_leaves(kind: str) -> None:
    """States, windows, heads under other names, whatever a configuration calls them."""
    transformers = pytest.importorskip("transformers")
    import torch

    from placewright.layers.devicemap.modules import model_from_module

    sizes = {**dict.fromkeys(("hidden_size", "d_model"), 32), "vocab_size": 99, "num_experts": 4}
    sizes |= dict.fromkeys(("num_hidden_layers", "num_layers", "num_attention_heads"), 4)
    sizes |= {"num_key_value_heads": 2, "attention_heads": 4, "head_dim": 8, "sliding_window": 8}
    sizes |= dict.fromkeys(("intermediate_size", "ffn_dim", "moe_intermediate_size"), 16)
    sizes |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "num_experts_per_tok": 2}
    fields = transformers.CONFIG_MAPPING[kind].__annotations__
    own = {name: value for name, value in sizes.items() if name in fields}
    made = transformers.AutoConfig.for_model(kind, **own)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    found = model_from_module(model, kind).layers
    for tokens in (3, 6):
        with torch.no_grad():
            output = model(input_ids=torch.full((1, tokens), 3), use_cache=True)
        left = [sum(x.numel() for x in tensors(each)) for each in output.past_key_values.layers]
        assert [layer.kept(tokens) for layer in found if layer.name.startswith("block")] == left


def tensors(cache: Any) -> list[Any]:
    """Keys, values, and states by number."""
    held = [*vars(cache).values()]
    held += [x for each in held if isinstance(each, dict) for x in each.values()]
    return [x for x in held if getattr(x, "ndim", 0) > 1]


def test_a_model_of_ones_own_has_blocks_without_caches() -> None:
    """A list of blocks is all that is needed."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]))
    made = language_model(module)
    assert [x.name for x in made.layers] == ["block 0", "block 1"]
    assert made.parameters() == 4 * 72
    with pytest.raises(UnsupportedError, match="no list of blocks"):
        language_model(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (3, "must be a configuration"),
        ({"hidden_size": 3}, "does not state its architecture"),
        ({"model_type": "frobnicator", "num_hidden_layers": 2}, "unknown architecture"),
        ({"model_type": "frobnicator"}, "does not state this size"),
        ({"model_type": "llama"}, "does not state this size"),
        ("nowhere/at-all", "no configuration of a model is there"),
    ],
)
def test_wrong_sources_are_refused(source: Any, what: str) -> None:
    """With what to do next."""
    with pytest.raises(InputError, match=what):
        language_model(source)


def test_near_names_of_architectures_are_offered() -> None:
    """``lama``."""
    with pytest.raises(UnsupportedError) as caught:
        language_model({"model_type": "lama", "num_hidden_layers": 2})
    assert "'llama'" in caught.value.hint


def test_a_context_that_is_too_long_says_the_longest() -> None:
    """And that one fits, and one more does not."""
    cluster = gpus(1, 24 * 2.0**30)
    with pytest.raises(InfeasibleError) as caught:
        device_map(LLAMA_8B, cluster, context=131072)
    assert "too little" in caught.value.by
    longest = int(caught.value.hint.split(" is ")[1].split(";")[0])
    device_map(LLAMA_8B, cluster, context=longest)
    with pytest.raises(InfeasibleError):
        device_map(LLAMA_8B, cluster, context=longest + 1)


def test_limits_of_the_model_and_the_devices() -> None:
    """Positions, a prompt beyond the context, a layer that fits nowhere, a format."""
    with pytest.raises(InputError, match="longer than the model's positions"):
        device_map(LLAMA_8B, gpus(1), context=131073)
    with pytest.raises(InputError, match="a prompt is longer"):
        device_map(LLAMA_8B, gpus(1), context=10, prompt=11)
    with pytest.raises(InfeasibleError, match=r"no device can hold 'embed' alone.*0\.9|usable|use"):
        device_map(LLAMA_8B, gpus(3, 1e9))
    with pytest.raises(UnknownNameError, match="unknown number format 'int3'"):
        device_map(LLAMA_8B, gpus(1), dtype="int3")
    with pytest.raises(InputError, match="objective"):
        device_map(LLAMA_8B, gpus(1), objective="speed")
    far = Cluster(tuple(Device(f"d{k}", node=f"n{k}", memory_bytes=9e9) for k in range(3)))
    with pytest.raises(InfeasibleError, match="no plan holds"):
        device_map(LLAMA_8B, far)


def test_json_and_text_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Value, bound, ranges, candidates, what is left out."""
    found = device_map(tiny(), gpus(2))
    data = json.loads(json.dumps(found.as_json()))
    assert data["unit"] == "s"
    assert data["value"] == pytest.approx(data["lower_bound"], rel=1e-8)
    assert data["value"] >= data["physical_bound_s"]
    assert [x["device"] for x in data["plan"]["ranges"]] == list(found.ranges)
    assert {x["planner"] for x in data["candidates"]} >= {"exact", "accelerate-auto"}
    assert data["alternatives"]["accelerate-auto"]["ranges"]
    text = repr(found)
    assert "optimal" in text
    assert "not used: gpu1" in text
    many = device_map(tiny(), gpus(2), users=8).as_json()
    assert many["tokens_per_s"] == pytest.approx(1 / many["value"])
    assert many["value"] >= many["physical_bound_s"] * (1 - 1e-9)


def test_neither_torch_nor_weights_are_loaded(tmp_path: Path) -> None:
    """For a known architecture; within seconds for 70B on eight devices."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    code = (
        "import sys, placewright\n"
        "found = placewright.device_map(sys.argv[1], placewright.Cluster.preset('mixed-8'),"
        " context=8192, dtype='int4')\n"
        "assert found.proved\n"
        "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
