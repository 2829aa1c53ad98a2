"""Compare tokens per second of a model on workers with `model.generate` in one process.

    python benchmarks/generation.py [--tokens N] [--rounds N]
    python benchmarks/generation.py --contexts 256 2048 8192
    python benchmarks/generation.py --users 1 2 4 8
    python benchmarks/generation.py --prompt 2048
    python benchmarks/generation.py --architectures

A Llama of 12 layers, 512 wide, 32-bit numbers, random weights, one core each: in this process, on
one worker, on two. Taken in turns; the best of each round. Ends with 1 where tokens differ.
With --contexts: time of a token behind so many others, with caches of transformers and with those
that have room for more, in turns on one core; ends with 1 where a logit differs.
With --users: tokens/s of so many users at a time on two workers, from the moment that all have
their first token until one has the last; predicted by the device map from what layers take there,
one on each device, for so many users at a time. All processes go before others of the machine.
Ends with 1 where a user's tokens are not those of `model.generate` of that user alone.
With --prompt: three users on two workers, and a fourth one with so long a prompt, which is computed
at once and in pieces, in turns: the longest pause of the others. Ends with 1 where a user's tokens
are not those of `model.generate`.
With --architectures: greedy tokens, none twice, of small random models of each kind on one, two and
three workers, of one row and of four with padding. Ends with 1 where they are not those of one
process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from harness import Table, joined, llama, run
from placewright import device_map
from placewright.layers.devicemap.judge import judge
from placewright.layers.devicemap.problem import LayerRange, MapPlan
from placewright.layers.generation.caches import growing_cache
from placewright.layers.generation.generator import PROMPT_CHUNK, Generator, TokenClock
from placewright.layers.generation.stage import cache_name

LAYERS, WIDTH = 12, 64
"""Blocks, and numbers of a key."""

TOKENS = 24
"""Timed in each context."""

BEFORE = 8
"""Tokens of each user before another one comes with a long prompt."""


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


ARCHITECTURES = ("llama", "qwen2", "mixtral", "gemma2", "gpt2", "t5")


def small_model(kind: str, vocabulary: int, width: int, layers: int) -> Any:
    """One of `ARCHITECTURES` with random weights; half of a T5's layers are the encoder's."""
    names = {
        "gpt2": ("n_embd", "n_inner", "n_layer", "n_head", "n_positions"),
        "t5": ("d_model", "d_ff", "num_layers", "num_heads", "n_positions"),
    }
    usual = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    depth = layers // 2 if kind == "t5" else layers
    values = (width, 3 * width // 2, depth, 4, 512)
    sizes = dict(
        zip(names.get(kind, (*usual, "max_position_embeddings")), values, strict=True),
        vocab_size=vocabulary,
        eos_token_id=None,
        pad_token_id=0,
    )
    others: dict[str, dict[str, Any]] = {
        "qwen2": {"tie_word_embeddings": True},
        "mixtral": {"num_local_experts": 4},
        "gemma2": {"head_dim": width // 4, "sliding_window": width // 4},
        "gpt2": {"bos_token_id": None},
        # Of random weights of the usual size all tokens would be alike.
        "t5": {"d_kv": width // 4, "initializer_factor": 3.0, "decoder_start_token_id": 0},
    }
    grouped = {} if kind in names else {"num_key_value_heads": 2}
    known: Any = transformers.AutoConfig
    config = known.for_model(kind, **sizes, **grouped, **others.get(kind, {}))
    loader: Any = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        loader = transformers.AutoModelForSeq2SeqLM
    torch.manual_seed(5)
    return loader.from_config(config).eval()


def all_architectures(tokens: int) -> int:
    """One line for each: tokens that are those of one process; how many are not."""
    cluster, other = joined("trio", dict.fromkeys("abc", 1.0), 1e9, 1e-5), 0
    ids = torch.randint(1, 500, (4, 24))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 5, 11, 17)):
        ids[row, :padding] = mask[row, :padding] = 0
    given = [{"input_ids": ids[:n], "attention_mask": mask[:n]} for n in (1, 4)]
    options: Any = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options["no_repeat_ngram_size"] = 1  # random models would repeat one for good
    table = Table("workers x rows", *(f"{n} x {k}" for n in (1, 2, 3) for k in (1, 4)))
    layers = 6
    for name in ARCHITECTURES:
        model = small_model(name, 500, 64, layers)
        expected = [model.generate(**each, **options)[:, -tokens:] for each in given]
        cells = []
        for count in (1, 2, 3):
            cuts = [layers * k // count for k in range(count + 1)]
            ranges = dict(zip("abc", pairwise(cuts), strict=False))
            with Generator(model, ranges, cluster) as placed:
                for each, right in zip(given, expected, strict=True):
                    found = placed.generate(**each, **options)[:, -tokens:]
                    cells.append(f"{int((found == right).sum())} of {right.numel()}")
                    other += int((found != right).sum())
        table.row(name, *cells)
    return other


@contextmanager
def undisturbed() -> Iterator[None]:
    """Go before what else runs here, with all processes that are started."""
    sessions = Path("/proc/self/autogroup")  # where it is, priorities count within a session only
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -15)
    if sessions.exists():
        sessions.write_text("-15")
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        if sessions.exists():
            sessions.write_text("0")


def side_by_side(
    placed: Generator, prompts: list[Tensor], count: int
) -> tuple[float, list[Tensor]]:
    """Tokens per second of all users while each has one under way, and their tokens."""
    clocks = [TokenClock() for _ in prompts]

    def one(ids: Tensor, clock: TokenClock) -> Tensor:
        found: Tensor = placed.generate(ids, max_new_tokens=count, do_sample=False, streamer=clock)
        return found

    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(one, prompts, clocks))
    begin = max(clock.times_s[1] for clock in clocks)
    end = min(clock.times_s[-1] for clock in clocks)
    tokens = sum(begin < each <= end for clock in clocks for each in clock.times_s)
    return tokens / (end - begin), found


def many_users(
    model: Any, placed: Generator, counts: Sequence[int], tokens: int, rounds: int
) -> int:
    """One line for each number of users, of its fastest round; how many got other tokens."""
    drawn = [torch.randint(1, 32000, (1, 16 + 3 * k)) for k in range(max(counts))]
    expected = [_greedy(model, ids)(tokens) for ids in drawn]
    options: Any = {"context": 64 + tokens, "prompt": 32, "dtype": "f32", "measure": "local"}
    planned = device_map(model.config, placed.cluster, users=max(counts), **options)
    ends = [0, LAYERS // 2 + 1, planned.problem.n]
    plan = MapPlan(tuple(LayerRange(d, ends[d], ends[d + 1]) for d in (0, 1)))
    other = 0
    fastest = dict.fromkeys(counts, 0.0)
    for users in [count for _ in range(rounds) for count in counts]:
        rate, found = side_by_side(placed, drawn[:users], tokens)
        fastest[users] = max(fastest[users], rate)
        other += sum(not torch.equal(*each) for each in zip(found, expected, strict=False))
    table = Table("users", "predicted, tokens/s", "measured, tokens/s", left=0)
    for users, rate in fastest.items():
        predicted = judge(planned.problem.replace(users=users), plan).tokens_per_s
        table.row(users, f"{predicted:.1f}", f"{rate:.1f}")
    return other


def pauses(model: Any, placed: Generator, length: int, tokens: int, rounds: int) -> int:
    """One line for each round and way to compute a prompt; how many got other tokens."""
    drawn = [torch.randint(1, 32000, (1, size)) for size in (16, 19, 22, length)]
    expected = [_greedy(model, ids)(tokens) for ids in drawn]
    head = ("longest pause, s", "of usual tokens, s", "first token, s")
    table, other = Table("tokens at a time", *head, left=0), 0
    for most in [most for _ in range(rounds) for most in (length, PROMPT_CHUNK)]:
        placed.prompt_chunk = most
        clocks = [TokenClock() for _ in drawn]

        def one(ids: Tensor, clock: TokenClock) -> Tensor:
            options: Any = {"max_new_tokens": tokens, "do_sample": False, "streamer": clock}
            found: Tensor = placed.generate(ids, **options)
            return found

        with ThreadPoolExecutor(len(drawn)) as pool:
            running = [pool.submit(one, *each) for each in zip(drawn[:-1], clocks, strict=False)]
            while min(len(clock.times_s) for clock in clocks[:-1]) < BEFORE:
                time.sleep(0.01)
            running.append(pool.submit(one, drawn[-1], clocks[-1]))
        begin_s, first_s = clocks[-1].times_s[:2]
        steps = [pair for clock in clocks[:-1] for pair in pairwise(clock.times_s[1:])]
        longest_s = max(b - a for a, b in steps if b > begin_s and a < first_s)
        usual_s = statistics.median(b - a for a, b in steps if b <= begin_s)
        table.row(most, *(f"{each:.3f}" for each in (longest_s, usual_s, first_s - begin_s)))
        pairs = zip(running, expected, strict=True)
        other += sum(not torch.equal(each.result(), right) for each, right in pairs)
    return other


@torch.inference_mode()
def behind_contexts(model: Any, counts: Sequence[int]) -> int:
    """One line for each context; how many of them gave other logits."""
    head = ("transformers, ms", "with room, ms", "least of both")
    table, other = Table("tokens before", *head, left=0), 0
    for count in counts:
        caches = [transformers.DynamicCache(config=model.config), growing_cache(model.config)]
        took: list[list[float]] = [[], []]
        for layer in range(LAYERS):
            states = torch.randn(2, 1, model.config.num_key_value_heads, count, WIDTH)
            for cache in caches:
                cache.update(*states, layer)
        for token in range(TOKENS):
            found = []
            for cache, seconds in zip(caches, took, strict=True):
                start = time.perf_counter()
                found.append(model(torch.tensor([[token]]), **{cache_name(): cache}).logits)
                seconds.append(time.perf_counter() - start)
            other += not torch.equal(*found)
        middle, least = ([1e3 * of(each) for each in took] for of in (statistics.median, min))
        table.row(count, *(f"{x:.1f}" for x in middle), f"{least[0]:.1f} and {least[1]:.1f}")
    return other


def main(
    *,
    tokens: int = 48,
    rounds: int = 2,
    users: tuple[int, ...] = (),
    contexts: tuple[int, ...] = (),
    prompt: int = 0,
    architectures: bool = False,
) -> int:
    """Print one line for each round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if architectures:
        return int(all_architectures(128) > 0)
    model = llama(32000, 512, 1408, LAYERS, 8, num_key_value_heads=4)
    if contexts:
        return int(behind_contexts(model, contexts) > 0)
    ids = torch.randint(1, model.config.vocab_size, (1, 32))
    cluster = joined("pair", dict.fromkeys("ab", 1.0), 1e9, 1e-5, cores=1)
    with (
        undisturbed() if users or prompt else nullcontext(),
        Generator(model, {"a": (0, LAYERS)}, cluster) as one,
        Generator(model, {"a": (0, LAYERS // 2), "b": (LAYERS // 2, LAYERS)}, cluster) as two,
    ):
        if users:
            return int(many_users(model, two, users, tokens, rounds) > 0)
        if prompt:
            return int(pauses(model, two, prompt, tokens, rounds) > 0)
        ways = [_greedy(each, ids) for each in (model, one, two)]
        first, *others = [generate(tokens) for generate in ways]
        table = Table("round", "one process", "one worker", "two workers")
        for number in range(rounds):
            rates = [rate(generate, tokens) for generate in ways]
            table.row(number, *(f"{each:.1f} ({each / rates[0]:.2f})" for each in rates))
    return int(not all(torch.equal(each, first) for each in others))


if __name__ == "__main__":
    run(main)
