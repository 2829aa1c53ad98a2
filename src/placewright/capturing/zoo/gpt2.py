"""GPT-2, the small one, with its language-model head: 124.4 million parameters."""

from __future__ import annotations

from typing import Any

from placewright.capturing.zoo.transformers_needed import transformers_needed
from placewright.capturing.zoo.words import token_loss, tokens


def gpt2(
    *,
    batch: int = 1,
    sequence: int = 128,
    vocabulary: int = 50_257,
    hidden: int = 768,
    layers: int = 12,
) -> tuple[Any, ...]:
    """GPT-2 on `batch` sequences of `sequence` tokens, built from a configuration, no weights."""
    transformers = transformers_needed("zoo:gpt2")
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=max(1, hidden // 64),
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    inputs = {"input_ids": tokens(batch, sequence, vocabulary)}
    return model, inputs, token_loss, tokens(batch, sequence, vocabulary)
