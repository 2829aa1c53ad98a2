"""What each block of a language model keeps of a user: keys and values per token, and states.

Counted in the caches that a forward without data leaves; by the configuration where there can be
none: the model takes other inputs, or looks at values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from placewright.layers.devicemap.configs import DEPTH, HEADS, HIDDEN, Config
from placewright.layers.generation.model_folder import quiet

_DEPTH = (*DEPTH, "decoder_layers", "num_decoder_layers")

_TOKENS, _MANY_TOKENS = (16, 144, 272), (4096, 8192)
"""Lengths of texts whose caches are counted; and where those do not grow evenly, as they keep a
window beside a part of all tokens."""


class Kept(NamedTuple):
    """Elements that a block keeps of a user: per token, of `window` tokens at most, and always."""

    per_token: int = 0
    always: int = 0
    window: int = 0


def counted(module: nn.Module) -> list[Kept] | None:
    """What each block keeps, by the caches that a forward on the meta device leaves.

    ``None`` where there is none: the model takes other inputs, or looks at values.
    """
    try:
        module = _without_data(module)
        found = [_caches(module, tokens) for tokens in _TOKENS]
        sizes = [[_elements(layer) for layer in layers] for layers in found]
        if any(len(each) != len(sizes[0]) for each in sizes) or not any(sizes[0]):
            return None
        windows = [_window_of(layer) for layer in found[0]]
        even = all(w or b - a == c - b for w, a, b, c in zip(windows, *sizes, strict=True))
        lengths, ends = (_TOKENS[0], _TOKENS[-1]), (sizes[0], sizes[-1])
        if not even:
            lengths = _MANY_TOKENS
            few, many = ([*map(_elements, _caches(module, tokens))] for tokens in lengths)
            ends = few, many
    except Exception:  # of any library that the model may need
        return None
    return [
        _kept_of(window, first, lengths, pair)
        for window, first, pair in zip(windows, sizes[0], zip(*ends, strict=True), strict=True)
    ]


def _kept_of(window: int, first: int, lengths: tuple[int, int], pair: Sequence[int]) -> Kept:
    """Of a block whose cache has `first` elements after `_TOKENS`, and `pair` after `lengths`."""
    if window:
        return Kept(first // min(_TOKENS[0], window - 1), window=window)
    slope = math.ceil((pair[1] - pair[0]) / (lengths[1] - lengths[0]))
    return Kept(slope, max(0, pair[0] - slope * lengths[0]))


def _window_of(layer: Any) -> int:
    """Tokens of a window, of which its cache keeps all but one; 0 where it keeps others, too."""
    window = getattr(layer, "sliding_window", 0)
    if not isinstance(window, int) or window < 2:
        return 0
    pair = sum(x.numel() for x in (layer.keys, layer.values) if isinstance(x, Tensor))
    return window if _elements(layer) == pair else 0


def _without_data(module: nn.Module) -> nn.Module:
    """A copy on the meta device, without hooks: forwards leave marks (of the longest text, say)."""
    form = torch.bfloat16  # in which products of experts are there
    memo: dict[int, Any] = {}
    for x in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(x, device="meta", dtype=form if x.is_floating_point() else None)
        memo[id(x)] = nn.Parameter(empty, False) if isinstance(x, nn.Parameter) else empty
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return copied.eval()


def _caches(module: nn.Module, tokens: int) -> list[Any]:
    """The cache of every block after so many tokens of one text."""
    text = torch.empty((1, tokens), dtype=torch.int64, device="meta")
    inputs = {"input_ids": text, "use_cache": True}
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = text
    with quiet(), torch.no_grad(), _NoValues():  # type: ignore[no-untyped-call]
        output = module(**inputs)
        found: Any = getattr(output, "past_key_values", None)
        found = found or getattr(output, "cache_params", None)
    both: list[Any] = [getattr(found, f"{x}_attention_cache", None) for x in ("self", "cross")]
    if all(both):
        return [*zip(both[0].layers, both[1].layers, strict=True)]
    return list(getattr(found, "layers", found))


class _NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers 0 where code asks for the value of a tensor that has none, to choose a mask, say."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return torch.zeros((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


def _elements(held: Any) -> int:
    """Of all tensors that a block's cache holds, counters left out."""
    found: dict[int, Tensor] = {}
    left = [held]
    while left:
        each = left.pop()
        if isinstance(each, Tensor):
            found[id(each)] = each
        elif isinstance(each, list | tuple):
            left += each
        elif isinstance(each, Mapping):
            left += each.values()
        elif type(each).__module__.startswith("transformers.") and hasattr(each, "__dict__"):
            left += [x for x in vars(each).values() if not isinstance(x, nn.Module)]
    return sum(each.numel() for each in found.values() if each.dim() > 1)


def stated(config: Config, k: int) -> Kept:
    """What block k keeps by the configuration."""
    kinds = config.kinds
    kind = kinds[k] if k < len(kinds) else "full_attention"
    # Others have a state of fixed size (Mamba, linear attention).
    attends = ("attention" in kind and "linear" not in kind) or kind == "hybrid"
    if not attends or not attention_width(config):
        return Kept()
    tokens = config.data.get("sliding_window")
    window = int(tokens) if tokens and "sliding" in kind else 0
    if config.data.get("kv_lora_rank"):
        rope = config.size("qk_rope_head_dim", default=64)
        return Kept(config.size("kv_lora_rank") + rope, window=window)
    heads = config.size(*HEADS)
    shared = config.size("num_key_value_heads", default=heads)
    both = 2 if config.data.get("is_encoder_decoder") else 1
    return Kept(2 * shared * _head_width(config) * both, window=window)


def attention_width(config: Config) -> int:
    """Heads x (key + value), 0 where the configuration says nothing of them."""
    depth = config.kinds or any(config.data.get(key) for key in _DEPTH)
    if not depth or not any(config.data.get(key) for key in HEADS):
        return 0
    heads, width = config.size(*HEADS), _head_width(config)
    if config.data.get("kv_lora_rank"):
        rope = config.size("qk_rope_head_dim", default=64)
        wide = config.size("qk_nope_head_dim", default=width) + rope
        return heads * (wide + config.size("v_head_dim", default=width))
    return 2 * heads * width


def _head_width(config: Config) -> int:
    return config.size("head_dim", "d_kv", default=config.size(*HIDDEN) // config.size(*HEADS))
