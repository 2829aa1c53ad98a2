"""CPU seconds of device maps: Llama 3.1 70B on eight devices that differ, over links that differ.

    python benchmarks/device_map_time.py

One stream, and 64 users at a time, on five clusters that are drawn at random; whether each plan
was proved to be the best.
"""

from __future__ import annotations

import time
from itertools import permutations, product
from typing import Any

import numpy as np

from placewright import Cluster, Device, Link, device_map

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def drawn(seed: int) -> Cluster:
    """Eight GPUs of 16 to 80 GiB, 0.3 to 2 TB/s and 50 to 400 TFLOP/s; links of 1 to 10 GB/s."""
    r, names, devices = np.random.default_rng(seed), [f"gpu{k}" for k in range(8)], []
    for name in names:
        memory, rate, flops = r.uniform(16, 80), r.uniform(0.3e12, 2e12), r.uniform(50e12, 400e12)
        speeds: Any = {"memory_bandwidth": rate, "peak_flops": flops}
        devices.append(Device(name, "gpu", node=name, memory_bytes=memory * 2.0**30, **speeds))
    ends = permutations(names, 2)
    links = [Link(a, b, r.uniform(1e9, 1e10), r.uniform(1e-5, 2e-4)) for a, b in ends]
    return Cluster(tuple(devices), tuple(links), f"drawn-{seed}")


if __name__ == "__main__":
    for seed, users in product(range(5), (1, 64)):
        begin_s = time.process_time()
        found = device_map(LLAMA_70B, drawn(seed), context=2048, users=users)
        took_s = time.process_time() - begin_s
        proof = "proved" if found.proved else f"gap {found.gap:.1%}"
        print(f"{seed}  {users:2} users  {took_s:5.2f} s of CPU  {proof}", flush=True)
