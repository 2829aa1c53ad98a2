"""Tokens from layers on workers are those of the model on one device."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.generation import ARCHITECTURES, small_model

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import (
    InputError,
    RunError,
    UnknownNameError,
    UnsupportedError,
    WorkerError,
)
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.devicemap.text import Draw
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


WAYS: list[dict[str, Any]] = [
    {"max_new_tokens": 24, "do_sample": False, "no_repeat_ngram_size": 1},
    {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9},
    {"max_new_tokens": 8, "num_beams": 3, "do_sample": False},
]
"""Greedy, where random models would repeat a token for good; sampled; by beams."""


def equals_one_process(placed: Generator, model: Any) -> None:
    """Each way for one user."""
    for options in WAYS:
        torch.manual_seed(3)
        expected = model.generate(**prompts(), **options)
        torch.manual_seed(3)
        assert torch.equal(placed.generate(**prompts(), **options), expected)


def users(count: int) -> list[dict[str, Any]]:
    """Prompts of unlike lengths, and of unlike numbers of new tokens."""
    draw = torch.Generator().manual_seed(4)
    lengths = [3 + 5 * k % 11 for k in range(count)]
    return [
        {
            "input_ids": torch.randint(1, 96, (1 + k % 2, length), generator=draw),
            "max_new_tokens": 6 + 4 * k,
            "do_sample": False,
        }
        for k, length in enumerate(lengths)
    ]


def joined(placed: Generator) -> list[int]:
    """How many users each order computed tokens of: filled from now on."""
    found: list[int] = []
    post = placed.group.post

    def noted(name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        if name == "compute":
            found.append(len(arguments[0][0]))
        post(name, arguments)

    placed.group.post = noted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("kind", DECODERS)
def test_tokens_are_those_of_one_process(kind: str) -> None:
    """With padding, on two of three workers, prompts in pieces; then of several users at once.

    Of one and of two rows, with padding, sampled with a seed.
    """
    model = model_of(kind)
    asked = [*users(5), prompts() | {"max_new_tokens": 9, "do_sample": False}]
    expected = [model.generate(**each) for each in asked]
    drawn = asked[0] | {"max_new_tokens": 12}
    expected.append(model.generate(**drawn, logits_processor=[Draw(7)]))
    with Generator(model, {"c": (0, 1), "a": (1, 4)}, THREE) as placed, ThreadPoolExecutor(7) as go:
        placed.prompt_chunk = 4
        equals_one_process(placed, model)
        assert placed.held_bytes[1] == 0
        sizes = joined(placed)
        found = [go.submit(placed.generate, **each) for each in asked]
        found.append(go.submit(placed.generate, **drawn, logits_processor=[Draw(7)]))
        for each, tokens in zip(found, expected, strict=True):
            assert torch.equal(each.result(), tokens)
        # At most half of them: the others pass the other stage at that time.
        assert 2 <= max(sizes) <= 4
        assert placed._batcher._users == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_cache": False}, "use_cache"),
    ({"prompt_lookup_num_tokens": 2}, "prompt_lookup"),
    ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ({"cache_implementation": "static"}, "cache_implementation"),
    ({"guidance_scale": 1.5}, "guidance_scale"),
    ({"assistant_early_exit": 2}, "assistant_early_exit"),
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
            with pytest.raises(UnsupportedError, match=words):
                placed.generate(ids, generation_config=given)
            assert torch.equal(placed.generate(ids, max_new_tokens=4, do_sample=False), expected)
        model.generation_config.guidance_scale = 1.5  # as its folder may say
        with pytest.raises(UnsupportedError, match="guidance_scale"):
            placed.generate(ids)


def test_prompts_that_would_end_a_worker_are_refused() -> None:
    """The next call is right, and a prompt may have any of its names, or be missing."""
    model, ids = model_of("llama"), prompts()["input_ids"][1:]
    how = {"max_new_tokens": 4, "do_sample": False}
    with Generator(model, {"a": (0, 4)}, boards("a")) as placed:
        for given, words in (
            ({"inputs": ids + 90}, "tokens from .* the model has 96"),
            ({"inputs": ids[:0]}, r"shape \(0, 9\)"),
            ({"input_ids": ids.float()}, "whole numbers"),
            ({"inputs": ids, "attention_mask": torch.ones(1, 5)}, r"\(1, 5\), the prompt \(1, 9\)"),
        ):
            with pytest.raises(InputError, match=words):
                placed.generate(**given, **how)
        for rest in ({"inputs": ids}, {"input_ids": ids}, {"bos_token_id": 2}):
            assert torch.equal(placed.generate(**rest, **how), model.generate(**rest, **how))


def test_what_raises_in_the_model_ends_one_call() -> None:
    """In the model's own words; a call beside it goes on."""
    model, ids = model_of("gpt2"), prompts()["input_ids"][1:]
    long = DISTINCT | {"max_new_tokens": 40}
    expected = model.generate(ids, **long)
    with Generator(model, {"a": (0, 2), "b": (2, 4)}, THREE) as placed, ThreadPoolExecutor(1) as go:
        beside = go.submit(placed.generate, ids, **long)
        while not beside.done():
            with pytest.raises(RunError, match=r"'a': .*IndexError: index out of range"):
                placed.generate(ids, token_type_ids=ids + 90, **DISTINCT)
        assert torch.equal(beside.result(), expected)
        assert torch.equal(placed.generate(ids, **long), expected)
        assert placed.lost == []


DISTINCT = WAYS[0]


def sized(kind: str, **others: Any) -> Any:
    """A model of four small layers; weights large enough for an error to change a token."""
    usual = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **usual, **others)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() > 1:
                each.mul_(4)
    return model


HEADS = {"num_attention_heads": 4, "intermediate_size": 48, "num_key_value_heads": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 4} | HEADS
OTHERS: dict[str, dict[str, Any]] = {
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "word_embed_proj_dim": 16,
        "max_position_embeddings": 64,
    },
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 4,
        "num_heads": 4,
        "window_size": 6,
        "attention_types": [[["global", "local"], 2]],
    },
    "mamba": {"hidden_size": 32, "num_hidden_layers": 4, "state_size": 8},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "state_size": 8,
        "head_dim": 8,
        "num_heads": 8,
        "n_groups": 1,  # and a limit that is infinite
    },
    "olmo_hybrid": SIZES,  # attention in its last layer only
    "jamba": SIZES
    | {
        "attn_layer_period": 2,  # computed from a layer's number
        "attn_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "use_mamba_kernels": False,
    },
    "deepseek_v4": SIZES  # four streams of activations
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    | {"head_dim": 16, "qk_rope_head_dim": 8, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8}
    | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    "llama4_text": SIZES | {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
}


def long_prompt(tokens: int) -> torch.Tensor:
    """One row."""
    return torch.randint(2, 96, (1, tokens), generator=torch.Generator().manual_seed(tokens))


def scores(generate: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of eight tokens, no token twice."""
    found = generate(ids, **DISTINCT | {"max_new_tokens": 8}, output_logits=True, **AS_DICT)
    return torch.stack(found.logits)


AS_DICT = {"return_dict_in_generate": True}
ROUNDING = {"atol": 1e-4, "rtol": 1e-3}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_keep_or_number_other_things(kind: str) -> None:
    """Positions by a mask, layers by another name or of other kinds, states without tokens."""
    model = sized(kind, **OTHERS[kind])
    ranges = {"a": (0, 1), "b": (1, 2), "c": (2, 4)}
    with Generator(model, ranges, THREE, Local(driven_by=(0, 0, 0))) as placed:
        placed.prompt_chunk = 16
        for tokens in (1, 11, 40):
            ids = long_prompt(tokens)
            torch.testing.assert_close(
                scores(placed.generate, ids), scores(model.generate, ids), **ROUNDING
            )
        equals_one_process(placed, model)


def test_configurations_that_are_unlike_others() -> None:
    """Mamba adds up in single precision; CodeGen has no token of padding, and MPT no cache."""
    model, ids = sized("mamba", **OTHERS["mamba"]).to(torch.bfloat16), long_prompt(9)
    options = {"do_sample": False, "max_new_tokens": 6}
    with Generator(model, {"a": (0, 2), "b": (2, 4)}, THREE) as placed:
        assert torch.equal(placed.generate(ids, **options), model.generate(ids, **options))
    model = sized("codegen", n_embd=32, n_layer=4, n_head=4, rotary_dim=4)
    del model.config.pad_token_id  # it has none of its own
    with Generator(model, {"a": (0, 4)}, boards("a")) as placed:
        assert torch.equal(placed.generate(ids, **options), model.generate(ids, **options))
    model = sized("mpt", d_model=32, n_heads=4, n_layers=2)
    with Generator(model, {"a": (0, 2)}, boards("a")) as placed:
        with pytest.raises(UnsupportedError, match="give use_cache=True"):
            placed.generate(ids, **options)
        cached = placed.generate(ids, **options, use_cache=True)
        assert torch.equal(cached, model.generate(ids, **options))


LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.mark.parametrize("kind", ["deepseek_v2", "diffllama", "doge"])
def test_users_of_models_that_change_what_caches_give(kind: str) -> None:
    """They expand or cut keys before the attention: users are computed one behind the other."""
    latent = {**LATENT, **EXPERTS, "n_group": 1, "topk_group": 1, "q_lora_rank": None}
    others = latent | {"num_key_value_heads": 4} if kind == "deepseek_v2" else {}
    model = sized(kind, **SIZES | others)
    asked = users(4)
    expected = [model.generate(**each) for each in asked]
    with Generator(model, {"a": (0, 4)}, boards("a")) as placed, ThreadPoolExecutor(4) as pool:
        assert not placed.joins
        found = [pool.submit(placed.generate, **each) for each in asked]
        for each, tokens in zip(found, expected, strict=True):
            assert torch.equal(each.result(), tokens)


ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 3.0}),
    "longrope": (
        "phi3",
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 3.0, 5.0, 9.0],
            "original_max_position_embeddings": 32,
        },
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_angles_that_change_with_the_length(name: str) -> None:
    """Of a text that begins long, or gets longer than 32 tokens; alone, and beside others."""
    kind, rope = ROPES[name]
    own = {"max_position_embeddings": 32 if name == "dynamic" else 128}
    if name == "longrope":
        own["original_max_position_embeddings"] = 32
    asked = [long_prompt(tokens) for tokens in (50, 10, 28, 40)]

    def fresh() -> Any:  # one that has seen a long text keeps its angles
        return sized(kind, **SIZES, **own, rope_parameters=rope | {"rope_theta": 1e4})

    expected = [scores(fresh().generate, ids) for ids in asked]
    with Generator(fresh(), {"a": (0, 1), "b": (1, 4)}, THREE) as placed:
        placed.prompt_chunk = 16
        with ThreadPoolExecutor(4) as pool:
            together = [pool.submit(scores, placed.generate, ids) for ids in asked]
            for work, right in zip(together, expected, strict=True):
                torch.testing.assert_close(work.result(), right, **ROUNDING)
        for ids, right in zip(asked, expected, strict=True):
            torch.testing.assert_close(scores(placed.generate, ids), right, **ROUNDING)

        def elsewhere(*of: Any, **rest: Any) -> Any:
            placed.load({"a": (0, 4)})

        with pytest.raises(UnsupportedError, match="load: rope"):
            placed.generate(asked[1], max_new_tokens=3, stopping_criteria=[elsewhere])
        placed.load({"a": (0, 4)})
        torch.testing.assert_close(scores(placed.generate, asked[0]), expected[0], **ROUNDING)
    with pytest.raises(UnsupportedError, match="adapt: rope"):
        Generator(fresh(), {"a": (0, 4)}, THREE, replan=lambda cluster: {"a": (0, 4)})


@pytest.mark.parametrize("kind", ["gpt2", "gptj", "opt"])
def test_texts_longer_than_the_positions_leave_the_workers_alive(kind: str) -> None:
    """The model has 64: the 65th is refused by number, and the next call is right."""
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
    if kind == "gptj":
        sizes["rotary_dim"] = 4
    model = sized(kind, **(OTHERS["opt"] if kind == "opt" else sizes))
    how = {"do_sample": False, "no_repeat_ngram_size": 1}
    with Generator(model, {"a": (0, 4)}, boards("a")) as placed:
        for ids, new in ((long_prompt(60), 6), (long_prompt(65), 1)):
            with pytest.raises(InputError, match="65 tokens, the model has 64 positions"):
                placed.generate(ids, max_new_tokens=new, **how)
            with pytest.raises(IndexError):
                model.generate(ids, max_new_tokens=new, **how)
        most = {"max_new_tokens": 5, **how}
        expected = model.generate(long_prompt(60), **most)
        assert torch.equal(placed.generate(long_prompt(60), **most), expected)


def test_an_encoder_before_the_decoder() -> None:
    """Greedy with padding, sampled, by beams, wherever the cuts are; two threads at a time."""
    model = model_of("t5", 6)
    first = model.generate(prompts()["input_ids"][1:], **DISTINCT)
    second = model.generate(**prompts(), **DISTINCT)
    assert len(set(first[0].tolist())) == 25
    cuts: tuple[dict[str, tuple[int, int]], ...] = (
        {"c": (0, 1), "a": (1, 6)},  # c has a part of the encoder only
        {"b": (0, 4), "a": (4, 6)},
        {"c": (0, 2), "b": (2, 4), "a": (4, 6)},
    )
    with Generator(model, {"b": (0, 6)}, THREE) as placed, ThreadPoolExecutor(2) as go:
        for ranges in ({}, *cuts):
            if ranges:
                placed.load(ranges)
            equals_one_process(placed, model)
            places = torch.arange(9)[None]  # which T5 leaves unread
            found = placed.generate(prompts()["input_ids"][1:], position_ids=places, **DISTINCT)
            assert torch.equal(found, first)
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
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(InputError, match="No such file") as caught:
        Generator(tmp_path, {"a": (0, 4)}, boards("a"))
    assert caught.value.where == str(gone)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_model_that_was_cast_has_its_buffers_cast(kind: str) -> None:
    """Angles of positions in 16 bits, as they are in this process; bit for bit."""
    model = model_of(kind).to(torch.bfloat16)
    with Generator(model, {"a": (0, 1), "b": (1, 4)}, boards("a", "b")) as placed:
        for ids in (long_prompt(9), long_prompt(40)):
            assert torch.equal(scores(placed.generate, ids), scores(model.generate, ids))


@pytest.mark.parametrize(
    ("stored", "stated"),
    [("float32", "bfloat16"), ("bfloat16", "float16"), ("float16", "float32"), ("float16", "")],
)
def test_numbers_of_a_folder_become_those_of_its_configuration(
    stored: str, stated: str, tmp_path: Path
) -> None:
    """As `from_pretrained` makes them, whatever the files have; those where nothing is stated."""
    model_of("llama").to(getattr(torch, stored)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"dtype": stated}
    file.write_text(json.dumps({k: v for k, v in config.items() if v != ""}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert model.dtype == getattr(torch, stated or stored)
    with Generator(tmp_path, {"a": (0, 1), "b": (1, 4)}, boards("a", "b")) as placed:
        ids = long_prompt(9)
        torch.testing.assert_close(
            scores(placed.generate, ids), scores(model.generate, ids), atol=1e-5, rtol=0
        )
        assert sum(placed.held_bytes) < 1.05 * sum(each.nbytes for each in model.parameters())


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


def test_calls_go_on_without_workers_that_died() -> None:
    """Tokens so far, greedy or of beams, are computed again; so does the next call."""
    model = model_of("llama")
    greedy = prompts() | {"max_new_tokens": 10, "do_sample": False}
    beams = greedy | {"num_beams": 3}
    tried: list[tuple[str, ...]] = []

    def replan(cluster: Cluster) -> dict[str, tuple[int, int]]:
        tried.append(cluster.device_names)
        first, *others = cluster.device_names
        return {first: (0, 3), others[-1]: (3, 4)} if others else {first: (0, 4)}

    def killed_in(placed: Generator, victim: int, given: dict[str, Any]) -> torch.Tensor:
        """Tokens of a call in which a worker is killed."""
        assert isinstance(placed.group, LocalGroup)
        victims = [placed.group.processes[victim]]

        def stop(ids: Any, scores: Any, **rest: Any) -> Any:
            if victims and ids.shape[1] == 15:
                victims.pop().kill()
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        criteria = transformers.StoppingCriteriaList([stop])
        found: torch.Tensor = placed.generate(**given, stopping_criteria=criteria)
        return found

    with Generator(model, {"a": (0, 2), "b": (2, 4)}, THREE, replan=replan) as placed:
        assert torch.equal(killed_in(placed, 1, greedy), model.generate(**greedy))
        assert (placed.lost, tried) == (["b"], [("a", "c")])
        assert placed.ranges == {"a": (0, 3), "c": (3, 4)}
        assert torch.equal(killed_in(placed, -1, beams), model.generate(**beams))
        assert (placed.lost, tried[1:]) == (["b", "c"], [("a",)])
        assert torch.equal(placed.generate(**greedy), model.generate(**greedy))


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
    with pytest.raises((InputError, RunError, UnknownNameError), match=words):
        Generator(model_of("llama"), ranges, THREE)


def scaled(model: Any) -> None:
    """Another factor in one layer."""
    model.model.layers[1].self_attn.scaling = 0.1


def steered(model: Any) -> None:
    """A hook changes activations."""
    model.model.layers[1].register_forward_hook(lambda module, given, made: made * 1.5)


def activated(model: Any) -> None:
    """Another function, which has no weights."""
    model.model.layers[1].mlp.act_fn = torch.nn.ReLU()


def biased(model: Any) -> None:
    """A head with more weights."""
    model.lm_head = torch.nn.Linear(32, 104)


def untied(model: Any) -> None:
    """A head of its own, where the configuration says that it is the embedding."""
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(104, 32))


def subclassed(model: Any) -> None:
    """A class of the user's."""
    model.__class__ = type("Own", (type(model),), {})


def wrapped(model: Any) -> None:
    """Another forward of one object."""
    model.forward = model.forward


CHANGED = {
    scaled: "self_attn.*scaling 0.1",
    steered: r"layers\.1.*has a hook",
    activated: "act_fn.*ReLU",
    biased: r"lm_head\.bias",
    untied: "lm_head.*ties",
    subclassed: "is a Own",
    wrapped: "forward of its own",
}


@pytest.mark.parametrize("change", CHANGED)
def test_models_that_workers_would_make_otherwise(change: Callable[[Any], None]) -> None:
    """They know the configuration and the weights: what else was changed is named."""
    model = model_of("qwen2")
    model.resize_token_embeddings(104)  # shapes go with the configuration
    change(model)
    with pytest.raises(UnsupportedError, match=CHANGED[change]):
        Generator(model, {"a": (0, 4)}, THREE)


APART: dict[str, tuple[dict[str, Any], str]] = {
    "recurrent_gemma": (SIZES | {"lru_width": 32, "head_dim": 8}, "conv1d_state: a module keeps"),
    "zamba2": (
        SIZES
        | {"num_hidden_layers": 6, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2}
        | {"mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1},
        "a layer needs more of those before it",
    ),
    "zaya": (SIZES | {"head_dim": 8, "num_experts": 4}, "a layer needs more of those before it"),
    "minimax": (SIZES | {"num_local_experts": 2}, "cannot be computed apart.*cache of its own"),
}


@pytest.mark.parametrize("kind", APART)
def test_models_whose_layers_need_each_other(kind: str) -> None:
    """At the start, by what they read or keep: some gave other tokens."""
    sizes, words = APART[kind]
    count = sizes["num_hidden_layers"]
    ranges = {"a": (0, count - 3), "b": (count - 3, count)}
    with pytest.raises(WorkerError, match=words), Generator(sized(kind, **sizes), ranges, THREE):
        pass


def test_models_that_it_cannot_cut(tmp_path: Path) -> None:
    """No language model, an encoder of another kind, a folder without one."""
    with pytest.raises(UnsupportedError, match="decoder-only"):
        Generator(torch.nn.Linear(2, 2), {"a": (0, 1)}, THREE)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 32}
    bart = transformers.BartConfig(**sizes, encoder_ffn_dim=16, decoder_ffn_dim=16)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    with pytest.raises(UnsupportedError, match="keeps no keys and values in a cache"):
        Generator(
            transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes)),
            {"a": (0, 1)},
            THREE,
        )
    with pytest.raises(UnsupportedError, match="T5 only"):
        Generator(transformers.BartForConditionalGeneration(bart), {"a": (0, 1)}, THREE)
    with pytest.raises(InputError, match="no model of transformers"):
        Generator(tmp_path, {"a": (0, 1)}, THREE)
