"""Compare tokens per second of llama.cpp on unequal nodes with what the device map predicts.

    python benchmarks/llama_cpp.py FOLDER [--rounds N] [--tokens N] [--every K]

FOLDER has `ggml-rpc-server` and `llama-bench`, built with ``-DGGML_RPC=ON``; GGUF files are written
by the package `gguf`. Three nodes of a testbed, those of `generation_splits.py`, each run an
rpc-server on a core's share; llama-bench on a fourth one sends the weights, and generates with the
model by every ``--tensor-split`` (or every K-th one), blocks in the order of the nodes, one stream,
random weights of 32 bits. Of all rounds the fastest counts.

Predicted from what llama.cpp takes for models of one and of five blocks, with a head and without,
on each node alone, measured before each round: never in the splits themselves. A second prediction
is from the cluster file alone, whose rates follow from the nodes' shares of a core. Ends with 1
where the rank correlation of the first one is below 0.9.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from generation_splits import ROOM, SPEEDS, plan_of, ranges_of, shown, undisturbed
from harness import Table, accuracy, run
from placewright import Cluster, Device, Link, device_map
from placewright.layers.devicemap.exports import RPC_PORT
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.planners import plan_map
from placewright.layers.devicemap.problem import MapProblem
from placewright.layers.generation.times import LayerTimes
from placewright.testbed import Testbed

HOST, BLOCKS, MORE, VOCABULARY = "host", 8, 5, 8000

# A block takes longer than a node's quota of 10 ms: within it a node computes at full speed, and is
# no slow device.
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def cluster_of(nbytes: float) -> Cluster:
    """The nodes, and one that holds no layers; 1.6 Gbit/s and 2 ms between it and each."""
    rooms = {name: share * nbytes / 0.9 for name, share in ROOM.items()}
    devices = [Device(n, node=n, speed=SPEEDS[n], memory_bytes=rooms[n]) for n in SPEEDS]
    ends = [pair for n in SPEEDS for pair in ((HOST, n), (n, HOST))]
    links = tuple(Link(a, b, 200e6, 2e-3) for a, b in ends)
    return Cluster((*devices, Device(HOST, node=HOST, speed=0.6)), links, f"llama {os.getpid()}")


def write_model(path: Path, blocks: int, vocabulary: int) -> Path:
    """A GGUF file with random weights, without a tokenizer."""
    import gguf

    width, heads, groups = (
        MODEL[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    inner, narrow, draw = MODEL["intermediate_size"], width * groups // heads, np.random.default_rng
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(MODEL["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    shapes = {"token_embd": (vocabulary, width), "output_norm": (width,)}
    shapes["output"] = (vocabulary, width)
    for k in range(blocks):
        own = {"attn_norm": (width,), "attn_q": (width, width), "attn_k": (narrow, width)}
        own |= {"attn_v": (narrow, width), "attn_output": (width, width), "ffn_norm": (width,)}
        own |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
        shapes |= {f"blk.{k}.{name}": shape for name, shape in own.items()}
    for name, shape in shapes.items():
        made = draw(len(name)).uniform(-0.05, 0.05, shape)
        writer.add_tensor(f"{name}.weight", made.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class LlamaCpp:
    """llama-bench on a node of a testbed that is up, with an rpc-server on each of the others."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed, self.folder = bed, folder

    def start(self, node: str, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A program of the folder, as a process of a node."""
        program = [str((self.folder / command[0]).resolve()), *command[1:]]
        enter = self.bed.handle(node).enter
        return subprocess.Popen(program, preexec_fn=enter, text=True, **options)

    def end_of(self, node: str) -> str:
        """Where a node's rpc-server is."""
        return f"{self.bed.address(node)}:{RPC_PORT}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """An rpc-server on each node."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with ExitStack() as running:
            for node in SPEEDS:
                where = ("-H", self.bed.address(node), "-p", str(RPC_PORT), "-t", "1")
                server = running.enter_context(self.start(node, "ggml-rpc-server", *where, **quiet))
                running.callback(server.kill)
            time.sleep(1.0)
            yield

    def token_s(self, model: Path, nodes: Mapping[str, int], tokens: int) -> float:
        """Seconds of a token behind the first one; `nodes`: blocks of each, the head's included."""
        ends = ",".join(self.end_of(node) for node in nodes)
        split = "/".join(map(str, nodes.values()))
        command = ("llama-bench", "-m", str(model), "--rpc", ends, "-ngl", "99", "-ts", split)
        numbers = ("-p", "0", "-n", str(tokens), "-r", "2", "-t", "1", "-o", "json")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(HOST, *command, *numbers, **pipes) as running:
            written, said = running.communicate(timeout=180)
        if running.returncode:
            raise RuntimeError(f"llama-bench ended with {running.returncode}: {said[-500:]}")
        return float(min(json.loads(written)[0]["samples_ns"])) / 1e9 / tokens


def splits() -> list[dict[str, tuple[int, int]]]:
    """All ways to cut the blocks between the nodes in their order."""
    found = []
    for first in range(BLOCKS + 1):
        for second in range(first, BLOCKS + 1):
            ends = (0, first, second, BLOCKS)
            pairs = zip(SPEEDS, itertools.pairwise(ends), strict=True)
            found.append({name: pair for name, pair in pairs if pair[0] < pair[1]})
    return found


def tensor_split(ranges: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Blocks of each node, and the head, which counts as one, with the last ones."""
    counts = {name: end - start for name, (start, end) in ranges.items()}
    counts[[*counts][-1]] += 1
    return counts


def layer_times(alone: np.ndarray[Any, Any], tokens: int) -> LayerTimes:
    """From seconds of models of one block, of more, and of one with a head; shape (3, nodes).

    What passes between two nodes goes by the host, so that all transfers are in the visits.
    """
    one_s, more_s, whole_s = alone
    block_s = (more_s - one_s) / (MORE - 1)
    none = [0.0] * len(one_s)
    return LayerTimes(
        tokens=tokens,
        block_s=block_s.tolist(),
        head_s=np.maximum(whole_s - one_s, 0.0).tolist(),
        prompt_block_s=none,
        prompt_head_s=none,
        visit_s=(one_s - block_s).tolist(),
        answer_s=none,
        latency_s=[none] * len(one_s),
        seconds_per_byte=[none] * len(one_s),
    )


def compare(programs: Path, folder: Path, rounds: int, tokens: int, every: int) -> int:
    """Measure, and print the lines."""
    options: dict[str, Any] = {"context": tokens + 1, "prompt": 1, "dtype": "f32"}
    nbytes = 4.0 * device_map(MODEL, Cluster.detect(), **options).problem.model.parameters()
    cluster = cluster_of(nbytes)
    # What passes between two nodes goes by the host.
    links = tuple(Link(a, b, 100e6, 4e-3) for a, b in itertools.permutations(SPEEDS, 2))
    nodes = Cluster(cluster.devices[: len(SPEEDS)], links, cluster.name)
    problem = device_map(MODEL, nodes, **options).problem
    models = [
        write_model(folder / f"{blocks}-{words}.gguf", blocks, words)
        for blocks, words in ((1, 32), (MORE, 32), (1, VOCABULARY), (BLOCKS, VOCABULARY))
    ]
    tried = splits()[::every]
    measured: dict[str, list[float]] = {shown(ranges): [] for ranges in tried}
    alone = np.full((3, len(SPEEDS)), np.inf)
    with undisturbed(cluster), Testbed.up(cluster) as bed:
        llama = LlamaCpp(bed, programs)
        with llama.serving():
            for _ in range(rounds):
                for k, model in enumerate(models[:3]):
                    found = [llama.token_s(model, {node: 1}, tokens) for node in SPEEDS]
                    alone[k] = np.minimum(alone[k], found)
                for ranges in tried:
                    took_s = llama.token_s(models[3], tensor_split(ranges), tokens)
                    measured[shown(ranges)].append(took_s)
    print(f"of one block, {MORE} blocks, one and the head, ms: {(alone * 1e3).round(1).tolist()}")
    timed = problem.replace(times=layer_times(alone, tokens + 1))
    return report(problem, timed, tried, {name: min(each) for name, each in measured.items()})


def report(
    problem: MapProblem,
    timed: MapProblem,
    tried: list[dict[str, tuple[int, int]]],
    least: Mapping[str, float],
) -> int:
    """Print each split, and how well both predictions rank them."""
    pairs = [[judge(p, plan_of(p, ranges)) for ranges in tried] for p in (timed, problem)]
    head = ("predicted, tokens/s", "measured", "by the cluster file")
    table = Table("blocks by node", "fits", *head, left=2)
    for ranges, own, rough in zip(tried, *pairs, strict=True):
        rates = (1 / own.token_s, 1 / least[shown(ranges)], 1 / rough.token_s)
        table.row(shown(ranges), "yes" if own.feasible else "no", *(f"{x:.2f}" for x in rates))
    seconds = [*least.values()]
    own_s, rough_s = ([each.token_s for each in found] for found in pairs)
    print(f"{accuracy(own_s, seconds)}\nfrom the cluster file alone: {accuracy(rough_s, seconds)}")
    chosen = plan_map(timed).best
    if chosen is not None:
        print(f"chosen for what fits: {shown(ranges_of(timed, chosen.plan))}")
    fits = [each for each, own in zip(tried, pairs[0], strict=True) if own.feasible]
    best = min(fits, key=lambda ranges: least[shown(ranges)])
    first = min(fits, key=lambda ranges: judge(timed, plan_of(timed, ranges)).token_s)
    behind = least[shown(first)] / least[shown(best)]
    print(f"of these {len(fits)}: predicted best {shown(first)} takes {behind:.3f} times the best")
    return int(spearmanr(own_s, seconds).statistic < 0.9)


def main(folder: Path, *, rounds: int = 2, tokens: int = 12, every: int = 1) -> int:
    """See above."""
    with tempfile.TemporaryDirectory() as made:
        return compare(folder, Path(made), rounds, tokens, every)


if __name__ == "__main__":
    run(main)
