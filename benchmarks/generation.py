"""Compare tokens per second of a model on workers with `model.generate` in one process.

    python benchmarks/generation.py [--tokens N] [--rounds N]

A Llama of 12 layers, 512 wide, 32-bit numbers, random weights, one core each: in this process, on
one worker, on two. Taken in turns; the best of each round. Ends with 1 where tokens differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from placewright import Cluster, Device, Link
from placewright.layers.generation.generator import Generator

LAYERS = 12


def rate(generate: Callable[[int], Tensor], tokens: int) -> float:
    """Tokens per second, prompt included: the best of three calls."""
    took = []
    for _ in range(3):
        start = time.perf_counter()
        generate(tokens)
        took.append(time.perf_counter() - start)
    return tokens / min(took)


def _greedy(model: Any, ids: Tensor) -> Callable[[int], Tensor]:
    """So many tokens of a model."""

    def generate(count: int) -> Tensor:
        found: Tensor = model.generate(ids, max_new_tokens=count, do_sample=False)
        return found

    return generate


def main() -> int:
    """Print one line for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        eos_token_id=None,
        pad_token_id=0,
    )
    loader: Any = transformers.AutoModelForCausalLM
    model = loader.from_config(config).eval()
    ids = torch.randint(1, config.vocab_size, (1, 32))
    devices = tuple(Device(name, kind="cpu", node=name, cores=1) for name in "ab")
    cluster = Cluster(devices, (Link("a", "b", 1e9, 1e-5), Link("b", "a", 1e9, 1e-5)))
    with (
        Generator(model, {"a": (0, LAYERS)}, cluster) as one,
        Generator(model, {"a": (0, LAYERS // 2), "b": (LAYERS // 2, LAYERS)}, cluster) as two,
    ):
        ways = [_greedy(each, ids) for each in (model, one, two)]
        first, *others = [generate(args.tokens) for generate in ways]
        print("| round | one process | one worker | two workers |\n|---|---:|---:|---:|")
        for number in range(args.rounds):
            rates = [rate(generate, args.tokens) for generate in ways]
            shares = [f"{each:.1f} ({each / rates[0]:.2f})" for each in rates]
            print(f"| {number} | {' | '.join(shares)} |", flush=True)
    return int(not all(torch.equal(each, first) for each in others))


if __name__ == "__main__":
    sys.exit(main())
