"""`Stage`: consecutive layers of a language model of transformers, executed by its own code.

The whole model is made on the meta device, which takes no memory, and cut: layers of other stages
are removed, and so are the embedding where the first layer is elsewhere, and the head where the
last one is. What is left is called like the whole model: masks, positions, sliding windows, experts
and caches are those of transformers, for every architecture alike. The activations of the stage
before take the place of what is computed in front of its first layer; behind its last one the call
ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from placewright.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class StageOrder:
    """Which layers, and of which model.

    Attributes
    ----------
    config
        Of the model, as JSON.
    dtype, attention
        Names of its numbers and of the implementation of its attention; empty for the usual one.
    start, end, layers
        Layers [start, end) of so many.
    previous, following
        Devices of the neighbouring stages; ``None`` at either end.
    """

    config: str
    dtype: str
    attention: str
    start: int
    end: int
    layers: int
    previous: int | None = None
    following: int | None = None


class _Passed(Exception):  # noqa: N818 - no error
    """The last layer of a stage has ended; what follows is on another one."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class _NotHere(nn.Module):
    """In place of an embedding: zeros, which nobody reads."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Shape (..., width)."""
        return torch.zeros(*ids.shape, self.width, dtype=self.dtype, device=ids.device)


def skeleton(config: str, dtype: str, attention: str) -> Any:
    """The model on the meta device, for evaluation.

    Raises `UnsupportedError`: transformers has no such language model, or one whose layers are not
    in one list.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    made: Any = AutoModelForCausalLM
    values = json.loads(config)
    kind = values.pop("model_type", "")
    try:
        found = AutoConfig.for_model(kind, **values)
        with torch.device("meta"), _quiet():
            model = made.from_config(
                found, dtype=getattr(torch, dtype), attn_implementation=attention or None
            )
    except ValueError as error:
        why = str(error).strip().splitlines()[0][:200]
        raise UnsupportedError(
            "tokens come from decoder-only language models of transformers",
            where=f"model type {kind!r:.60}",
            by=why,
            hint="export the map, and run it by another program",
        ) from None
    layer_list(model)
    return model.eval()


@cache
def cache_name() -> str:
    """What transformers calls caches: ``cache`` from 5.20 or so on, ``past_key_values`` before."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    names = {each.name for each in fields(CausalLMOutputWithPast)}
    return "cache" if "cache" in names else "past_key_values"


def layer_list(model: Any) -> tuple[Any, str]:
    """The module that has the list of layers, and the list's name in it.

    Raises `UnsupportedError` where there is none: an encoder beside the decoder, for one.
    """
    decoder = model.get_decoder()
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for name, child in decoder.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return decoder, name
    raise UnsupportedError(
        "the model has no list of decoder layers",
        where=type(model).__name__,
        hint="give a decoder-only language model",
    )


class Stage:
    """Layers [start, end) of a model.

    Attributes
    ----------
    model
        What is left of it.
    names
        Parameters and buffers that a checkpoint has: name here -> name in the whole model.
    """

    def __init__(self, order: StageOrder) -> None:
        self.model = skeleton(order.config, order.dtype, order.attention)
        self.first, self.last = order.start == 0, order.end == order.layers
        decoder, name = layer_list(self.model)
        self.tied = dict(getattr(self.model, "all_tied_weights_keys", None) or {})
        prefix = next(n for n, module in self.model.named_modules() if module is decoder)
        self._path, self._start = f"{prefix}.{name}." if prefix else f"{name}.", order.start
        self._cut(decoder, name, order)
        self._hidden: Tensor | None = None
        layers = getattr(decoder, name)
        if not self.first:
            layers[0].register_forward_pre_hook(self._given, with_kwargs=True)
        if not self.last:
            layers[-1].register_forward_hook(self._passed)
        self.decoder: Any = decoder
        self.names = {here: self._whole(here) for here in self.model.state_dict()}

    def _cut(self, decoder: Any, name: str, order: StageOrder) -> None:
        """Remove what belongs to other stages."""
        layers = getattr(decoder, name)[order.start : order.end]
        setattr(decoder, name, layers)
        for module in layers.modules():
            if hasattr(module, "layer_idx") and isinstance(module.layer_idx, int):
                module.layer_idx -= order.start
        for config in (decoder.config, self.model.config):
            config.num_hidden_layers = order.end - order.start
            types = getattr(config, "layer_types", None)
            if types is not None and len(types) == order.layers:
                config.layer_types = list(types[order.start : order.end])
        width, dtype = decoder.config.hidden_size, getattr(torch, order.dtype)
        for child_name, child in list(decoder.named_children()):
            if isinstance(child, nn.Embedding) and not self.first:
                setattr(decoder, child_name, _NotHere(width, dtype))
        head = self.model.get_output_embeddings()
        for child_name, child in list(self.model.named_children()):
            if child is head and not self.last:
                setattr(self.model, child_name, nn.Identity())

    def _whole(self, here: str) -> str:
        """The name in the whole model."""
        if not here.startswith(self._path):
            return here
        number, _, rest = here[len(self._path) :].partition(".")
        return f"{self._path}{int(number) + self._start}.{rest}"

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Put tensors, by name in the whole model, on a device; buffers are computed.

        Raises `UnsupportedError`: one is missing.
        """
        given: dict[str, Tensor] = {}
        for here, whole in self.names.items():
            source = whole if whole in tensors else self.tied.get(whole, whole)
            if source not in tensors:
                raise UnsupportedError(
                    "the checkpoint lacks a tensor",
                    where=whole,
                    hint="give the folder with all of its shards",
                )
            given[here] = tensors[source].to(device)
        self.model.load_state_dict(given, assign=True)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer is not None and buffer.device.type == "meta":
                    module._buffers[name] = torch.empty_like(buffer, device=device)
        for value in (*self.model.parameters(), *given.values()):
            value._is_hf_initialized = True  # what transformers leaves as it is
            value.requires_grad_(False)
        with _quiet():
            self.model.initialize_weights()
        self.model.eval()

    def random_tensors(self) -> dict[str, Tensor]:
        """By name in the whole model, where only the time counts that they take."""
        found = {}
        for here, given in self.model.state_dict().items():
            made = torch.zeros(given.shape, dtype=given.dtype)
            # No zeros: pages that were never written to are all the same one.
            found[self.names[here]] = (
                made.uniform_(-0.05, 0.05) if made.is_floating_point() else made
            )
        return found

    def new_cache(self) -> Any:
        """Keys and values of no token yet."""
        from placewright.layers.generation.caches import growing_cache

        return growing_cache(self.decoder.config)

    @torch.inference_mode()
    def __call__(self, hidden: Tensor | None, inputs: Mapping[str, Any], keys: Any) -> Tensor:
        """Activations behind the last layer, or logits where that is the model's last one.

        `hidden`: activations of the stage before, ``None`` for the first stage.
        `inputs`: of the whole model. `keys`: of `new_cache`; they grow.
        """
        self._hidden = hidden
        try:
            output = self.model(**inputs, **{cache_name(): keys}, use_cache=True)
        except _Passed as passed:
            return passed.hidden
        finally:
            self._hidden = None
        found: Tensor = output.logits
        return found

    def together(
        self,
        hidden: Tensor | None,
        inputs: Mapping[str, Any],
        caches: Sequence[Any],
        rows: Sequence[int],
    ) -> Tensor:
        """The next token of several users, each with so many rows and a cache of its own.

        `inputs`: as of the call, of all rows, without a mask.
        """
        from placewright.layers.generation.caches import JOINED, JoinedCaches

        config = self.decoder.config
        own = config._attn_implementation
        config._attn_implementation = JOINED
        try:
            return self(hidden, inputs, JoinedCaches(caches, rows, own))
        finally:
            config._attn_implementation = own

    def _given(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self._hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self._hidden}

    def _passed(self, module: nn.Module, args: Any, output: Any) -> None:
        raise _Passed(output[0] if isinstance(output, tuple) else output)


def needed_names(stage: Stage) -> Sequence[str]:
    """Tensors of the whole model that a stage loads, tied ones by the name that a file has."""
    return sorted({*stage.names.values(), *(stage.tied.get(n, n) for n in stage.names.values())})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of transformers about weights that are not there yet."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
