"""Compare predicted and measured tokens per second of splits of language models.

    python benchmarks/generation_splits.py [--model llama|gpt2] [--rounds N] [--tokens N]

Three unequal nodes of a testbed (CPU quotas, shaped links), none of which holds the model; random
weights, 32-bit numbers, one stream. In parts, what `device_map(measure="testbed")` does: layers and
links are timed on the nodes, and a split is chosen. Before each further round they are timed once
more, for predictions that saw what else the machine did. The chosen split, those that other
programs make and random ones that fit, 12 in all, are generated with in turns. Of a round the mean
of the tokens behind the first counts, the fastest and the slowest quarter left out; of a split its
fastest round. Ends with 1 where tokens of two splits differ.

The nodes go before other processes of the machine, up to their quotas, and so do their links and
this process: a machine of one's own would not be shared.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

import placewright
from harness import Table, accuracy, llama, run
from placewright import Cluster, Device, Link
from placewright.layers.devicemap.baselines import baselines
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.planners import plan_map
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem
from placewright.layers.generation.generator import TokenClock, generating
from placewright.layers.generation.layer_timer import LayerTimer
from placewright.layers.generation.worker import middle_mean
from placewright.testbed import Testbed

SPEEDS = {"a": 0.45, "b": 0.3, "c": 0.15}
"""Of one core."""

ROOM = {"a": 0.45, "b": 0.5, "c": 0.9}
"""Memory, as a share of the whole model's bytes: the slowest has most."""

SPLITS, PROMPT = 12, 16


def gpt2() -> Any:
    """A GPT-2 with random weights."""
    config = transformers.GPT2Config(
        vocab_size=16000,
        n_embd=896,
        n_layer=10,
        n_head=14,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    loader: Any = transformers.AutoModelForCausalLM
    return loader.from_config(config).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: llama(16000, 768, 2048, 12, 12, num_key_value_heads=4),
    "gpt2": gpt2,
}


def nodes(model: Any) -> Cluster:
    """Three on a network of 100 Mbit/s."""
    total = sum(each.nbytes for each in {*model.parameters()})
    devices = tuple(
        Device(n, node=n, speed=SPEEDS[n], memory_bytes=ROOM[n] * total / 0.9) for n in SPEEDS
    )
    pairs = itertools.permutations(SPEEDS, 2)
    links = tuple(Link(a, b, 12.5e6, 2e-3) for a, b in pairs)
    return Cluster(devices, links, f"generation {os.getpid()}")


@contextmanager
def undisturbed(cluster: Cluster) -> Iterator[None]:
    """The testbed, up and preferred to what else runs here."""
    with Testbed.up(cluster) as bed:
        v1 = bed.trees.cpu / bed.plan.id / "cpu.shares"
        if v1.exists():
            v1.write_text(str(1 << 18))
        else:
            (v1.parent / "cpu.weight").write_text("10000")
        for pid in (os.getpid(), bed.handle("a").emulator_pid):
            os.setpriority(os.PRIO_PROCESS, pid, -15)
        yield


def plan_of(problem: MapProblem, ranges: dict[str, tuple[int, int]]) -> MapPlan:
    """Ranges of blocks, with what is before the first and behind the last one."""
    blocks, names = problem.model.blocks, problem.cluster.device_names
    ends = [blocks[end] if end < len(blocks) else problem.n for _, end in ranges.values()]
    starts = [0, *ends[:-1]]
    devices = [names.index(name) for name in ranges]
    return MapPlan(tuple(map(LayerRange, devices, starts, ends)))


def ranges_of(problem: MapProblem, plan: MapPlan) -> dict[str, tuple[int, int]]:
    """What workers execute of a plan."""
    blocks, found = problem.model.blocks, {}
    for each in plan.ranges:
        start, end = (sum(b < edge for b in blocks) for edge in (each.start, each.end))
        if start < end:
            found[problem.cluster.device_names[each.device]] = (start, end)
    return found


def others(problem: MapProblem) -> dict[str, MapPlan]:
    """Plans of other programs, which take the nodes for GPUs."""
    devices = tuple(replace(each, kind="gpu") for each in problem.cluster.devices)
    return baselines(problem.replace(cluster=replace(problem.cluster, devices=devices)))


def splits(
    problem: MapProblem, chosen: dict[str, tuple[int, int]]
) -> dict[str, dict[str, tuple[int, int]]]:
    """By name: ours, those of others, and random ones that fit."""
    found = {"chosen": chosen}
    for name, plan in others(problem).items():
        ranges = ranges_of(problem, plan)
        if judge(problem, plan_of(problem, ranges)).feasible:
            found[name] = ranges
        else:
            print(f"{name} {shown(ranges)} does not fit")
    draw, count = random.Random(1), len(problem.model.blocks)
    while len({str(each) for each in found.values()}) < SPLITS:
        order = draw.sample([*SPEEDS], draw.choice([2, 3]))
        ends = [*sorted(draw.sample(range(1, count), len(order) - 1)), count]
        ranges = dict(zip(order, zip([0, *ends], ends, strict=False), strict=False))
        fits = judge(problem, plan_of(problem, ranges)).feasible
        if fits and ranges not in found.values():
            found[f"random {len(found)}"] = ranges
    return found


def shown(ranges: dict[str, tuple[int, int]]) -> str:
    """Blocks by device, in order."""
    return " ".join(f"{name}:{end - start}" for name, (start, end) in ranges.items())


def token_s(placed: Any, ids: torch.Tensor, count: int) -> tuple[float, torch.Tensor]:
    """Seconds of a token behind the first one, and all tokens."""
    clock = TokenClock()
    found = placed.generate(ids, max_new_tokens=count, do_sample=False, streamer=clock)
    return middle_mean(clock.seconds[1:]), found


def main(*, model: Literal["llama", "gpt2"] = "llama", rounds: int = 3, tokens: int = 12) -> int:
    """Print a table, and what it says; 1 where tokens of two splits differ."""
    torch.manual_seed(0)
    made = MODELS[model]()
    cluster, ids = nodes(made), torch.randint(1, 16000, (1, PROMPT))
    with undisturbed(cluster), tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return compare(rounds, tokens, Path(folder), cluster, ids)


def compare(rounds: int, count: int, folder: Path, cluster: Cluster, ids: torch.Tensor) -> int:
    """Generate with every split in turns, and print the lines."""
    options: Any = {"context": PROMPT + count, "prompt": PROMPT, "dtype": "f32"}
    problem = placewright.device_map(folder, cluster, **options).problem
    known: Any = transformers.AutoConfig
    config = known.from_pretrained(folder)
    measured: dict[str, list[float]] = {}
    first, same, names = None, True, cluster.device_names
    begun = {names[0]: (0, 4), names[1]: (4, 8), names[2]: (8, config.num_hidden_layers)}
    with generating(folder, begun, cluster, engine="testbed") as placed:
        timer = LayerTimer(placed, config, "float32", PROMPT + count)
        for number in range(rounds):
            timer.measure()
            problem = problem.replace(times=timer.times())
            if number == 0:
                chosen = plan_map(problem).best
                assert chosen is not None
                tried = splits(problem, ranges_of(problem, chosen.plan))
            for name, ranges in tried.items():
                placed.load(ranges)
                took, tokens = token_s(placed, ids, count)
                measured.setdefault(name, []).append(took)
                first = tokens if first is None else first
                same = same and torch.equal(tokens, first)
    predicted = {n: judge(problem, plan_of(problem, r)).token_s for n, r in tried.items()}
    least = {name: min(each) for name, each in measured.items()}
    table = Table("split", "blocks", "predicted, tokens/s", "measured", "error", left=2)
    for name, ranges in tried.items():
        rates = [f"{1 / x[name]:.2f}" for x in (predicted, least)]
        table.row(name, shown(ranges), *rates, f"{predicted[name] / least[name] - 1:+.1%}")
    print(accuracy([*predicted.values()], [*least.values()]))
    print(f"chosen takes {least['chosen'] / min(least.values()):.3f} times the measured best")
    gains = {n: least[n] / least["chosen"] for n in others(problem) if n in least}
    print("tokens/s of chosen over: " + ", ".join(f"{n} {g:.2f}" for n, g in gains.items()))
    print(f"median gain {statistics.median(gains.values()):.2f}; tokens equal: {same}")
    return int(not same)


if __name__ == "__main__":
    run(main)
