"""`generate_text`: plan, load, generate and measure in one call; `text_model`: for a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from placewright.cluster.cluster import Cluster
from placewright.io.arguments import checked
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.devicemap.reading import language_model
from placewright.layers.generation.answers import PlacedText, Tokenizer
from placewright.layers.generation.generator import TokenClock
from placewright.report.text import plain_table, seconds, size
from placewright.runtime.engines.engine import EngineName

CONTEXT = 4096
"""Tokens that are kept of each user where nothing is said, or what the model's positions reach."""


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """What was generated, and how long that took.

    Attributes
    ----------
    tokens
        New ones.
    text
        What they say; their numbers where the folder has no tokenizer.
    ranges
        Blocks [start, end) by device.
    held_bytes
        Weights and buffers, by device.
    predicted_first_s, predicted_token_s, measured_first_s, measured_token_s
        To the first token, and for each of the others.
    emulated
        What of the cluster is emulated, in words; empty for nothing.
    lost
        Devices whose workers died meanwhile.
    equal
        Whether one process generates the same; ``None`` where that was not asked.
    """

    tokens: tuple[int, ...]
    text: str
    ranges: dict[str, tuple[int, int]]
    held_bytes: dict[str, int]
    predicted_first_s: float
    predicted_token_s: float
    measured_first_s: float
    measured_token_s: float
    emulated: str
    lost: tuple[str, ...]
    equal: bool | None

    def as_json(self) -> dict[str, Any]:
        """All of it as data."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            (name, f"{start} to {end - 1}", size(float(self.held_bytes[name])))
            for name, (start, end) in self.ranges.items()
        ]
        times = [
            ("first token", seconds(self.predicted_first_s), seconds(self.measured_first_s)),
            ("each other", seconds(self.predicted_token_s), seconds(self.measured_token_s)),
        ]
        lines = [
            self.text,
            "",
            plain_table(("device", "blocks", "weights"), rows, "  r"),
            "",
            plain_table(("", "predicted", "measured"), times, " rr"),
        ]
        if self.emulated:
            lines.append(f"emulated: {self.emulated}")
        if self.lost:
            lines.append(f"lost: {', '.join(self.lost)}; the others went on")
        if self.equal is not None:
            lines.append(f"the tokens of one process: {'equal' if self.equal else 'others'}")
        return "\n".join(lines)


@checked
def generate_text(
    folder: Path,
    prompt: str,
    cluster: Cluster,
    *,
    new_tokens: int = 64,
    context: int | None = None,
    sample: bool = False,
    seed: int = 0,
    engine: EngineName = "local",
    measure: bool = False,
    adapt: bool = False,
    check: bool = False,
) -> GenerationRun:
    """Generate with a model whose blocks are placed by `device_map`.

    Parameters
    ----------
    folder
        As `save_pretrained` writes it.
    prompt
        Text, or numbers of tokens.
    context
        Tokens to keep; by default those of the prompt and the new ones.
    measure
        Time layers and links on the workers before the plan is made.
    adapt
        Plan again where a worker has died, and go on with the devices that are left.
    check
        Load the model in this process, too, and compare.

    Raises
    ------
    InputError
        There is no model, or no tokenizer for a text.
    InfeasibleError
        It does not fit.
    """
    tokenizer = Tokenizer(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    length = ids.shape[1] + new_tokens
    planned = device_map(
        folder,
        cluster,
        context=context or length,
        prompt=ids.shape[1],
        measure=engine if measure else None,
    )
    options = {"max_new_tokens": new_tokens, "do_sample": sample}
    with planned.generator(folder, engine=engine, adapt=adapt) as placed:
        torch.manual_seed(seed)
        clock = TokenClock()
        found = placed.generate(ids, streamer=clock, **options)
        held = dict(zip(placed.cluster.device_names, placed.held_bytes, strict=True))
        ranges, lost = placed.ranges, tuple(placed.lost)
        begin = ids.shape[1] if placed.repeats_prompt else 1
        emulated = placed.emulated
    fresh = tuple(found[0, begin:].tolist())
    first_s, *others = clock.seconds
    return GenerationRun(
        tokens=fresh,
        text=tokenizer.decode(fresh),
        ranges=ranges,
        held_bytes={name: held[name] for name in ranges},
        predicted_first_s=planned.judgement.first_token_s,
        predicted_token_s=planned.judgement.token_s,
        measured_first_s=first_s,
        measured_token_s=sorted(others)[len(others) // 2] if others else first_s,
        emulated=emulated,
        lost=lost,
        equal=_same(folder, ids, options, seed, found) if check else None,
    )


@checked
@contextmanager
def text_model(
    folder: Path,
    cluster: Cluster,
    *,
    context: int | None = None,
    users: int = 1,
    engine: EngineName = "local",
) -> Iterator[PlacedText]:
    """A model whose blocks are placed by `device_map`, loaded, for texts of several users.

    Parameters
    ----------
    folder
        As `save_pretrained` writes it.
    context
        Tokens that are kept of each user; by default `CONTEXT`.
    users
        Texts at the same time; there is memory for the caches of so many.

    Raises
    ------
    InputError
        There is no model.
    InfeasibleError
        It does not fit.
    """
    model = language_model(folder)
    kept = context or min(CONTEXT, model.longest or CONTEXT)
    planned = device_map(model, cluster, context=kept, users=users)

    def load() -> Any:
        return planned.generator(folder, engine=engine)

    name = folder.resolve().name
    with PlacedText(
        name, folder, load, context=kept, users=users, plan=planned.as_json()
    ) as placed:
        yield placed


def _same(folder: Path, ids: torch.Tensor, options: Any, seed: int, found: torch.Tensor) -> bool:
    """Whether the model in this process gives the same tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    seq2seq = AutoConfig.from_pretrained(folder).is_encoder_decoder
    loader: Any = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    quiet: Any = logging
    quiet.disable_progress_bar()
    model = loader.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    return torch.equal(model.generate(ids, **options), found)
