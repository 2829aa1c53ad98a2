"""Decode steps of transformers' models: the key-value cache is an input and an output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from placewright.capturing.source import ModelSource

from .transformers_models import TRANSFORMERS, own_loss

_PAST = 4


def _decoder(name: str) -> tuple[Any, torch.Tensor]:
    source = TRANSFORMERS[name]()
    return source.model.eval(), source.inputs["input_ids"]


def _dynamic(name: str, more: Mapping[str, Any] | None = None) -> Callable[[], ModelSource]:
    def make() -> ModelSource:
        model, tokens = _decoder(name)
        with torch.no_grad():
            past = model(tokens[:, :_PAST], use_cache=True).past_key_values
        inputs = {"input_ids": tokens[:, _PAST : _PAST + 1], "past_key_values": past}
        return ModelSource(model, inputs)

    return make


def _static() -> ModelSource:
    from transformers import StaticCache

    model, tokens = _decoder("llama")
    past = StaticCache(config=model.config, max_cache_len=4 * _PAST)
    with torch.no_grad():
        model(tokens[:, :_PAST], past_key_values=past)
    inputs = {"input_ids": tokens[:, _PAST : _PAST + 1], "past_key_values": past}
    return ModelSource(model, inputs)


def _mamba() -> ModelSource:
    model, tokens = _decoder("mamba")
    with torch.no_grad():
        past = model(tokens[:, :_PAST], use_cache=True).cache_params
    inputs = {"input_ids": tokens[:, _PAST : _PAST + 1], "cache_params": past, "use_cache": True}
    return ModelSource(model, inputs)


def _t5() -> ModelSource:
    model, tokens = _decoder("t5")
    with torch.no_grad():
        first = model(tokens, decoder_input_ids=tokens[:, :_PAST], use_cache=True)
    inputs = {
        "encoder_outputs": (first.encoder_last_hidden_state,),
        "decoder_input_ids": tokens[:, _PAST : _PAST + 1],
        "past_key_values": first.past_key_values,
    }
    return ModelSource(model, inputs)


def _prefill() -> ModelSource:
    from transformers import DynamicCache

    model, tokens = _decoder("llama")
    past = DynamicCache(config=model.config)
    return ModelSource(model, {"input_ids": tokens, "past_key_values": past})


def _trained() -> ModelSource:
    decode = _dynamic("llama")()
    tokens = TRANSFORMERS["llama"]().inputs["input_ids"]
    inputs = {**decode.inputs, "input_ids": tokens[:, _PAST:], "labels": tokens[:, _PAST:]}
    return ModelSource(decode.model, inputs, own_loss)


def _checkpointed(reentrant: bool) -> Callable[[], ModelSource]:
    def make() -> ModelSource:
        source = TRANSFORMERS["llama"]()
        how = {"use_reentrant": reentrant}
        source.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)  # type: ignore[operator]
        return source

    return make


DECODING: dict[str, Callable[[], ModelSource]] = {
    "llama, prefill of an empty cache": _prefill,
    "llama, decode with a dynamic cache": _dynamic("llama"),
    "llama, decode with a static cache": _static,
    "mistral, decode with a sliding cache": _dynamic("mistral"),
    "mixtral, decode": _dynamic("mixtral"),
    "gpt2, decode": _dynamic("gpt2"),
    "t5, decode": _t5,
    "mamba, decode": _mamba,
}
"""Name -> factory of the decode step; for inference."""

PAST_TRAINING: dict[str, Callable[[], ModelSource]] = {
    "llama, trained with a past cache": _trained,
    "llama, gradient_checkpointing_enable()": _checkpointed(False),
    "llama, reentrant checkpointing": _checkpointed(True),
}
"""Name -> factory of the training step."""
