"""Models of transformers on the meta device, with their modules as data."""

from __future__ import annotations

import torch
import transformers
from torch import nn

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "num_hidden_layers": 5,
}

NAMES = ("llama", "llama-tied", "mixtral", "gpt2", "t5", "bert", "llama-8b")


def model(name: str, layers: int = 5) -> nn.Module:
    """A model without values; GPT-2, BERT and T5 tie weights, T5 four of them.

    `layers`: of a Llama.
    """
    with torch.device("meta"):
        made: nn.Module = _made(name, layers)
    made.tie_weights()  # type: ignore[operator]
    return made


def _made(name: str, layers: int) -> nn.Module:
    t = transformers
    if name == "llama-8b":
        size = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
        return t.LlamaForCausalLM(t.LlamaConfig(**size, **heads)).to(torch.bfloat16)
    if name.startswith("llama"):
        sizes = SMALL | {"num_hidden_layers": layers}
        return t.LlamaForCausalLM(t.LlamaConfig(**sizes, tie_word_embeddings="tied" in name))
    if name == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**SMALL, num_local_experts=4))
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_embd=64, n_layer=6, n_head=4, vocab_size=300))
    if name == "t5":
        size = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 4}
        return t.T5ForConditionalGeneration(t.T5Config(**size, vocab_size=300))
    plain = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}
    return t.BertForMaskedLM(t.BertConfig(**plain))
