"""Measure the memory of every process for a model that its launching process never holds.

    python benchmarks/sharded_weights.py [--gigabytes 3] [--folder FOLDER]

A stack of linear layers is made on the meta device, its weights lie in safetensors files, and three
devices have 36 % of its size of memory each. The launching process is one of its own; its peak is
what the kernel says (VmHWM), and the peak of a worker what it has above its memory before it loaded
anything. The answer is compared with eager PyTorch, which reads the same files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, FILES, ROWS = 4096, 6, 8
MB = 1e6


def made(layers: int) -> object:
    """The model."""
    from torch import nn

    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


def example() -> Tensor:
    """The batch."""
    import torch

    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def write(folder: Path, layers: int) -> int:
    """Write the weights, layer by layer; bytes."""
    import torch

    from placewright.io.tensor_files import INDEX, write_tensors

    drawn = torch.Generator().manual_seed(1)
    where: dict[str, str] = {}
    total = 0
    for k in range(FILES):
        shard = {}
        for layer in range(k * layers // FILES, (k + 1) * layers // FILES):
            weight = torch.randn(WIDTH, WIDTH, generator=drawn) * (2 / WIDTH) ** 0.5
            shard[f"{2 * layer}.weight"] = weight
            shard[f"{2 * layer}.bias"] = torch.zeros(WIDTH)
        total += write_tensors(folder / f"part-{k}.safetensors", shard)
        where |= dict.fromkeys(shard, f"part-{k}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return total


def launch(folder: Path, layers: int) -> None:
    """The launching process: place, call, and print what every process needed."""
    import torch
    from safetensors.torch import save_file

    import placewright
    from harness import joined

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    speeds = dict.fromkeys("abc", 1.0)
    cluster = joined("trio", speeds, 1.25e9, 100e-6, memory_bytes=0.36 * size)
    with torch.device("meta"):
        model = made(layers)
    times_s = [time.perf_counter()]
    with placewright.place(
        model, example(), cluster, method="analytic", weights=folder, emulate=False
    ) as placed:
        times_s.append(time.perf_counter())
        answer = placed(example())
        times_s.append(time.perf_counter())
        again = placed(example())
        times_s.append(time.perf_counter())
        used = placed.memory()
        assert torch.equal(answer, again)
        save_file({"y": answer}, folder / "answer.safetensors")
        found = {
            "took_s": [b - a for a, b in pairwise(times_s)],
            "launcher_bytes": peak_bytes(),
            "planner": placed.result.planner,
            "workers": {n: [u.predicted_bytes, u.measured_bytes] for n, u in used.items()},
        }
        print(json.dumps(found))


def peak_bytes() -> int:
    """Largest memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def eager_difference(folder: Path, layers: int) -> float:
    """Largest difference of the placed answer from eager PyTorch, one layer in memory at a time."""
    import torch
    from safetensors.torch import load_file

    from placewright.io.tensor_files import stored_tensors

    torch.set_num_threads(1)
    stored, x = stored_tensors(folder), example()
    with torch.no_grad():
        for layer in range(layers):
            weight = stored[f"{2 * layer}.weight"].read()
            bias = stored[f"{2 * layer}.bias"].read()
            x = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    return float((x - load_file(folder / "answer.safetensors")["y"]).abs().max())


def main(*, gigabytes: float = 3.0, folder: Path | None = None, launch_: int = 0) -> int:
    """Write, launch, compare, print a table; 1 where a limit of the page is not kept."""
    if launch_ and folder is not None:
        launch(folder, launch_)
        return 0
    layers = round(gigabytes * 1e9 / (4 * WIDTH * WIDTH))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        total = write(Path(name), layers)
        command = [sys.executable, __file__, "--folder", name, "--launch", str(layers)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        difference = eager_difference(Path(name), layers)
    print(f"model {total / MB:.0f} MB, {layers} layers; plan by {found['planner']}")
    placed_s, first_s, second_s = found["took_s"]
    print(
        f"place {placed_s:.1f} s, first call (workers start and load) {first_s:.1f} s, "
        f"second call {second_s:.2f} s"
    )
    print(f"launching process: peak {found['launcher_bytes'] / MB:.0f} MB")
    good = found["launcher_bytes"] <= 500e6 + total / 3 and difference == 0
    for device, (predicted, measured) in found["workers"].items():
        error = measured / predicted - 1 if predicted else float("nan")
        sizes = f"judge {predicted / MB:.0f} MB, measured {measured / MB:.0f} MB"
        print(f"worker {device}: {sizes}, {100 * error:+.1f} %")
        good &= abs(error) <= 0.05
    print(f"largest difference from eager PyTorch: {difference:g}")
    return 0 if good else 1


if __name__ == "__main__":
    from harness import run

    run(main)
