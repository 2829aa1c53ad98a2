"""BERT-base (arXiv:1810.04805) and the small GPT-2, from configurations of transformers.

They have 109.5 and 124.4 million parameters with their language-model heads; no weights are read.
"""

from __future__ import annotations

from typing import Any

from placewright.capturing.zoo.data import token_loss, tokens, transformers_needed


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
