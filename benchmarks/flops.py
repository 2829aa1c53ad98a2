# ruff: noqa: D102 - the docstring of the class describes `forward`
"""Compare counted FLOPs of large models with PyTorch's own counter.

    python benchmarks/flops.py [MODEL ...]

Prints one markdown table: model x step x our FLOPs x the counter's x share without a formula. No
weights are made: models are captured on the meta device, and run under the counter on fake tensors.
Two columns are the counter's: as it is, and with its own formulas applied where it has none or errs
(attention as it is called on CPUs, grouped products, convolutions group by group), which ours must
equal within 1 %, or the command fails. A second table says which share of the peak (MFU) computed
costs promise for training steps in bfloat16, to hold beside published ones. Needs transformers;
some ten minutes on two cores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import (
    FlopCounterMode,
    conv_backward_flop,
    mm_flop,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from harness import Table, run
from placewright import Device, capture
from placewright.cluster.devices import analytic_seconds
from placewright.graph.graph import Graph
from placewright.profiling.profile_warnings import uncounted_shares

aten = torch.ops.aten
CLOSE = 0.01
"""What the counts may differ by."""
GPUS = (
    Device("A100", kind="gpu", peak_flops=312e12, memory_bandwidth=2039e9),
    Device("H100", kind="gpu", peak_flops=989e12, memory_bandwidth=3350e9),
)
"""The vendor's figures, bfloat16 without sparsity."""


def _grouped(a: Any, b: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    """Rows meet one matrix each; stretches of two matrices add up to the whole."""
    if len(a) == len(b) == 2:
        return int(mm_flop(a, b))
    rows = torch.Size(out_shape[:-1]).numel()
    return int(mm_flop((rows, a[-1]), (a[-1], out_shape[-1])))


def _convolution_back(grad: Any, x: Any, w: Any, *rest: Any, out_shape: Any, **_: Any) -> int:
    """The counter's formula for the channels of one group, as many times as there are groups."""
    groups, mask = rest[6], rest[7]
    grad, x = ((t[0], t[1] // groups, *t[2:]) for t in (grad, x))
    w = (w[0] // groups, *w[1:])
    made = (x, w, None)
    found = conv_backward_flop(grad, x, w, *rest[:6], 1, mask, out_val=made)  # type: ignore[call-arg]
    return int(groups * found)


MENDED = {
    aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *s, **_: sdpa_flop_count(*s[:3])  # type: ignore[no-untyped-call]
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *s, **_: sdpa_backward_flop_count(*s[:4])  # type: ignore[no-untyped-call]
    ),
    aten._grouped_mm: _grouped,
    aten.convolution_backward: _convolution_back,
}
"""The counter's own formulas where it has none, or forgets groups; they are given shapes."""


class Residual(nn.Module):
    """Two normalised convolutions; optionally attention over positions."""

    def __init__(self, entering: int, width: int, heads: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, entering), nn.SiLU(), nn.Conv2d(entering, width, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.skip = nn.Conv2d(entering, width, 1)
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip(x) + self.second(self.first(x))
        if not self.heads:
            return x
        batch, width, high, wide = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        mixed = self.out(mixed).transpose(1, 2).reshape(batch, width, high, wide)
        return x + mixed  # type: ignore[no-any-return]


class Diffusion(nn.Module):
    """A U-Net like Stable Diffusion's (arXiv 2112.10752), without text: 64 x 64 latents."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(Residual(a, b, 8) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths)
        self.middle = Residual(widths[-1], widths[-1], 8)
        self.up = nn.ModuleList(Residual(2 * b, a, 8) for a, b in reversed(pairs))
        self.leave = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            kept.append(block(x))
            x = shrink(kept[-1])
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.leave(x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Case:
    """A model and its inputs; `make` is called where tensors have no data."""

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]]
    dtype: torch.dtype = torch.float32


def _words(batch: int, count: int) -> Tensor:
    return torch.zeros(batch, count, dtype=torch.int64)


def cases() -> list[Case]:
    """The models, by configurations of transformers where it has them."""
    import transformers as t

    llama = t.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        use_cache=False,
    )  # fmt: skip
    t5 = t.T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16, use_cache=False)
    whisper = t.WhisperConfig(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20,
        decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=128,
        use_cache=False,
    )  # fmt: skip
    vit = t.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    qwen = t.Qwen3MoeConfig(  # type: ignore[call-arg]
        hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        use_cache=False,
    )  # fmt: skip
    mamba = t.MambaConfig(hidden_size=768, num_hidden_layers=24, use_cache=False)
    half = torch.bfloat16

    def language(kind: Any, config: Any, count: int) -> Callable[[], Any]:
        return lambda: (kind(config), {"input_ids": _words(1, count)})

    return [
        Case("Llama-3-8B, 8192 tokens", language(t.LlamaForCausalLM, llama, 8192), half),
        Case("Mixtral-8x7B, 512 tokens",
             language(t.MixtralForCausalLM, t.MixtralConfig(use_cache=False), 512), half),
        Case("Qwen3-30B-A3B, 512 tokens", language(t.Qwen3MoeForCausalLM, qwen, 512), half),
        Case("Mamba-130M, 32 tokens", language(t.MambaForCausalLM, mamba, 32)),
        Case("BERT-base, 512 tokens", language(t.BertModel, t.BertConfig(), 512)),
        Case("GPT-2, 1024 tokens",
             language(t.GPT2LMHeadModel, t.GPT2Config(use_cache=False), 1024)),
        Case("T5-large, 512 and 128 tokens", lambda: (
            t.T5ForConditionalGeneration(t5),
            {"input_ids": _words(1, 512), "decoder_input_ids": _words(1, 128)})),
        Case("Whisper-large-v3, 30 s and 128 tokens", lambda: (
            t.WhisperForConditionalGeneration(whisper),
            {"input_features": torch.zeros(1, 128, 3000), "decoder_input_ids": _words(1, 128)})),
        Case("ViT-L/16, 8 images", lambda: (
            t.ViTModel(vit), {"pixel_values": torch.zeros(8, 3, 224, 224)})),
        Case("ConvNeXt-T, 8 images", lambda: (
            t.ConvNextModel(t.ConvNextConfig()), {"pixel_values": torch.zeros(8, 3, 224, 224)})),
        Case("diffusion U-Net, 64 x 64", lambda: (Diffusion(), (torch.zeros(1, 4, 64, 64),))),
    ]  # fmt: skip


def main(*names: str) -> int:
    """Print the table; 1 where counts differ by more than they may."""
    warnings.simplefilter("ignore")
    counters = ("counter as it is", "counter mended", "difference")
    sides = ("of elements", "largest share without a formula")
    table, worst = Table("model", "step", "TFLOP", *counters, *sides, left=2), 0.0
    promised: dict[str, list[str]] = {}
    for case in cases():
        if not names or any(name.lower() in case.name.lower() for name in names):
            for step in ("inference", "training"):
                graph, apart, cells = row(case, step == "training")
                worst = max(worst, apart)
                table.row(case.name, step, *cells)
            if case.dtype is torch.bfloat16:
                promised[case.name] = [utilisation(gpu, graph) for gpu in GPUS]
    print()
    table = Table("training step", *(gpu.name for gpu in GPUS))
    for name, shares in promised.items():
        table.row(name, *shares)
    return int(worst > CLOSE)


def utilisation(gpu: Device, graph: Graph) -> str:
    """Share of the GPU's peak that a step reaches, operators one after another."""
    seconds = analytic_seconds(graph.operators, gpu).sum()
    return f"{100 * graph.flops / (seconds * float(gpu.peak_flops or 0.0)):.0f} %"


def row(case: Case, training: bool) -> tuple[Graph, float, list[str]]:
    """One model and step, how far the counts are apart, and the cells."""
    with _typed(case.dtype), torch.device("meta"):
        model, inputs = case.make()
    graph = capture(model, inputs, training=training)
    plain, mended = counted(case, training)
    apart = abs(graph.flops / mended - 1)
    elements = sum(op.elementwise_flops for op in graph.operators)
    shares = max(uncounted_shares(graph).items(), key=lambda item: item[1], default=("none", 0.0))
    counts = [f"{x / 1e12:.3f}" for x in (graph.flops, plain, mended, elements)]
    largest = f"{shares[0]} {100 * shares[1]:.2g} %" if shares[1] else shares[0]
    return graph, apart, [*counts[:3], f"{100 * apart:.2f} %", counts[3], largest]


def counted(case: Case, training: bool) -> tuple[int, int]:
    """What PyTorch's counter says of a step in eager: as it is, and with formulas mended."""
    with _typed(case.dtype), torch.device("meta"):
        model, inputs = case.make()
    with _typed(case.dtype), FakeTensorMode():
        model.train(training)
        _to_cpu(model)
        inputs = tree_map(lambda x: torch.empty(x.shape, dtype=x.dtype), inputs)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        as_it_is = FlopCounterMode(display=False)
        mended = FlopCounterMode(display=False, custom_mapping=MENDED)
        for counter in (as_it_is, mended):
            with counter:
                made = model(*args, **kwargs)
                if training:
                    parts = made.values() if isinstance(made, dict) else (made,)
                    squares = [p.square().mean() for p in parts if isinstance(p, Tensor)]
                    torch.stack(squares).sum().backward()  # type: ignore[no-untyped-call]
    return as_it_is.get_total_flops(), mended.get_total_flops()


def _to_cpu(model: nn.Module) -> None:
    """Fake tensors on the CPU for those of the meta device; what is shared stays shared."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, old in held.items():
                if old is not None:
                    new = made.get(id(old))
                    if new is None:
                        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype)
                        new = nn.Parameter(new) if isinstance(old, nn.Parameter) else new
                        made[id(old)] = new
                    held[name] = new  # type: ignore[assignment]


@contextmanager
def _typed(dtype: torch.dtype) -> Any:
    """Parameters and inputs are made of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


if __name__ == "__main__":
    run(main)
