"""Configurations of small models, as transformers makes them, and of published ones."""

from __future__ import annotations

from typing import Any

from placewright.layers.devicemap.model import LanguageModel, Layer

S: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 320, "n_positions": 128}
_GPT |= {key: S[key] for key in ("bos_token_id", "eos_token_id")}
_FALCON = {key: S[key] for key in S if key.startswith(("num_h", "num_a", "vocab", "hidden"))}
_FALCON |= {"bos_token_id": 1, "eos_token_id": 2}
_LATENT = {
    **S,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 176, "num_layers": 3, "num_heads": 4, "vocab_size": 320}
_T5 |= {"decoder_start_token_id": 0}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": S,
    "llama, biases, tied": {
        **S,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 32,
    },
    "mistral": S,
    "mixtral": {**S, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": S,
    "qwen2, windows": {
        **S,
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 2,
    },
    "qwen2, no window": {**S, "use_sliding_window": True, "sliding_window": None},
    "qwen2_moe": {
        **S,
        **_EXPERTS,
        "shared_expert_intermediate_size": 80,
        "decoder_sparse_step": 2,
    },
    "qwen3": S,
    "qwen3_moe": {**S, **_EXPERTS, "mlp_only_layers": [1]},
    "gemma": S,
    "gemma2": S,
    "gemma3_text": {**S, "num_hidden_layers": 7, "sliding_window": 48},
    "phi": S,
    "phi, norms": {**S, "qk_layernorm": True},
    "phi3": S,
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 8},
    "gpt_neox": S,
    "falcon": _FALCON,
    "falcon, grouped": {
        **_FALCON,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "bias": False,
    },
    "falcon, two norms": {**_FALCON, "num_ln_in_parallel_attn": 2},
    "falcon, in sequence": {
        **_FALCON,
        "parallel_attn": False,
        "multi_query": False,
        "bias": True,
        "alibi": True,
    },
    "opt": {
        **{key: S[key] for key in S if key not in ("intermediate_size", "num_key_value_heads")},
        "ffn_dim": 176,
        "word_embed_proj_dim": 64,
    },
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 320},
    "cohere": S,
    "cohere2": S,
    "starcoder2": S,
    "stablelm": S,
    "olmo2": S,
    "olmoe": {**S, "num_experts": 4, "num_experts_per_tok": 2},
    "granite": S,
    "smollm3": S,
    "deepseek_v2": _LATENT,
    "deepseek_v3": {**_LATENT, "n_group": 2, "topk_group": 1},
    "gpt_oss": {
        **S,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "max_position_embeddings": 131072,
    },
    "t5": {**_T5, "num_decoder_layers": 2},
    "t5, gated": {**_T5, "feed_forward_proj": "gated-gelu"},
    "llava": {
        "text_config": {**S, "model_type": "llama"},
        "vision_config": {**_VISION, "model_type": "clip_vision_model", "projection_dim": 32},
    },
    "gemma3": {
        "text_config": {**S, "model_type": "gemma3_text"},
        "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
}
"""By ``model_type``; what follows a comma says what is special."""

_SIGLIP = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "patch_size": 14}
_SIGLIP |= {"num_attention_heads": 16}
_CLIP = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "patch_size": 14}
_CLIP |= {"num_attention_heads": 16}
SPARSE: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {
            **_SIGLIP,
            "model_type": "siglip_vision_model",
            "num_hidden_layers": 27,
            "vision_use_head": False,
        },
    },
    "llava": {
        "text_config": {
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False,
        "vision_config": {
            **_CLIP,
            "model_type": "clip_vision_model",
            "num_hidden_layers": 24,
            "projection_dim": 768,
        },
    },
}
"""As published for Gemma 3 4B and LLaVA 1.5 7B: sizes that are usual are left out."""


def config(name: str) -> dict[str, Any]:
    """A configuration with its ``model_type``."""
    return {"model_type": name.partition(",")[0], **CONFIGS[name]}


LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
"""Llama 3.1."""


def tiny(blocks: int = 3, **changes: Any) -> LanguageModel:
    """An embedding, blocks of ten parameters, and a head."""
    block = {"matrices": 10, "multiplied": 10, "cache_width": 1, "attention_width": 2}
    layers = [
        Layer("embed", ("embed",), 10),
        *(Layer(f"block {k}", (f"blocks.{k}",), 10, **block) for k in range(blocks)),
        Layer("head", ("head",), 10, multiplied=10, prompt_share=0.0),
    ]
    made = {"name": "tiny", "architecture": "none", "layers": tuple(layers), "hidden": 4}
    return LanguageModel(**(made | changes))
