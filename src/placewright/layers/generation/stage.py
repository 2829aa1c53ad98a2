"""`Stage`: consecutive layers of a language model of transformers, executed by its own code.

The whole model is made on the meta device, which takes no memory, and cut: layers of other stages
are removed, and so are the embedding where the first layer is elsewhere, and the head where the
last one is. What is left is called like the whole model: masks, positions, sliding windows, experts
and caches are those of transformers, for every architecture alike. The activations of the stage
before take the place of what is computed in front of its first layer; behind its last one the call
ends. Its weights come from a model in this process, a folder, or are random numbers (`source_of`).
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from placewright.errors import InputError, UnsupportedError
from placewright.io.tensor_files import DTYPES, StoredTensor, stored_tensors
from placewright.layers.generation.model_folder import (
    CONFIG,
    configured,
    from_folder,
    quiet,
    refusing,
)


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
    converted
        Whether weights are those of files, whose numbers become those of the model.
    part
        ``encoder`` or ``decoder`` of a model that has both, whose layers are counted by themselves;
        empty for the others.
    """

    config: str
    dtype: str
    attention: str
    start: int
    end: int
    layers: int
    previous: int | None = None
    following: int | None = None
    converted: bool = False
    part: str = ""


class _Passed(Exception):  # noqa: N818 - no error
    """The last layer of a stage has ended; what follows is on another one."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class _NotHere(nn.Module):
    """In place of an embedding of tokens: no numbers, which nobody may read (`Stage.checked`)."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype, self.place = width, dtype, torch.device("cpu")

    @property
    def weight(self) -> Tensor:
        """Nothing, on the device on which some models look for it."""
        return torch.empty(0, dtype=self.dtype, device=self.place)

    def forward(self, ids: Tensor) -> Tensor:
        """Shape (..., width)."""
        shape = (*ids.shape, self.width)
        return torch.full(shape, torch.nan, dtype=self.dtype, device=ids.device)


class _NoPositions(_NotHere):
    """In place of an embedding of positions, which models call in ways of their own."""

    def forward(self, *tokens: Any, **named: Any) -> Tensor:
        """Shape (1, 1, width): to be added to any tokens."""
        return torch.full((1, 1, self.width), torch.nan, dtype=self.dtype, device=self.place)


def skeleton(config: str, dtype: str, attention: str) -> Any:
    """The model on the meta device, for evaluation.

    Raises `UnsupportedError`: transformers has no such language model, or one whose layers are not
    in one list.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    values = {"model_type": ""} | json.loads(config)
    try:
        found = configured(values)
        made: Any = AutoModelForSeq2SeqLM if found.is_encoder_decoder else AutoModelForCausalLM
        with torch.device("meta"), quiet():
            model = made.from_config(
                found, dtype=getattr(torch, dtype), attn_implementation=attention or None
            )
    except Exception as error:  # the configuration is a file's, and each class has its own
        lines = str(error).strip().splitlines() or [""]
        raise UnsupportedError(
            "tokens come from language models of transformers",
            where=_kind(values),
            by=f"{type(error).__name__}: {lines[0][:200]}",
            hint="export the map, and run it by another program",
        ) from None
    layer_counts(model)
    if cache_name() not in inspect.signature(model.forward).parameters:
        raise UnsupportedError(
            "the model keeps no keys and values in a cache of transformers",
            where=_kind(values),
            hint="generate in one process",
        )
    return model.eval()


def _kind(values: Mapping[str, Any]) -> str:
    """How messages name an architecture."""
    return f"model type {values['model_type']!r:.60}"


def layer_counts(model: Any) -> dict[str, int]:
    """Layers by part, in the order in which they compute; see `StageOrder.part`.

    Raises `UnsupportedError`: they are in no list, or parts are not next to each other.
    """
    if not model.config.is_encoder_decoder:
        decoder, name = layer_list(decoder_of(model))
        return {"": len(getattr(decoder, name))}
    parts = {part: getattr(model, part, None) for part in ("encoder", "decoder")}
    if None in parts.values() or model.config.model_type not in SHARED_BIAS:
        raise UnsupportedError(
            "of models with an encoder, tokens come from T5 only",
            where=type(model).__name__,
            hint="give a decoder-only language model",
        )
    return {part: len(getattr(*layer_list(stack))) for part, stack in parts.items()}


SHARED_BIAS = ("t5", "mt5")
"""Models whose first layer computes a bias of positions for all others of its part."""


@cache
def cache_name() -> str:
    """What transformers calls caches: ``cache`` from 5.20 or so on, ``past_key_values`` before."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    names = {each.name for each in fields(CausalLMOutputWithPast)}
    return "cache" if "cache" in names else "past_key_values"


def decoder_of(model: Any) -> Any:
    """The module that has the layers: some models say that it is themselves, or their head."""
    found = model.get_decoder()
    others = (getattr(model, name, None) for name in ("model", model.base_model_prefix))
    for each in (found, *others):
        with suppress(UnsupportedError):
            return layer_list(each)[0]
    return found


def layer_list(stack: Any) -> tuple[Any, str]:
    """A module that has a list of layers, and the list's name in it.

    Raises `UnsupportedError` where there is none.
    """
    config = getattr(stack, "config", None)
    count = getattr(config and config.get_text_config(), "num_hidden_layers", None)
    for name, child in stack.named_children() if isinstance(stack, nn.Module) else ():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return stack, name
    raise UnsupportedError(
        "the model has no list of layers",
        where=type(stack).__name__,
        hint="give a decoder-only language model",
    )


KINDS = ("layer_types", "layers_block_type")
"""Kinds of layers in configurations of transformers: fields, or computed from a layer's number."""


def _cut_config(config: Any, order: StageOrder) -> None:
    """Let a configuration be of the layers of a stage, which are counted from 0."""
    names = {config.attribute_map.get(name, name) for name in KINDS}
    known = {name: getattr(config, name, None) for name in names}
    try:
        config.num_hidden_layers = order.end - order.start
    except NotImplementedError as error:
        hint = "give a decoder-only language model"
        raise UnsupportedError(str(error), where=type(config).__name__, hint=hint) from None
    for name, kinds in known.items():
        if kinds is None or len(kinds) != order.layers:
            continue
        own = list(kinds[order.start : order.end])
        if isinstance(getattr(type(config), name, None), property):
            fixed = property(partial(_always, own))
            config.__class__ = type(type(config).__name__, (type(config),), {name: fixed})
        else:
            setattr(config, name, own)


def _always(value: Any, config: Any) -> Any:
    """A property's value, of any object."""
    return value


class Stage:
    """Layers [start, end) of a model.

    Attributes
    ----------
    model
        What is left of it.
    names
        Parameters and buffers that a checkpoint has: name here -> name in the whole model.
    computed
        Other buffers, which a model in this process has: as it was cast, and as it was changed.
    """

    def __init__(self, order: StageOrder) -> None:
        self.model = skeleton(order.config, order.dtype, order.attention)
        self.first, self.last = order.start == 0, order.end == order.layers
        self.part, self._converted = order.part, order.converted
        own = getattr(self.model, self.part) if self.part else decoder_of(self.model)
        decoder, name = layer_list(own)
        self.tied = dict(getattr(self.model, "all_tied_weights_keys", None) or {})
        prefix = next(n for n, module in self.model.named_modules() if module is decoder)
        self._path, self._start = f"{prefix}.{name}." if prefix else f"{name}.", order.start
        # Which layers keep what follows in some models from their number in the whole one.
        self._config, self._own = copy.deepcopy(decoder.config), (order.start, order.end)
        self._cut(decoder, name, order)
        self._hidden: Tensor | None = None
        layers = getattr(decoder, name)
        if not self.first:
            layers[0].register_forward_pre_hook(self._given, with_kwargs=True)
        if not self.last:
            layers[-1].register_forward_hook(self._passed)
        self.decoder: Any = decoder
        self._growing = [module for module in self.model.modules() if _grows(module)]
        self._fresh: list[dict[str, Any]] = []
        self.names = {here: self._whole(here) for here in self.model.state_dict()}
        computed = (here for here, _ in self.model.named_buffers() if here not in self.names)
        self.computed = {here: self._whole(here) for here in computed}

    def _cut(self, decoder: Any, name: str, order: StageOrder) -> None:
        """Remove what belongs to other stages."""
        layers = getattr(decoder, name)[order.start : order.end]
        if self.part:
            self._cut_part(getattr(decoder, name)[0], layers[0])
        setattr(decoder, name, layers)
        for module in layers.modules():
            for number in ("layer_idx", "layer_id"):
                if isinstance(getattr(module, number, None), int):
                    setattr(module, number, getattr(module, number) - order.start)
        for config in {id(each): each for each in (decoder.config, self.model.config)}.values():
            _cut_config(config, order)
        dtype = getattr(torch, order.dtype)
        words = decoder.get_input_embeddings()
        for child_name, child in list(decoder.named_children()):
            if isinstance(child, nn.Embedding) and not self.first:
                kind = _NotHere if child is words else _NoPositions
                setattr(decoder, child_name, kind(child.embedding_dim, dtype))
        head = self.model.get_output_embeddings()
        for child_name, child in list(self.model.named_children()):
            if child is head and not self.last:
                setattr(self.model, child_name, nn.Identity())

    def _cut_part(self, begin: Any, first: Any) -> None:
        """Remove the other part; let the first layer here compute the bias of positions."""
        other = "decoder" if self.part == "encoder" else "encoder"
        for name in (other, "shared"):  # each part has the embedding, too
            setattr(self.model, name, nn.Identity())
        if self.part == "encoder":
            self.model.lm_head = nn.Identity()
        known, attention = (each.layer[0].SelfAttention for each in (begin, first))
        attention.has_relative_attention_bias = True
        attention.relative_attention_bias = known.relative_attention_bias

    def _whole(self, here: str) -> str:
        """The name in the whole model."""
        if not here.startswith(self._path):
            return here
        number, _, rest = here[len(self._path) :].partition(".")
        if rest.endswith("relative_attention_bias.weight"):  # there is one
            return f"{self._path}0.{rest}"
        return f"{self._path}{int(number) + self._start}.{rest}"

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Put tensors, by name in the whole model, on a device; buffers are computed.

        Raises `UnsupportedError`: one is missing, or has another shape.
        """
        given: dict[str, Tensor] = {}
        made: dict[tuple[str, torch.dtype], Tensor] = {}
        wanted = self.model.state_dict()
        kinds = self._kinds(wanted) if self._converted else {}
        for here, whole in self.names.items():
            source = whole if whole in tensors else self.tied.get(whole, whole)
            if source not in tensors:
                raise UnsupportedError(
                    "the checkpoint lacks a tensor",
                    where=whole,
                    hint="give the folder with all of its shards; where transformers gives tensors "
                    "other names as it loads them, load the model, and give that",
                )
            if tensors[source].shape != wanted[here].shape:
                raise UnsupportedError(
                    "a tensor of the checkpoint has another shape than the model",
                    where=whole,
                    by=f"{tuple(tensors[source].shape)}, not {tuple(wanted[here].shape)}",
                    hint="give the config.json that belongs to the weights",
                )
            number = source, kinds.get(here, tensors[source].dtype)
            if number not in made:  # tied ones are one
                made[number] = tensors[source].to(device, number[1])
            given[here] = made[number]
        self.model.load_state_dict(given, assign=True)
        for module in self.model.modules():
            if isinstance(module, _NotHere):
                module.place = device
            for name, buffer in module.named_buffers(recurse=False):
                if buffer is not None and buffer.device.type == "meta":
                    module._buffers[name] = torch.empty_like(buffer, device=device)
        for value in (*self.model.parameters(), *given.values()):
            value._is_hf_initialized = True  # what transformers leaves as it is
            value.requires_grad_(False)
        if not self.part:  # a part of a model has no buffers, and lacks what that initializes
            try:
                with quiet():
                    self.model.initialize_weights()
            except Exception as error:
                raise _not_apart(self.model, error) from error
        for here, whole in self.computed.items():
            if whole in tensors:
                path, _, name = here.rpartition(".")
                self.model.get_submodule(path)._buffers[name] = tensors[whole].to(device)
        self.model.eval()
        self._fresh = [_noted(module) for module in self._growing]

    def _kinds(self, wanted: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
        """Of numbers, as `from_pretrained` has them: some stay in 32 bits, as routers do."""
        plan = self.model._get_dtype_plan(self.model.dtype)
        kept = re.compile("|".join(name.replace("*", ".*") for name in plan) or "(?!)")
        return {
            here: torch.float32 if kept.search(self.names[here]) else each.dtype
            for here, each in wanted.items()
            if each.is_floating_point()
        }

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
        from transformers import DynamicCache, EncoderDecoderCache

        from placewright.layers.generation.caches import growing_cache

        if self.part == "encoder":
            return None
        own = growing_cache(self._config, *self._own)
        own.rotations = self._fresh
        if self.part:  # those of what the encoder gave do not grow
            return EncoderDecoderCache(own, DynamicCache(config=self.decoder.config))
        return own

    @torch.inference_mode()
    def __call__(self, hidden: Tensor | None, inputs: Mapping[str, Any], keys: Any) -> Tensor:
        """Activations behind the last layer, or logits where that is the model's last one.

        `hidden`: activations of the stage before, ``None`` for the first stage.
        `inputs`: of the whole model; see `_of_part`. `keys`: of `new_cache`; they grow.
        """
        self._hidden = hidden
        try:
            if self.part == "encoder":
                found: Tensor = self.decoder(**inputs).last_hidden_state
                return found
            given = self._of_part(inputs) if self.part else inputs
            with self._rotations(keys):
                found = self.model(**given, **{cache_name(): keys}, use_cache=True).logits
        except _Passed as passed:
            return passed.hidden
        finally:
            self._hidden = None
            if hasattr(keys, "seen"):
                keys.seen += inputs["input_ids"].shape[1]
        return found

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Refuse, while it computes for the first time, a model that cannot be cut here.

        Raises `UnsupportedError`: a layer reads more than the activations before it, or keeps what
        it computes in a module, where that of several users would mix: a cache is one user's; or
        the model raises.
        """
        layers, watch, before = getattr(*layer_list(self.decoder)), _Watch(), self._held()
        apart = [] if self.first and self.last else layers
        watches = [x.register_forward_pre_hook(watch.enters, with_kwargs=True) for x in apart]
        watches += [x.register_forward_hook(watch.ends, prepend=True) for x in apart]
        try:
            yield
        except UnsupportedError:
            raise
        except Exception as error:
            raise _not_apart(self.model, error) from error
        finally:
            for each in watches:
                each.remove()
        for name, kept in self._held().items():
            if before.get(name) is not kept:
                raise UnsupportedError(
                    "a module keeps what it computes for the next token",
                    where=name,
                    by="workers have one for all users",
                    hint="generate in one process",
                )

    @property
    def passed(self) -> tuple[int, ...]:
        """Shape of a token's activations between layers, of several streams in some models."""
        streams = getattr(self.decoder.config, "hc_mult", None)
        width = int(self.decoder.config.hidden_size)
        return (streams, width) if streams else (width,)

    @contextmanager
    def _rotations(self, keys: Any) -> Iterator[None]:
        """Those of this user: the length of another one does not count."""
        if not self._growing:
            yield
            return
        for module, noted in zip(self._growing, keys.rotations, strict=True):
            vars(module).clear()
            vars(module).update(noted | {"_buffers": dict(noted["_buffers"])})
        try:
            yield
        finally:
            keys.rotations = [_noted(module) for module in self._growing]

    def _held(self) -> dict[str, Tensor]:
        """Tensors that modules hold beside parameters and buffers; tables of angles are known."""
        return {
            f"{path}.{name}": value
            for path, module in self.model.named_modules()
            if not _ropes(module)
            for name, value in vars(module).items()
            if isinstance(value, Tensor)
        }

    def _of_part(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs of a decoder behind an encoder.

        ``encoded``, what the encoder gave, comes once: its keys and values are in the caches then.
        """
        given = dict(inputs)
        ids, mask = given.pop("input_ids"), given["attention_mask"]
        encoded = given.pop("encoded", None)
        if encoded is None:
            encoded = torch.zeros((), device=ids.device, dtype=self.model.dtype)
            encoded = encoded.expand(*mask.shape, self.decoder.config.hidden_size)
        encoded = encoded.to(self.model.dtype)
        return given | {"decoder_input_ids": ids, "encoder_outputs": (encoded,)}

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


class _Watch:
    """What layers get beside the activations of the one before them, while they compute once."""

    def __init__(self) -> None:
        self._others: list[Tensor] = []
        self._begins = False

    def enters(self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A forward pre-hook: refuses what is computed of embeddings, or by the layer before."""
        self._begins = any(value is None for value in args[1:])
        for name, value in (*enumerate(args[1:], 1), *kwargs.items()):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            embedded = name != "hidden_states" and bool(value.isnan().any())
            if embedded or any(value is other for other in self._others):
                raise _needs_others(layer, f"argument {name}")

    def ends(self, layer: nn.Module, args: Any, output: Any) -> None:
        """A forward hook: refuses what a first layer, which was given nothing, gives the next."""
        rest = output[1:] if isinstance(output, tuple) else ()
        self._others = [each for each in rest if isinstance(each, Tensor)]
        if self._others and self._begins:
            raise _needs_others(layer, "its second output")


def _not_apart(model: Any, error: Exception) -> UnsupportedError:
    """The error of a model whose own code does not bear that layers are missing."""
    lines = str(error).strip().splitlines() or [""]
    return UnsupportedError(
        "some of the model's layers cannot be computed apart from the others",
        where=type(model).__name__,
        by=f"{type(error).__name__}: {lines[0][:200]}",
        hint="give all layers to one device, or generate in one process",
    )


def _needs_others(layer: nn.Module, what: str) -> UnsupportedError:
    """The error of a layer that passes, or is passed, more than activations."""
    return UnsupportedError(
        "a layer needs more of those before it, which may be on another device, than activations",
        where=f"{type(layer).__name__}: {what}",
        hint="give all layers to one device",
    )


def rotates_by_length(model: Any) -> bool:
    """Whether positions are rotated by angles that change as the text becomes longer."""
    return any(_grows(module) or "longrope" in _ropes(module) for module in model.modules())


def positions_in_table(model: Any) -> int | None:
    """Positions of which a model has a table; ``None`` where it computes them."""
    decoder = decoder_of(model)
    words = decoder.get_input_embeddings()
    others = [x for x in decoder.children() if isinstance(x, nn.Embedding) and x is not words]
    found = [each.num_embeddings - getattr(each, "offset", 0) for each in others]
    found += [len(each) for name, each in decoder.named_buffers() if "embed_positions" in name]
    return min(found, default=None)


def _ropes(module: nn.Module) -> tuple[str, ...]:
    """Kinds of rotations, which some models have by type of layer."""
    found = getattr(module, "rope_type", ())
    return (found,) if isinstance(found, str) else tuple(dict(found).values())


def _grows(module: nn.Module) -> bool:
    """Whether it notes the longest text so far, for which it computes the angles."""
    return any("dynamic" in kind for kind in _ropes(module))


def _noted(module: nn.Module) -> dict[str, Any]:
    """What a module has at this time."""
    return vars(module) | {"_buffers": dict(module._buffers)}


def needed_names(stage: Stage) -> Sequence[str]:
    """Tensors of the whole model that a stage loads, tied ones by the name that a file has.

    Buffers that no file has are among them.
    """
    own = {*stage.names.values(), *stage.computed.values()}
    return sorted({*own, *(stage.tied.get(name, name) for name in own)})


def _own_numbers(module: nn.Module, path: str) -> tuple[str, ...]:
    """Attributes that say how a module computes; those of the root are of other things."""
    if not path or _grows(module):
        return ()
    found = (name for name, value in vars(module).items() if isinstance(value, int | float))
    return tuple(name for name in found if name[0] != "_" and name not in STATES)


STATES = ("training", "gradient_checkpointing", "vocab_size")
"""Attributes of modules that change no text, or go with the shape of a weight."""


def _differs(module: nn.Module, made: nn.Module | None, numbers: Sequence[str]) -> str:
    """In which way a module is not as its configuration makes it; empty for none."""
    if made is None:
        return "is not there"
    if type(module) is not type(made):
        return f"is a {type(module).__name__}, not a {type(made).__name__}"
    if "forward" in vars(module):
        return "has a forward of its own"
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        if getattr(hook, "__module__", "").partition(".")[0] != "transformers":
            return "has a hook"
    for name in numbers:
        own, other = getattr(module, name), getattr(made, name, None)
        if own != other:
            return f"has {name} {own}, not {other}"
    return ""


def _changed(where: str, why: str) -> UnsupportedError:
    """The error of a model that workers would make otherwise."""
    return UnsupportedError(
        "workers make the model of its configuration, and this one is another",
        where=where,
        by=why,
        hint="give the model as its class makes it: merge adapters, remove hooks",
    )


class Loaded:
    """A model in this process.

    Raises `UnsupportedError`: it is none of transformers.
    """

    stored: Mapping[str, StoredTensor] = MappingProxyType({})

    def __init__(self, model: Any) -> None:
        model = getattr(model, "_orig_mod", model)  # of `torch.compile`
        if not hasattr(model, "generate") or not hasattr(model, "get_decoder"):
            raise UnsupportedError(
                "tokens come from decoder-only language models of transformers",
                where=type(model).__name__,
                hint="give one, or its folder",
            )
        self._state: Mapping[str, Tensor] = _computed(model) | model.state_dict()
        self._tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
        self._model, self._generation = model, model.generation_config
        self.config = model.config.to_json_string(use_diff=False)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.attention = model.config._attn_implementation or "eager"

    @property
    def nbytes(self) -> float:
        """Of all tensors."""
        return float(sum(each.nbytes for each in self._state.values()))

    def demand_made_by(self, shell: Any) -> None:
        """Raise where workers, which have the configuration and weights alone, made another model.

        Raises `UnsupportedError`: a module is of another class, has a hook or another number.
        """
        made = dict(shell.named_modules())
        for path, module in self._model.named_modules():
            if why := _differs(module, made.pop(path, None), _own_numbers(module, path)):
                raise _changed(path or type(module).__name__, why)
        if made:
            raise _changed(next(iter(made)), "is not in it")
        for path in self._model.state_dict().keys() ^ shell.state_dict().keys():
            raise _changed(path, "is in one of them only")
        for path, other in self._tied.items():
            if self._state[path].data_ptr() != self._state[other].data_ptr():
                raise _changed(path, f"is not {other}, to which the configuration ties it")

    def generation_config(self, shell: Any) -> Any:
        """What `generate` does where an option is not given."""
        return self._generation

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs; of tied ones one."""
        copies = {n for n in names if self._tied.get(n, n) != n and self._tied[n] in names}
        own = [n for n in names if n in self._state and n not in copies]
        return {n: self._state[n].detach().contiguous().clone() for n in own}


def _computed(model: nn.Module) -> dict[str, Tensor]:
    """Buffers by name; angles that have grown with a text as they were before."""
    found = dict(model.named_buffers())
    for path, module in model.named_modules():
        for name in module._buffers if _grows(module) else ():
            first = name.replace("inv_freq", "original_inv_freq")
            if first in module._buffers:
                found[f"{path}.{name}"] = found[f"{path}.{first}"]
    return found


class Checkpoint:
    """The folder of a model with its ``config.json`` and safetensors.

    Raises `InputError`: one of them is not there, or damaged; files of two saves are mixed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not (self._folder / CONFIG).is_file() or not any(self._folder.glob("*.safetensors")):
            missing = "*.safetensors" if (self._folder / CONFIG).is_file() else CONFIG
            hint = "give the folder that save_pretrained has written"
            raise InputError(
                "is no model of transformers", where=str(folder), by=missing, hint=hint
            )
        from transformers import AutoConfig

        found = from_folder(AutoConfig, self._folder)
        with refusing(self._folder):
            self.config = found.to_json_string(use_diff=False)
        self.attention = ""
        self.stored = stored_tensors(self._folder)
        kinds = (DTYPES[each.dtype] for each in self.stored.values())
        first = next((kind for kind in kinds if kind.is_floating_point), None)
        with refusing(self._folder):
            self.dtype = _dtype_name(found.dtype or first)
        self.nbytes = float(sum(each.size for each in self.stored.values()))

    def generation_config(self, shell: Any) -> Any:
        """What its folder says of `generate`."""
        from transformers import GenerationConfig

        if (self._folder / "generation_config.json").is_file():
            return from_folder(GenerationConfig, self._folder)
        return shell.generation_config

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs."""
        return {name: self.stored[name].read() for name in names if name in self.stored}


def _dtype_name(dtype: Any) -> str:
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype is no type of numbers: {dtype!r:.60}")
    return str(dtype or torch.float32).removeprefix("torch.")


class RandomWeights:
    """A model without weights: workers get their stages by `Generator.give`.

    Parameters
    ----------
    config
        Of transformers, as JSON.
    dtype
        Of the weights: ``float32``, ``bfloat16``, ``float16``.
    """

    stored: Mapping[str, StoredTensor] = MappingProxyType({})

    def __init__(self, config: str, dtype: str, nbytes: float = 0.0) -> None:
        self.config, self.dtype, self.attention, self.nbytes = config, dtype, "", nbytes

    def generation_config(self, shell: Any) -> Any:
        """That of its architecture."""
        return shell.generation_config


Source: TypeAlias = Loaded | Checkpoint | RandomWeights


def source_of(model: Any) -> Source:
    """That of a model, or of its folder."""
    if isinstance(model, RandomWeights):
        return model
    return Checkpoint(model) if isinstance(model, str | Path) else Loaded(model)
