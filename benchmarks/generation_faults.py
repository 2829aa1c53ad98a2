"""Kill workers while a language model generates, or watch their memory over many tokens.

    python benchmarks/generation_faults.py [--kills N] [--adapt]
    python benchmarks/generation_faults.py --memory [--tokens N]

A Llama of 6 layers, 256 wide, random weights, on three workers of this machine (--memory: two). A
random worker is killed at a random time of each call: it ends with an error in four parts or with
the tokens of one process; with --adapt always with the tokens. Ends with 1 where it does not.
"""

from __future__ import annotations

import random
import resource
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers

from harness import Table, joined, llama, run
from placewright import Cluster
from placewright.errors import WorkerError
from placewright.layers.generation.generator import Generator
from placewright.runtime.engines.local import LocalGroup

LAYERS, TOKENS = 6, 48

EVERY = 250
"""Tokens between two looks at memory."""


def language_model(longest: int) -> Any:
    """Small, with random weights."""
    torch.manual_seed(0)
    settings = {"num_key_value_heads": 8, "max_position_embeddings": longest}
    return llama(512, 256, 512, LAYERS, 8, **settings)


def workers(count: int) -> Cluster:
    """CPUs of this machine."""
    return joined("workers", dict.fromkeys("abc"[:count], 1.0), 1e10, 1e-6)


def even(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """As many layers on each worker, or one more."""
    names = cluster.device_names
    ends = [round(LAYERS * k / len(names)) for k in range(len(names) + 1)]
    return {name: (ends[k], ends[k + 1]) for k, name in enumerate(names)}


def processes(placed: Generator) -> list[Any]:
    """Of the workers, by rank."""
    assert isinstance(placed.group, LocalGroup)
    return placed.group.processes


def killed(count: int, *, adapt: bool) -> int:
    """One line for each kill; how many were wrong."""
    model, cluster, draw = language_model(512), workers(3), random.Random(2)
    ids = torch.randint(1, 512, (2, 16), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    expected = model.generate(ids, **options)
    wrong = 0
    for number in range(count):
        victim, last, share = draw.randrange(3), draw.randrange(1, TOKENS - 1), draw.random()
        with Generator(model, even(cluster), cluster, replan=even if adapt else None) as placed:
            start = time.perf_counter()
            placed.generate(ids, **options)
            token_s = (time.perf_counter() - start) / TOKENS
            killer = threading.Timer(share * token_s, processes(placed)[victim].kill)

            def kill(ids: Any, scores: Any, killer: Any = killer, **rest: Any) -> Any:
                if ids.shape[1] == 16 + last:  # noqa: B023 - called in this turn only
                    killer.start()
                return torch.zeros(ids.shape[0], dtype=torch.bool)

            criteria = transformers.StoppingCriteriaList([kill])
            try:
                found = placed.generate(ids, stopping_criteria=criteria, **options)
                wrong += not torch.equal(found, expected)
                said = "equal tokens" if torch.equal(found, expected) else "OTHER tokens"
                said += f", lost {placed.lost}"
            except WorkerError as error:
                named = f"'{cluster.device_names[victim]}'" in str(error)
                clear = all((error.what, error.where, error.by, error.hint)) and named
                wrong += adapt or not clear
                said = f"{error.where}: {error.what} ({error.by})"
            killer.join()
        print(f"{number}: {cluster.device_names[victim]} at token {last}: {said}", flush=True)
    print(f"{count} kills, {wrong} wrong")
    return wrong


def watched(tokens: int) -> int:
    """Resident memory of both workers every so many tokens, beside the bytes of their caches."""
    model, cluster = language_model(tokens + 64), workers(2)
    config, page = model.config, resource.getpagesize()
    each = 2 * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads) * 4
    rows: list[tuple[float, ...]] = []
    with Generator(model, even(cluster), cluster) as placed:
        pids = [process.pid for process in processes(placed)]

        def look(ids: Any, scores: Any, **rest: Any) -> Any:
            if (ids.shape[1] - 16) % EVERY == 0:
                held = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
                rows.append((ids.shape[1], time.perf_counter(), *(p * page for p in held)))
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        criteria = transformers.StoppingCriteriaList([look])
        ids = torch.ones((1, 16), dtype=torch.int64)
        placed.generate(ids, max_new_tokens=tokens, do_sample=False, stopping_criteria=criteria)
    head = ("worker a, MiB", "worker b, MiB", "caches of each, MiB", "ms a token")
    table = Table("tokens", *head, left=0)
    for (_, before_s, *_), (count, now_s, *held) in pairwise(rows):
        cells = [f"{size / 2**20:.1f}" for size in (*held, each * count * LAYERS // 2)]
        table.row(count, *cells, f"{(now_s - before_s) / EVERY * 1e3:.2f}")
    return 0


def main(*, kills: int = 20, adapt: bool = False, memory: bool = False, tokens: int = 2000) -> int:
    """See above."""
    torch.set_num_threads(1)
    return watched(tokens) if memory else int(killed(kills, adapt=adapt) > 0)


if __name__ == "__main__":
    run(main)
