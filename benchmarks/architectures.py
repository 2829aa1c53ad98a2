"""Place every architecture of transformers that can be made small, and compare it with eager.

    python benchmarks/architectures.py forward [KIND ...]
    python benchmarks/architectures.py generate [KIND ...]
    python benchmarks/architectures.py caches [KIND ...]

``forward``: each operator on a random one of two workers, outputs bit for bit. ``generate``: layers
on two devices, cut at another place from kind to kind, three texts at once, tokens. ``caches``: the
elements that a device map counts for a user's six tokens, and those that a forward leaves. Models
have random weights and a few layers; what cannot be made small, or called with usual inputs, is
left out. Exit 1 where one is WRONG.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from harness import KeptRows, Table, run
from placewright import Cluster, Device, Link, PlacewrightError, place
from placewright.errors import UnsupportedError
from placewright.layers.devicemap.reading import language_model
from placewright.layers.generation.generator import Generator
from placewright.runtime.engines.local import Local

VOCABULARY, MOST_PARAMETERS = 96, 60_000_000

SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim", "head_dim", "d_kv"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "sliding_window", "patch_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_2d_position_embeddings"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_key_value_heads"), 4),
    **dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group"), 1),
    "vocab_size": VOCABULARY,
    "d_ff": 48,
    "num_local_experts": 2,
    "image_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_mel_bins": 16,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "dropout": 0.0,
}
"""By the names that configurations have for them."""

UNFIT = ("head_dim", "conv_dim", "conv_stride", "conv_kernel", "num_heads", "hidden_size")
"""Given up one after another where a model cannot be made of all sizes."""

GREEDY: dict[str, Any] = {
    "max_new_tokens": 12,
    "do_sample": False,
    "no_repeat_ngram_size": 1,
    "eos_token_id": None,
}

BOARDS = Cluster(
    (Device("a", kind="cpu", node="m"), Device("b", kind="cpu", node="m")),
    (Link("a", "b", 1e9, 1e-5), Link("b", "a", 1e9, 1e-5)),
)


def main(what: Literal["forward", "generate", "caches"], *kinds: str, kept: KeptRows) -> int:
    """Print a line for each architecture and how many came out how."""
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoModel,
        AutoModelForCausalLM,
        logging,
    )

    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # as workers: with others, sums come out otherwise
    causal = {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    known = sorted(CONFIG_MAPPING if what == "forward" else causal & {*CONFIG_MAPPING})
    auto: Any = AutoModel if what == "forward" else AutoModelForCausalLM
    compared = {"forward": forward, "generate": generated, "caches": cached}[what]
    counts, table = Counter[str](), Table("architecture", "outcome", "why", left=3)
    for number, kind in enumerate(known):
        if kinds and kind not in kinds:
            continue
        found = kept.get(f"{what} {kind}", partial(outcome, kind, number, auto, compared))
        if found is not None:
            counts[found[0]] += 1
            table.row(kind, *found)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int("WRONG" in counts)


def outcome(kind: str, number: int, auto: Any, compared: Callable[..., bool]) -> Sequence[str]:
    """What comes of one architecture: a word, and why."""
    try:
        model = small(kind, auto)
        calls = list(inputs(model, generates=compared is generated))
        if compared is cached:
            calls = [{name: value[1:, :6] for name, value in calls[0].items() if "ids" in name}]
        expected = [eager(model, each, generates=compared is generated) for each in calls]
    except Exception as error:  # of any library that the model may need
        return "left out", f"{type(error).__name__}: {error}"[:120].replace("\n", " ")
    try:
        return ("equal" if compared(model, calls, expected, number) else "WRONG"), ""
    except PlacewrightError as error:
        return "refused", error.brief[:160]
    except Exception as error:
        return "WRONG", f"{type(error).__name__}: {error}"[:160]


def small(kind: str, auto: Any) -> Any:
    """A model of a few layers with random weights, large enough for an error to show."""
    from transformers import CONFIG_MAPPING

    made: Any = CONFIG_MAPPING[kind]
    fields = {name for each in made.__mro__ for name in getattr(each, "__annotations__", {})}
    sizes = {name: value for name, value in SIZES.items() if name in fields}
    while True:
        try:
            config = made(**sizes)
            with torch.device("meta"):
                count = sum(each.numel() for each in auto.from_config(config).parameters())
            break
        except Exception as error:
            wrong = re.search(r"field '(\w+)'", str(error))
            left = [name for name in UNFIT if name in sizes]
            name = wrong[1] if wrong and wrong[1] in sizes else (left or [""])[0]
            if not name:
                raise
            del sizes[name]
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count} parameters")
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(4 if each.dim() > 1 else 1)
    return model


def inputs(model: Any, *, generates: bool) -> Iterator[dict[str, Any]]:
    """What it is called with: two rows, the first padded; for texts one without padding, too."""
    draw = torch.Generator().manual_seed(1)
    takes = inspect.signature(model.forward).parameters
    given: dict[str, Any] = {}
    words = torch.randint(3, VOCABULARY, (2, 9), generator=draw)
    if "input_ids" in takes:
        given["input_ids"] = words
        given["attention_mask"] = torch.ones_like(words)
        given["attention_mask"][0, :4] = 0
        if "decoder_input_ids" in takes:
            given["decoder_input_ids"] = words[:, :5]
    elif "pixel_values" in takes:
        size = getattr(model.config, "image_size", 32)
        side = size if isinstance(size, int) else size[0]
        channels = getattr(model.config, "num_channels", 3)
        given["pixel_values"] = torch.randn(2, channels, side, side, generator=draw)
    elif "input_values" in takes:
        given["input_values"] = torch.randn(2, 4000, generator=draw)
    else:
        bins = getattr(model.config, "num_mel_bins", 80)
        given[model.main_input_name] = torch.randn(2, bins, 128, generator=draw)
    yield {name: value for name, value in given.items() if name in takes}
    if generates:
        yield {"input_ids": words[1:]}
        yield {"input_ids": words[1:]}


def eager(model: Any, given: Mapping[str, Any], *, generates: bool) -> list[Tensor]:
    """What the model gives by itself, twice alike."""
    call = (lambda: [model.generate(**given, **GREEDY)]) if generates else None
    with torch.no_grad():
        found, again = [call() if call else tensors(model(**given)) for _ in range(2)]
    if not alike(found, again):
        raise ValueError("eager gives something else each time")
    return found


def forward(model: Any, calls: Any, expected: Any, number: int) -> bool:
    """Whether all outputs are equal, bit for bit."""
    options: Any = {"planner": "random", "seed": number, "calibrate": False, "trials": False}
    with place(model, calls[0], BOARDS, **options) as placed:
        return alike(tensors(placed(**calls[0])), expected[0])


def generated(model: Any, calls: Any, expected: Any, number: int) -> bool:
    """Whether the tokens of texts that are generated side by side are equal."""
    layers = model.config.get_text_config().num_hidden_layers
    cut = 1 + number % (layers - 1)
    ranges, engine = {"a": (0, cut), "b": (cut, layers)}, Local(driven_by=(0, 0))
    with Generator(model, ranges, BOARDS, engine) as placed, ThreadPoolExecutor(3) as pool:
        placed.prompt_chunk = 4
        texts = pool.map(lambda given: placed.generate(**given, **GREEDY), calls)
        return all(alike([a], b) for a, b in zip(texts, expected, strict=True))


def cached(model: Any, calls: Any, expected: Any, number: int) -> bool:
    """Whether a device map counts what six tokens leave in the caches."""
    with torch.no_grad():
        output = model(**calls[0], use_cache=True)
    caches = output.get("past_key_values", output.get("cache_params"))
    if caches is None:
        raise UnsupportedError("keeps nothing from token to token")
    parts = [getattr(caches, f"{kind}_attention_cache", caches) for kind in ("self", "cross")]
    layers = {id(layer): layer for part in parts for layer in getattr(part, "layers", part)}
    left = sum(elements(each) for each in layers.values())
    counted = sum(layer.kept(6) for layer in language_model(model).layers)
    if counted != left:
        print(f"{model.config.model_type}: counted {counted}, left {left}")
    return counted == left


def elements(held: Any) -> int:
    """Of all tensors in a cache, counters left out."""
    if isinstance(held, Tensor):
        return held.numel() if held.dim() > 1 else 0
    inside = held.values() if isinstance(held, Mapping) else held
    if not isinstance(inside, Iterable):
        inside = vars(held).values() if hasattr(held, "__dict__") else ()
    return sum(map(elements, inside)) if not isinstance(inside, str) else 0


def tensors(found: Any) -> list[Tensor]:
    """All that are in an output, those of caches left out."""
    if isinstance(found, Tensor):
        return [found]
    inside = found.values() if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping | list | tuple):
        return []
    return [tensor for each in inside for tensor in tensors(each)]


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether they are the same numbers, NaN included."""
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(
        a.shape == b.shape and bool((a.isnan() & b.isnan() | (a == b)).all()) for a, b in pairs
    )


if __name__ == "__main__":
    run(main)
