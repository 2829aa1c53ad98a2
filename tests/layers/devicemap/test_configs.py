"""Formulas for configurations, against the modules that transformers makes of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from placewright.errors import InputError
from placewright.layers.devicemap.configs import (
    FAMILIES,
    ODD,
    TOWERS,
    USUAL,
    WHOLE,
    Config,
    known_architectures,
    model_from_config,
)
from placewright.layers.devicemap.model import FORMATS, LanguageModel, Layer
from placewright.layers.devicemap.reading import language_model
from tests.layers.devicemap.models import CONFIGS, LLAMA_8B, LLAMA_70B, SPARSE, S, config


def read(data: dict[str, Any]) -> LanguageModel:
    """The layers by formulas."""
    made = model_from_config(Config(data, "config.json"), "model")
    assert made is not None
    return made


def test_every_architecture_is_compared() -> None:
    """With the real modules, below."""
    assert {name.partition(",")[0] for name in CONFIGS} == set(known_architectures())
    assert set(known_architectures()) == {*FAMILIES, *TOWERS, "t5"}


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    """Every small model on the meta device, by transformers."""
    pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model

    made = {name: meta_model(config(name), name) for name in CONFIGS}
    assert all(model is not None for model in made.values())
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_modules(name: str, modules: dict[str, Any]) -> None:
    """Of each layer, exactly; together they cover all parameters and buffers, and each exists."""
    made, module = read(config(name)), modules[name]
    named = list(module.named_parameters(remove_duplicate=False))
    for layer in made.layers:
        held = {id(p): p.numel() for n, p in named if _covered(n, layer.modules)}
        assert sum(held.values()) == layer.parameters, layer.name
    every = [name for layer in made.layers for name in layer.modules]
    buffers = [name for name, _ in module.named_buffers()]
    assert [n for n in [*(n for n, _ in named), *buffers] if not _covered(n, every)] == []
    assert set(every) <= set(dict(module.named_modules()))
    assert made.parameters() == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_kept_is_what_the_configuration_says(name: str, modules: dict[str, Any]) -> None:
    """Windows, and the products of a token: all parameters of a block but experts not taken."""
    made, module = read(config(name)), modules[name]
    text = module.config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    blocks = [made.layers[k] for k in made.blocks]
    if kinds is not None:
        expected = [text.sliding_window if kind == "sliding_attention" else 0 for kind in kinds]
        assert [block.window for block in blocks] == expected
    for block in blocks:
        assert block.multiplied + block.experts == block.parameters
        assert block.matrices <= block.parameters


def _covered(name: str, modules: Any) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def test_published_sizes() -> None:
    """Llama 3.1 has 8.03 and 70.55 billion parameters, and caches 128 and 320 KiB per token."""
    small, large = read(LLAMA_8B), read(LLAMA_70B)
    assert small.parameters() == 8_030_261_248
    assert large.parameters() == 70_553_706_496
    for model, kib in ((small, 128), (large, 320)):
        cached = sum(layer.cache_width for layer in model.layers) * 2
        assert cached == kib * 1024


def test_experts_are_read_as_often_as_they_are_taken() -> None:
    """Mixtral holds 46.7 billion parameters and multiplies 12.9 billion per token."""
    mixtral = read(
        LLAMA_8B
        | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8}
        | {"num_experts_per_tok": 2, "sliding_window": None}
    )
    assert mixtral.parameters() == 46_702_792_704
    embedding = mixtral.layers[0].parameters
    active = sum(layer.products(1) for layer in mixtral.layers) + embedding
    assert active == pytest.approx(12.88e9, rel=1e-3)
    block, form = mixtral.layers[1], FORMATS["bf16"]
    one, many = block.read_bytes(form, 1), block.read_bytes(form, 1000)
    assert one == pytest.approx(2 * (block.multiplied + block.experts / 4))
    assert many == pytest.approx(block.weight_bytes(form))


def test_latent_attention_caches_the_latent_vector() -> None:
    """DeepSeek-V3: 512 + 64 elements per token and block."""
    assert {x.cache_width for x in read(config("deepseek_v3")).layers[1:-2]} == {16 + 8}


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_missing_size_is_named(key: str) -> None:
    """With the keys under which it may stand."""
    data = {"model_type": "llama", **S}
    del data[key]
    with pytest.raises(InputError, match=rf"config\.json: {key}.*does not state this size"):
        read(data)


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, 10**12])
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    """Zero, negative, not whole, or too large."""
    with pytest.raises(InputError, match="hidden_size: must be a whole number above zero"):
        read({"model_type": "llama", **S, "hidden_size": value})


@pytest.mark.parametrize("value", [-1, 1.5, "1", float("nan"), float("inf"), [1]])
def test_dense_blocks_that_are_no_number_are_refused(value: Any) -> None:
    """As read from a file, which may have NaN; none of them is a model without dense blocks."""
    data = config("deepseek_v3") | {"first_k_dense_replace": value}
    with pytest.raises(InputError, match=r"first_k_dense_replace.*whole number of zero"):
        read(data)
    assert read(data | {"first_k_dense_replace": 0}).layers[1].experts > 0


@pytest.mark.parametrize("kinds", ["sliding_attention", 4, {}, True])
def test_kinds_that_are_no_list_are_refused(kinds: Any) -> None:
    """Not left out: windows would be those of the architecture."""
    with pytest.raises(InputError, match=r"layer_types.*no list for"):
        read(config("gemma3_text") | {"layer_types": kinds})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("opt", {"word_embed_proj_dim": 16}),
        ("opt", {"do_layer_norm_before": False}),
        ("opt", {"enable_bias": False}),
        ("opt", {"layer_norm_elementwise_affine": False}),
        ("stablelm", {"qk_layernorm": True}),
        ("stablelm", {"use_parallel_residual": True}),
        ("deepseek_v2", {"mlp_bias": True}),
        ("qwen2_moe", {"qkv_bias": False}),
    ],
    ids=str,
)
def test_parameters_of_odd_models(name: str, said: dict[str, Any]) -> None:
    """As OPT-350m and StableLM 2 12B: those of transformers' modules, to the last one."""
    pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model

    data = config(name) | said
    module = meta_model(data, name)
    assert module is not None
    assert language_model(data).parameters() == sum(x.numel() for x in module.parameters())


@pytest.mark.parametrize("name", SPARSE)
def test_sizes_that_are_left_out_as_published(name: str) -> None:
    """Are those of transformers' classes, in every layer."""
    pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model

    data = {"model_type": name} | SPARSE[name]
    made, module = read(data), meta_model(data, name)
    assert module is not None
    named = list(module.named_parameters(remove_duplicate=False))
    for layer in made.layers:
        held = {id(p): p.numel() for n, p in named if _covered(n, layer.modules)}
        assert sum(held.values()) == layer.parameters, layer.name
    assert made.longest == module.config.text_config.max_position_embeddings


@pytest.mark.parametrize("name", USUAL)
def test_what_is_usual_is_what_transformers_has(name: str) -> None:
    """Of each key; where it has none, the size follows from others."""
    transformers = pytest.importorskip("transformers")
    kind = transformers.CONFIG_MAPPING[name]
    own = {item.name: item.default for item in dataclasses.fields(kind)}
    called = {"max_position_embeddings": "n_positions", "intermediate_size": "ffn_dim"}
    called |= {key: new for key, new in kind.attribute_map.items() if new in own}
    for key, value in USUAL[name].items():
        assert own[key if key in own else called[key]] == value, key
    sizes = {*own} & {key for row in USUAL.values() for key in row} - {*USUAL[name], *WHOLE}
    follows = {None, False, own.get("num_attention_heads")}
    if "use_sliding_window" not in ODD.get(name, ()):
        assert {own[key] for key in sizes} <= follows


def test_a_module_of_one_block() -> None:
    """Is placed as its configuration is."""
    pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model, model_from_module

    data = config("llama") | {"num_hidden_layers": 1}
    module = meta_model(data, "llama")
    assert module is not None
    made, other = model_from_module(module, "llama"), read(data)
    assert made.parameters() == other.parameters()
    assert [made.layers[k].name for k in made.blocks] == ["block 0"]


@pytest.mark.parametrize("kind", ["nemotron_h", "deepseek_v4", "mamba2"])
def test_configurations_as_transformers_writes_them(kind: str) -> None:
    """Blocks that are listed and not counted, several streams of activations, infinities."""
    transformers = pytest.importorskip("transformers")
    from placewright.layers.devicemap.modules import meta_model

    own = {"head_dim": 8, "num_heads": 16, "n_groups": 1} if kind == "mamba2" else {}
    made = transformers.AutoConfig.for_model(kind, **S, **own)
    data = json.loads(made.to_json_string(use_diff=False))
    module = meta_model(data, kind)
    assert module is not None
    found = language_model(data)
    assert found.parameters() == sum(x.numel() for x in module.parameters())
    assert len([*found.blocks]) == 4
    assert found.hidden == S["hidden_size"] * data.get("hc_mult", 1)


def test_too_many_blocks_are_refused() -> None:
    """They would never end."""
    with pytest.raises(InputError, match="more blocks than any model"):
        read({"model_type": "llama", **S, "num_hidden_layers": 10**6})


def test_more_experts_taken_than_there_are() -> None:
    """Not a model."""
    with pytest.raises(InputError, match="more experts than there are"):
        read(config("mixtral") | {"num_experts_per_tok": 9})


def test_kinds_of_other_numbers_of_blocks_are_refused() -> None:
    """``layer_types`` names each."""
    with pytest.raises(InputError, match="must name the kind of every block"):
        read(config("gemma2") | {"layer_types": ["sliding_attention"]})


def test_names_used_twice_are_refused() -> None:
    """A map by names would lose one of them."""
    layers = (Layer("block 0", ("a",), 1), Layer("block 1", ("a",), 1))
    with pytest.raises(InputError, match="module name 'a' is used twice"):
        LanguageModel("m", "none", layers, 1)
    with pytest.raises(InputError, match="layer name 'block 0' is used twice"):
        LanguageModel("m", "none", (layers[0], layers[0]), 1)
