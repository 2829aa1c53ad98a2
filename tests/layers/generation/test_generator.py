"""Tokens from layers on workers are those of the model on one device."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.generation import ARCHITECTURES, small_model

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, UnknownNameError, UnsupportedError, WorkerError
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.generation.generator import Generator, generating
from placewright.runtime.engines.local import TESTBED, Local, LocalGroup
from placewright.testbed.testbed import missing

transformers = pytest.importorskip("transformers")

DECODERS = tuple(kind for kind in ARCHITECTURES if kind != "t5")


def model_of(kind: str, layers: int = 4) -> Any:
    """A small one with random weights."""
    return small_model(kind, 96, 32, layers)


def boards(*names: str) -> Cluster:
    """CPUs of this machine."""
    devices = tuple(Device(name, kind="cpu", node=name) for name in names)
    links = tuple(Link(a, b, 1e9, 1e-5) for a in names for b in names if a != b)
    return Cluster(devices, links)


THREE = boards("a", "b", "c")


def prompts() -> dict[str, torch.Tensor]:
    """Two rows, the first padded on the left."""
    ids = torch.randint(1, 96, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("kind", DECODERS)
def test_tokens_are_those_of_one_process(kind: str) -> None:
    """Greedy with padding, sampled, by beams; on two of three workers, prompts in pieces."""
    model = model_of(kind)
    ways: list[dict[str, Any]] = [
        {"max_new_tokens": 24, "do_sample": False},
        {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9},
        {"max_new_tokens": 8, "num_beams": 3, "do_sample": False},
    ]
    with Generator(model, {"c": (0, 1), "a": (1, 4)}, THREE) as placed:
        placed.prompt_chunk = 4
        for options in ways:
            torch.manual_seed(3)
            expected = model.generate(**prompts(), **options)
            torch.manual_seed(3)
            assert torch.equal(placed.generate(**prompts(), **options), expected)
        assert placed.held_bytes[1] == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_cache": False}, "use_cache"),
    ({"prompt_lookup_num_tokens": 2}, "prompt_lookup"),
    ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ({"cache_implementation": "static"}, "cache_implementation"),
]


def test_decoding_that_needs_caches_here_is_refused() -> None:
    """By name, whether an option or a configuration asks for it; the next call is right."""
    model, ids = model_of("llama"), prompts()["input_ids"][1:]
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    with Generator(model, {"a": (0, 4)}, boards("a")) as placed:
        for options, words in REFUSED:
            with pytest.raises(UnsupportedError, match=words):
                placed.generate(ids, max_new_tokens=4, **options)
            given = transformers.GenerationConfig(pad_token_id=0, max_new_tokens=4, **options)
            if "cache_implementation" not in options:
                with pytest.raises(UnsupportedError, match="generate:"):
                    placed.generate(ids, generation_config=given)
            assert torch.equal(placed.generate(ids, max_new_tokens=4, do_sample=False), expected)


DISTINCT: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "no_repeat_ngram_size": 1}
"""Random models would repeat a token for good."""


@pytest.mark.parametrize(
    "ranges",
    [
        {"b": (0, 6)},
        {"c": (0, 1), "a": (1, 6)},  # c has a part of the encoder only
        {"b": (0, 4), "a": (4, 6)},
        {"c": (0, 2), "b": (2, 4), "a": (4, 6)},
    ],
)
def test_an_encoder_before_the_decoder(ranges: dict[str, tuple[int, int]]) -> None:
    """Greedy with padding, sampled, by beams, wherever the cuts are; two threads at a time."""
    model = model_of("t5", 6)
    ways: list[dict[str, Any]] = [
        DISTINCT,
        {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9},
        {"max_new_tokens": 8, "num_beams": 3, "do_sample": False},
    ]
    with Generator(model, ranges, THREE) as placed:
        for options in ways:
            torch.manual_seed(3)
            expected = model.generate(**prompts(), **options)
            torch.manual_seed(3)
            assert torch.equal(placed.generate(**prompts(), **options), expected)
        first = model.generate(prompts()["input_ids"][1:], **DISTINCT)
        second = model.generate(**prompts(), **DISTINCT)
        assert len(set(first[0].tolist())) == 25
        with ThreadPoolExecutor(2) as go:
            one = go.submit(placed.generate, prompts()["input_ids"][1:], **DISTINCT)
            two = go.submit(placed.generate, **prompts(), **DISTINCT)
            assert torch.equal(one.result(), first)
            assert torch.equal(two.result(), second)


def test_an_encoder_on_a_device_map_and_where_a_worker_dies(tmp_path: Path) -> None:
    """From a folder, whose embedding is stored once; what the encoder gave is computed once."""
    model = model_of("t5", 6)
    model.save_pretrained(tmp_path)
    expected = model.generate(**prompts(), **DISTINCT)
    planned = device_map(tmp_path, boards("a", "b"), context=64, prompt=9)
    assert planned.block_ranges == {"a": (0, 6)}

    def replan(cluster: Cluster) -> dict[str, tuple[int, int]]:
        return {cluster.device_names[0]: (0, 6)}

    with Generator(tmp_path, {"a": (0, 4), "b": (4, 6)}, boards("a", "b"), None, replan) as placed:
        assert isinstance(placed.group, LocalGroup)
        victim = placed.group.processes[1]

        def kill(ids: Any, scores: Any, **rest: Any) -> Any:
            if ids.shape[1] == 9:
                victim.kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        stop = transformers.StoppingCriteriaList([kill])
        found = placed.generate(**prompts(), **DISTINCT, stopping_criteria=stop)
        assert torch.equal(found, expected)
        assert placed.lost == ["b"]


def test_three_stages_of_a_folder(tmp_path: Path) -> None:
    """Each worker reads its own layers; the bytes of all are those of the model."""
    model = model_of("llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ranges = {"a": (0, 1), "b": (1, 3), "c": (3, 4)}
    with Generator(tmp_path, ranges, THREE) as placed:
        ids = prompts()["input_ids"][1:]
        expected = model.generate(ids, max_new_tokens=40, do_sample=False)
        assert torch.equal(placed.generate(ids, max_new_tokens=40, do_sample=False), expected)
        weights = sum(each.nbytes for each in {*model.parameters()})
        assert weights <= sum(placed.held_bytes) < 1.05 * weights
    (tmp_path / sorted(each.name for each in tmp_path.glob("*.safetensors"))[1]).unlink()
    with pytest.raises(WorkerError, match="lacks a tensor"), Generator(tmp_path, ranges, THREE):
        pass


def test_devices_of_one_process() -> None:
    """Two of three, which are not neighbours in order."""
    model, engine = model_of("gemma2"), Local(driven_by=(0, 1, 0))
    expected = model.generate(**prompts(), max_new_tokens=12, do_sample=False)
    with Generator(model, {"c": (0, 1), "b": (1, 2), "a": (2, 4)}, THREE, engine) as placed:
        assert len(placed.group.specs) == 2
        found = placed.generate(**prompts(), max_new_tokens=12, do_sample=False)
        assert torch.equal(found, expected)
        sizes = placed.held_bytes
        placed.load({"a": (0, 2), "c": (2, 3), "b": (3, 4)})
        assert placed.held_bytes != sizes
        assert torch.equal(
            placed.generate(**prompts(), max_new_tokens=12, do_sample=False), expected
        )


def test_tokens_on_unequal_nodes_of_a_testbed() -> None:
    """The same, and every token crosses the link between the stages."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    latency_s, name = 0.01, f"generation {os.getpid()}"
    devices = (Device("a", node="a", speed=0.5), Device("b", node="b"))
    links = (Link("a", "b", 1e7, latency_s), Link("b", "a", 1e7, latency_s))
    model = model_of("llama")
    expected = model.generate(**prompts(), max_new_tokens=12, do_sample=False)
    ranges = {"b": (0, 3), "a": (3, 4)}
    with generating(model, ranges, Cluster(devices, links, name), engine="testbed") as placed:
        assert placed.emulated == TESTBED
        start = time.perf_counter()
        found = placed.generate(**prompts(), max_new_tokens=12, do_sample=False)
        assert time.perf_counter() - start > 12 * latency_s
        assert torch.equal(found, expected)


def test_a_worker_that_dies_is_named() -> None:
    """In mid-generation."""
    model = model_of("llama")
    with Generator(model, {"a": (0, 2), "b": (2, 4)}, boards("a", "b")) as placed:
        assert isinstance(placed.group, LocalGroup)
        victim = placed.group.processes[1]

        def stop(ids: Any, scores: Any, **rest: Any) -> Any:
            victim.kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        with pytest.raises(WorkerError, match="'b'"):
            placed.generate(
                prompts()["input_ids"],
                max_new_tokens=8,
                do_sample=False,
                stopping_criteria=transformers.StoppingCriteriaList([stop]),
            )


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_calls_go_on_without_a_worker_that_died(options: dict[str, Any]) -> None:
    """Tokens so far are computed again by those that are left; so does the next call."""
    model = model_of("llama")
    given = prompts() | {"max_new_tokens": 10, "do_sample": False} | options
    expected = model.generate(**given)
    tried: list[tuple[str, ...]] = []

    def replan(cluster: Cluster) -> dict[str, tuple[int, int]]:
        tried.append(cluster.device_names)
        return {cluster.device_names[0]: (0, 3), cluster.device_names[-1]: (3, 4)}

    with Generator(model, {"a": (0, 2), "b": (2, 4)}, THREE, replan=replan) as placed:
        assert isinstance(placed.group, LocalGroup)
        victims = [(15, placed.group.processes[1])]

        def stop(ids: Any, scores: Any, **rest: Any) -> Any:
            if victims and ids.shape[1] == victims[0][0]:
                victims.pop()[1].kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        criteria = transformers.StoppingCriteriaList([stop])
        assert torch.equal(placed.generate(**given, stopping_criteria=criteria), expected)
        assert (placed.lost, tried) == (["b"], [("a", "c")])
        assert placed.ranges == {"a": (0, 3), "c": (3, 4)}
        placed.load({"c": (0, 4)})
        assert torch.equal(placed.generate(**given), expected)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"a": (0, 2), "b": (3, 4)}, "not all layers"),
        ({"a": (0, 2), "b": (2, 5)}, "not all layers"),
        ({"a": (0, 2), "b": (2, 2), "c": (2, 4)}, "not all layers"),
        ({"a": (2, 4), "b": (0, 2)}, "not all layers"),
        ({"z": (0, 4)}, "unknown device"),
        ({}, "not all layers"),
    ],
)
def test_ranges_that_cannot_be(ranges: dict[str, tuple[int, int]], words: str) -> None:
    """Refused before a worker is started."""
    with pytest.raises((InputError, UnknownNameError), match=words):
        Generator(model_of("llama"), ranges, THREE)


def test_models_that_it_cannot_cut(tmp_path: Path) -> None:
    """No language model, an encoder of another kind, a folder without one."""
    with pytest.raises(UnsupportedError, match="decoder-only"):
        Generator(torch.nn.Linear(2, 2), {"a": (0, 1)}, THREE)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 32}
    bart = transformers.BartConfig(**sizes, encoder_ffn_dim=16, decoder_ffn_dim=16)
    with pytest.raises(UnsupportedError, match="T5 only"):
        Generator(transformers.BartForConditionalGeneration(bart), {"a": (0, 1)}, THREE)
    with pytest.raises(InputError, match="no model of transformers"):
        Generator(tmp_path, {"a": (0, 1)}, THREE)
