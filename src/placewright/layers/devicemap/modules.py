"""A PyTorch module, on the meta device or any other, becomes a `LanguageModel`.

Parameters are counted module by module; what is kept per token, and besides, is counted in the
caches of a forward without data, or follows from the configuration where there can be none. For
architectures without formulas, and for models of one's own.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from placewright.errors import InputError, UnsupportedError
from placewright.layers.devicemap.configs import (
    DEPTH,
    HEADS,
    HIDDEN,
    POSITIONS,
    Config,
    published_form,
)
from placewright.layers.devicemap.model import LanguageModel, Layer
from placewright.layers.generation.model_folder import configured, quiet

_TOWER = re.compile(r"vision|visual|tower|audio|speech|image", re.I)
_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")

_DEPTH = (*DEPTH, "decoder_layers", "num_decoder_layers")

_TOKENS, _MANY_TOKENS = (16, 144, 272), (4096, 8192)
"""Lengths of texts whose caches are counted; and where those do not grow evenly, as they keep a
window beside a part of all tokens."""


def model_from_module(module: nn.Module, name: str) -> LanguageModel:
    """Blocks of the longest lists of modules, all else whole, in the order of the modules.

    Raises `UnsupportedError`: it holds no list of blocks.
    """
    config = _config_of(module)
    text = config.part("text_config") if "text_config" in config.data else config
    lists = _block_lists(module, text.size(*DEPTH, default=2))
    if not lists:
        raise UnsupportedError(
            "has no list of blocks to place",
            where=name,
            by=f"got a {type(module).__name__}",
            hint="give a model whose blocks are in an nn.ModuleList or nn.Sequential",
        )
    maker = _Maker(module, text, lists)
    layers = list(maker.layers())
    streams = text.size("hc_mult", default=1)  # of DeepSeek V4
    hidden = text.size(*HIDDEN, default=maker.width()) * streams
    longest = text.size(*POSITIONS, default=2**31 - 1)
    return LanguageModel(
        name,
        str(config.data.get("model_type", type(module).__name__)),
        tuple(layers),
        hidden,
        published_form(config.data),
        0 if longest == 2**31 - 1 else longest,
        lists[-1],
    )


def meta_model(data: Mapping[str, Any], where: str) -> nn.Module | None:
    """The model of a configuration on the meta device, by transformers; ``None`` without it.

    Raises `InputError`: transformers cannot make a model of it.
    """
    try:
        import torch
        from transformers import (
            CONFIG_MAPPING,
            AutoModelForCausalLM,
            AutoModelForImageTextToText,
            AutoModelForSeq2SeqLM,
        )
    except ModuleNotFoundError:
        return None
    if str(data.get("model_type", "")) not in CONFIG_MAPPING:
        return None
    kinds = (AutoModelForImageTextToText, AutoModelForCausalLM, AutoModelForSeq2SeqLM)
    try:
        config = configured(data)
        made = [each for each in kinds if type(config) in each._model_mapping]
        if not made:
            return None
        make: Any = made[0].from_config
        with torch.device("meta"):
            model: nn.Module = make(config, trust_remote_code=False)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise InputError(
            "transformers cannot make a model of this configuration",
            where=where,
            by=f"{type(error).__name__}: {lines[0][:200]}",
            hint="give the config.json of the model as it was published",
        ) from None
    return model


def _config_of(module: nn.Module) -> Config:
    found: Any = getattr(module, "config", None)
    data = found.to_dict() if hasattr(found, "to_dict") else found
    return Config(data if isinstance(data, Mapping) else {}, type(module).__name__)


def _block_lists(module: nn.Module, depth: int) -> list[str]:
    """Qualified names of the lists of blocks, outside of towers; none is inside another.

    `depth`: blocks that the configuration states: a list of one is one of parts without it.
    """
    kinds = (nn.ModuleList, nn.Sequential)
    found: dict[str, int] = {}
    for name, part in module.named_modules():
        inside = any(name.startswith(f"{other}.") for other in found)
        if (
            isinstance(part, kinds)
            and len(part) >= min(2, depth)
            and not inside
            and not _TOWER.search(name)
        ):
            found[name] = sum(p.numel() for p in part.parameters())
    most = max(found.values(), default=0)
    return [name for name, size in found.items() if size and size >= most / 5]


class _Maker:
    """Layers of a module, in its order."""

    def __init__(self, module: nn.Module, config: Config, lists: list[str]) -> None:
        self._module, self._config, self._lists = module, config, lists
        self._owner: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._kept = _counted(module)
        heads = [s for s in ("get_output_embeddings",) if hasattr(module, s)]
        self._head = module.get_output_embeddings() if heads else None  # type: ignore[operator]
        inputs = getattr(module, "get_input_embeddings", None)
        try:
            self._embedding = inputs() if inputs is not None else None
        except NotImplementedError:
            self._embedding = None

    def layers(self) -> Iterator[Layer]:
        """One after another."""
        yield from self._walk("", self._module)

    def width(self) -> int:
        """Elements per token between blocks, where no configuration says it: of the first norm."""
        for part in self._module.modules():
            if isinstance(part, nn.LayerNorm):
                return int(part.normalized_shape[-1])
            if isinstance(part, nn.Linear):
                return int(part.in_features)
        return 1

    def _walk(self, name: str, module: nn.Module) -> Iterator[Layer]:
        if name in self._lists:
            for key, block in module.named_children():
                yield self._block(f"{name}.{key}", block)
            return
        if not any(each.startswith(f"{name}." if name else "") for each in self._lists):
            if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
                yield self._whole(name, module)
            return
        own = [key for key, _ in module.named_parameters(recurse=False)]
        own += [key for key, _ in module.named_buffers(recurse=False)]
        for key in own:
            tensor = getattr(module, key)
            yield Layer(f"{name}.{key}".strip("."), (f"{name}.{key}".strip("."),), tensor.numel())
        for key, child in module.named_children():
            yield from self._walk(f"{name}.{key}".strip("."), child)

    def _whole(self, name: str, module: nn.Module) -> Layer:
        count = sum(p.numel() for p in module.parameters())
        tied = ""
        for parameter in module.parameters():
            tied = self._owner.setdefault(id(parameter), self._title(name, module))
        title = self._title(name, module)
        words = sum(p.numel() for e in module.modules() for p in _table(e))
        tower, head = bool(_TOWER.search(name)), module is self._head
        return Layer(
            title,
            (name,),
            count,
            multiplied=count - words,
            workspace=2 * self._config.size("vocab_size", default=1) if head else 0,
            prompt_share=0.0 if head or tower else 1.0,
            decodes=not tower,
            tied="" if tied == title else tied,
        )

    def _title(self, name: str, module: nn.Module) -> str:
        if module is self._head:
            return "head"
        return "embed" if module is self._embedding else name

    def _block(self, name: str, block: nn.Module) -> Layer:
        encodes = self._encodes(name.rpartition(".")[0])
        kind = "encoder" if encodes else "block"
        k = self._numbers[kind] = self._numbers.get(kind, -1) + 1
        every = list(block.named_parameters())
        routed = sum(p.numel() for n, p in every if _EXPERTS.search(n))
        matrices = sum(p.numel() for n, p in every if p.dim() > 1)
        count = sum(p.numel() for _, p in every)
        config = self._config
        experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts")
        chosen = _first(config, "num_experts_per_tok", "moe_topk", "top_k_experts")
        sparse = bool(routed and experts and chosen and chosen <= experts)
        kept = _Kept() if encodes else self._kept_by(k)
        return Layer(
            f"{kind} {k}",
            (name,),
            count,
            matrices=matrices,
            multiplied=count - (routed if sparse else 0),
            experts=routed if sparse else 0,
            expert_count=experts if sparse else 0,
            experts_chosen=chosen if sparse else 0,
            cache_width=kept.per_token,
            state_width=kept.always,
            window=kept.window,
            attention_width=_attention_width(config) or kept.per_token if kept.per_token else 0,
            workspace=8 * config.size(*HIDDEN, default=self.width()),
            decodes=not encodes,
        )

    def _encodes(self, blocks: str) -> bool:
        """Whether these are the blocks of an encoder, which only a prompt passes."""
        return "encoder" in blocks and len(self._lists) > 1

    def _kept_by(self, k: int) -> _Kept:
        """What block k keeps: by its cache, else by the configuration."""
        if self._kept is None:
            return _stated(self._config, k)
        # Blocks behind those with caches share them (Gemma 3n); those that are passed several times
        # have several.
        decoders = [name for name in self._lists if not self._encodes(name)]
        blocks = sum(len([*self._module.get_submodule(name).children()]) for name in decoders)
        own = self._kept[k::blocks]
        per_token, always = (sum(each[x] for each in own) for x in (0, 1))
        return _Kept(per_token, always, own[0].window if own else 0)


class _Kept(NamedTuple):
    """Elements that a block keeps of a user: per token, of `window` tokens at most, and always."""

    per_token: int = 0
    always: int = 0
    window: int = 0


def _counted(module: nn.Module) -> list[_Kept] | None:
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


def _kept_of(window: int, first: int, lengths: tuple[int, int], pair: Sequence[int]) -> _Kept:
    """Of a block whose cache has `first` elements after `_TOKENS`, and `pair` after `lengths`."""
    if window:
        return _Kept(first // min(_TOKENS[0], window - 1), window=window)
    slope = math.ceil((pair[1] - pair[0]) / (lengths[1] - lengths[0]))
    return _Kept(slope, max(0, pair[0] - slope * lengths[0]))


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


def _table(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False)) if isinstance(module, nn.Embedding) else []


def _first(config: Config, *keys: str) -> int:
    return next((int(v) for key in keys if isinstance(v := config.data.get(key), int)), 0)


def _stated(config: Config, k: int) -> _Kept:
    """What block k keeps by the configuration."""
    kinds = config.kinds
    kind = kinds[k] if k < len(kinds) else "full_attention"
    # Others have a state of fixed size (Mamba, linear attention).
    attends = ("attention" in kind and "linear" not in kind) or kind == "hybrid"
    if not attends or not _attention_width(config):
        return _Kept()
    tokens = config.data.get("sliding_window")
    window = int(tokens) if tokens and "sliding" in kind else 0
    if config.data.get("kv_lora_rank"):
        rope = config.size("qk_rope_head_dim", default=64)
        return _Kept(config.size("kv_lora_rank") + rope, window=window)
    heads = config.size(*HEADS)
    shared = config.size("num_key_value_heads", default=heads)
    both = 2 if config.data.get("is_encoder_decoder") else 1
    return _Kept(2 * shared * _head_width(config) * both, window=window)


def _attention_width(config: Config) -> int:
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
