"""A PyTorch module, on the meta device or any other, becomes a `LanguageModel`.

Parameters are counted module by module; `caches` says what each block keeps of a user. For
architectures without formulas, and for models of one's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from placewright.errors import InputError, UnsupportedError
from placewright.layers.devicemap.caches import Kept, attention_width, counted, stated
from placewright.layers.devicemap.configs import (
    DEPTH,
    HIDDEN,
    POSITIONS,
    Config,
    published_form,
)
from placewright.layers.devicemap.model import LanguageModel, Layer
from placewright.layers.generation.model_folder import configured

_TOWER = re.compile(r"vision|visual|tower|audio|speech|image", re.I)
_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


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
        self._kept = counted(module)
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
        kept = Kept() if encodes else self._kept_by(k)
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
            attention_width=attention_width(config) or kept.per_token if kept.per_token else 0,
            workspace=8 * config.size(*HIDDEN, default=self.width()),
            decodes=not encodes,
        )

    def _encodes(self, blocks: str) -> bool:
        """Whether these are the blocks of an encoder, which only a prompt passes."""
        return "encoder" in blocks and len(self._lists) > 1

    def _kept_by(self, k: int) -> Kept:
        """What block k keeps: by its cache, else by the configuration."""
        if self._kept is None:
            return stated(self._config, k)
        # Blocks behind those with caches share them (Gemma 3n); those that are passed several times
        # have several.
        decoders = [name for name in self._lists if not self._encodes(name)]
        blocks = sum(len([*self._module.get_submodule(name).children()]) for name in decoders)
        own = self._kept[k::blocks]
        per_token, always = (sum(each[x] for each in own) for x in (0, 1))
        return Kept(per_token, always, own[0].window if own else 0)


def _table(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False)) if isinstance(module, nn.Embedding) else []


def _first(config: Config, *keys: str) -> int:
    return next((int(v) for key in keys if isinstance(v := config.data.get(key), int)), 0)
