"""``placewright generate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from placewright.errors import InputError

if TYPE_CHECKING:
    from placewright.cli.console import Console


def generate(
    console: Console,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            show_default=False,
            help="A language model as save_pretrained writes it: config.json, safetensors.",
        ),
    ],
    prompt: Annotated[
        str,
        typer.Argument(
            show_default=False,
            help="Text for the tokenizer in the folder, or numbers of tokens: '12 7 99'.",
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            help="A cluster file or a preset's name; by default this machine.",
        ),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=1, metavar="N", help="At most so many.")
    ] = 64,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="TOKENS", help="To be kept; by default prompt and new tokens."
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample/--greedy", help="Draw tokens, or take the likeliest.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of --sample.")] = 0,
    engine: Annotated[
        Literal["local", "testbed", "torchrun", "ray"],
        typer.Option("--engine", help="Who starts the workers."),
    ] = "local",
    check: Annotated[
        bool, typer.Option("--check", help="Compare the tokens with those of one process.")
    ] = False,
) -> None:
    """Generate text with a language model whose layers are on several devices.

    The layers are placed as `placewright devicemap` does. Each worker loads its own layers and
    keeps their caches; between workers go the activations of new tokens. Exits with 1 where
    --check finds other tokens.

    [bold]Examples[/bold]

    [cyan]placewright generate ./my-model "Once upon a time" --on cluster.yaml[/cyan]

    [cyan]placewright generate ./my-model "12 7 99" --on edge-duo --new-tokens 128 --check[/cyan]
    """
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster
    from placewright.layers.devicemap.commands import tokens
    from placewright.layers.generation.text import generate_text

    cluster = Cluster.detect() if on is None else load_cluster(on)
    with console.meter(f"loading {model.name}"):
        run = generate_text(
            model,
            prompt,
            cluster,
            new_tokens=new_tokens,
            context=None if context is None else tokens(context, "--context"),
            sample=sample,
            seed=seed,
            engine=engine,
            check=check,
        )
    console.answer(run.as_json, lambda: str(run))
    if run.equal is False:
        raise InputError(
            "the tokens are not those of one process",
            where=str(model),
            hint="report it with the model's config.json",
        )
