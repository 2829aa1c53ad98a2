"""Models of transformers at reduced size, built from configurations: no weights are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from placewright.capturing.source import ModelSource

VOCABULARY, LENGTH, BATCH = 50, 6, 2

_LAYERS = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
           "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip
_DECODER = {**_LAYERS, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
_ENCODER = {**_LAYERS, "max_position_embeddings": 32, "type_vocab_size": 2}
_MIXTRAL = {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN3_MOE = {**_DECODER, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 32}  # fmt: skip
_SEQ2SEQ = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 2}  # fmt: skip
_VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "intermediate_size": 64,
           "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip


def build(class_name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A model of the class `class_name` of transformers, from its configuration."""
    import transformers

    made = getattr(transformers, class_name)
    model: nn.Module = made(made.config_class(**settings))
    return model


def words(**more: Tensor) -> dict[str, Tensor]:
    """Token numbers of a small batch."""
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)), **more}


def causal(
    class_name: str, settings: Mapping[str, Any], dtype: torch.dtype | None = None
) -> Callable[[], ModelSource]:
    """A language model, its tokens, and the loss that it computes itself from labels."""

    def make() -> ModelSource:
        model = build(class_name, settings)
        inputs = words()
        inputs["labels"] = inputs["input_ids"].clone()
        return ModelSource(model.to(dtype or torch.float32), inputs, own_loss, None)

    return make


def own_loss(outputs: Any, _: Any) -> Tensor:
    """The loss that a model of transformers returns when it is given labels."""
    loss: Tensor = outputs.loss
    return loss


def _seq2seq(class_name: str, settings: Mapping[str, Any]) -> Callable[[], ModelSource]:
    def make() -> ModelSource:
        labels = torch.randint(3, VOCABULARY, (BATCH, LENGTH - 1))
        return ModelSource(build(class_name, settings), words(labels=labels), own_loss)

    return make


def _classifier(class_name: str, settings: Mapping[str, Any]) -> Callable[[], ModelSource]:
    def make() -> ModelSource:
        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[1, LENGTH - 2 :] = 0
        labels = torch.randint(0, 2, (BATCH,))
        inputs = words(attention_mask=mask, labels=labels)
        return ModelSource(build(class_name, settings), inputs, own_loss)

    return make


def _images(class_name: str, settings: Mapping[str, Any]) -> Callable[[], ModelSource]:
    def make() -> ModelSource:
        size = int(settings.get("image_size", 32))
        inputs = {
            "pixel_values": torch.randn(BATCH, 3, size, size),
            "labels": torch.randint(0, 2, (BATCH,)),
        }
        return ModelSource(build(class_name, settings), inputs, own_loss)

    return make


def _whisper() -> ModelSource:
    lengths = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
    inputs = {
        "input_features": torch.randn(BATCH, 8, 32),
        "labels": torch.randint(3, VOCABULARY, (BATCH, LENGTH)),
    }
    return ModelSource(
        build("WhisperForConditionalGeneration", _SEQ2SEQ | lengths), inputs, own_loss
    )


def _clip() -> ModelSource:
    text = {**_ENCODER, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    settings = {"text_config": text, "vision_config": dict(_VISION), "projection_dim": 16}
    inputs = words(pixel_values=torch.randn(BATCH, 3, 32, 32))
    inputs["input_ids"][:, -1] = 2
    inputs["return_loss"] = True  # type: ignore[assignment]
    return ModelSource(build("CLIPModel", settings), inputs, own_loss)


TRANSFORMERS: dict[str, Callable[[], ModelSource]] = {
    "llama": causal("LlamaForCausalLM", _DECODER),
    "llama bf16": causal("LlamaForCausalLM", _DECODER, torch.bfloat16),
    "qwen2": causal("Qwen2ForCausalLM", _DECODER),
    "qwen3": causal("Qwen3ForCausalLM", {**_DECODER, "head_dim": 8}),
    "qwen3-moe": causal("Qwen3MoeForCausalLM", _QWEN3_MOE),
    "qwen3-moe bf16": causal("Qwen3MoeForCausalLM", _QWEN3_MOE, torch.bfloat16),
    "mixtral": causal("MixtralForCausalLM", _MIXTRAL),
    "mixtral bf16": causal("MixtralForCausalLM", _MIXTRAL, torch.bfloat16),
    "mistral": causal("MistralForCausalLM", {**_DECODER, "sliding_window": 4}),
    "gemma": causal("GemmaForCausalLM", {**_DECODER, "head_dim": 8}),
    "phi": causal("PhiForCausalLM", _DECODER),
    "gpt-neox": causal("GPTNeoXForCausalLM", _ENCODER | {"hidden_dropout": 0.1}),
    "gpt2": causal(
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    ),
    "opt": causal(
        "OPTForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 32},
    ),
    "falcon": causal(
        "FalconForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4},
    ),
    "bloom": causal(
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "mamba": causal(
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    ),
    "t5": _seq2seq(
        "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
         "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "bart": _seq2seq("BartForConditionalGeneration", _SEQ2SEQ),
    "whisper": _whisper,
    "bert": _classifier("BertForSequenceClassification", _ENCODER),
    "roberta": _classifier("RobertaForSequenceClassification", _ENCODER),
    "distilbert": _classifier(
        "DistilBertForSequenceClassification",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
         "max_position_embeddings": 32},
    ),
    "electra": _classifier("ElectraForSequenceClassification", {**_ENCODER, "embedding_size": 16}),
    "albert": _classifier("AlbertForSequenceClassification", {**_ENCODER, "embedding_size": 16}),
    "vit": _images("ViTForImageClassification", _VISION),
    "deit": _images("DeiTForImageClassification", _VISION),
    "swin": _images(
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 2],
         "num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": _images(
        "ConvNextForImageClassification",
        {"image_size": 32, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
    ),
    "resnet (transformers)": _images(
        "ResNetForImageClassification",
        {"image_size": 32, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),
    "clip": _clip,
}  # fmt: skip
"""Name -> factory of the model in training form."""
