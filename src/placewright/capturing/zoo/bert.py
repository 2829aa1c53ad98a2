"""BERT-base with its masked-language-model head (arXiv:1810.04805): 109.5 million parameters."""

from __future__ import annotations

from typing import Any

from placewright.capturing.zoo.transformers_needed import transformers_needed
from placewright.capturing.zoo.words import token_loss, tokens


def bert(
    *,
    batch: int = 1,
    sequence: int = 128,
    vocabulary: int = 30_522,
    hidden: int = 768,
    layers: int = 12,
) -> tuple[Any, ...]:
    """BERT on `batch` sequences of `sequence` tokens, built from a configuration, no weights."""
    transformers = transformers_needed("zoo:bert")
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
    )
    model = transformers.BertForMaskedLM(config)
    inputs = {"input_ids": tokens(batch, sequence, vocabulary)}
    return model, inputs, token_loss, tokens(batch, sequence, vocabulary)
