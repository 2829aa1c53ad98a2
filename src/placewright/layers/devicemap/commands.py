"""``placewright devicemap`` and ``placewright generate``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placewright.errors import InputError
from placewright.io.output import output_file

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.cluster.cluster import Cluster


def tokens(written: str, where: str) -> int:
    """A number of tokens: ``4096``, ``32k`` (32 x 1024), ``1M``.

    Raises `InputError`: it is none.
    """
    found = re.fullmatch(r"\s*(\d{1,9})\s*([kKmM]?)\s*", written)
    count = 0 if found is None else int(found[1]) * 1024 ** " km".index(found[2].lower() or " ")
    if not 0 < count < 2**31:
        raise InputError(
            f"{written[:40]!r} is not a number of tokens",
            where=where,
            by="expected a whole number above zero",
            hint="write it like 4096 or 32k, which is 32 x 1024",
        )
    return count


def devicemap(
    console: Console,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="A config.json of Hugging Face, a folder with one, or a name in its cache.",
        ),
    ],
    on: str | None = None,
    context: Annotated[
        str,
        typer.Option("--context", metavar="TOKENS", help="Kept per user, such as 4096 or 32k."),
    ] = "4k",
    users: Annotated[
        int, typer.Option("--users", min=1, max=100_000, metavar="N", help="Streams at a time.")
    ] = 1,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", metavar="TOKENS", help="For the first token; by default the full context."
        ),
    ] = None,
    dtype: Annotated[
        Literal["f32", "bf16", "f16", "int8", "int4"] | None,
        typer.Option("--dtype", help="Number format of weights; by default the published one."),
    ] = None,
    objective: Annotated[
        Literal["latency", "throughput"] | None,
        typer.Option(
            "--objective",
            help="Seconds per token of one stream, the default for one user, or tokens/s of all.",
        ),
    ] = None,
    memory_share: Annotated[
        float,
        typer.Option(
            "--memory-share", min=0.01, max=1.0, metavar="X", help="Of each device, to be used."
        ),
    ] = 0.9,
    problem: Annotated[
        Path | None,
        typer.Option(
            "--problem",
            metavar="FILE",
            callback=output_file,
            help="Write what is asked, for `layers compare` and other planners.",
        ),
    ] = None,
    report: Path | None = None,
    measure: Annotated[
        Literal["local", "testbed", "torchrun", "ray"] | None,
        typer.Option(
            "--measure",
            metavar="ENGINE",
            help="Have workers time a few layers and the links first: local, testbed, torchrun, "
            "ray. By default costs follow from the cluster file.",
        ),
    ] = None,
    export: Annotated[
        Literal["accelerate", "llamacpp", "vllm", "torch"] | None,
        typer.Option("--export", help="Print, and write to -o FILE, what this runtime takes."),
    ] = None,
) -> None:
    """Decide which device holds which layers of a language model that does not fit on one.

    Weights, KV caches and workspaces are counted from the configuration; no weights are loaded.
    Decode is bound by memory bandwidth, prefill by FLOP/s. The plan is the best of all with
    consecutive layers, beside what others do; devices that would slow it down are left out.

    [bold]Examples[/bold]

    [cyan]placewright devicemap config.json --on server-4gpu --context 32k --users 4[/cyan]

    [cyan]placewright devicemap config.json --on cluster.yaml --dtype int4 --export llamacpp[/cyan]

    [cyan]placewright devicemap config.json --on server-4gpu --export accelerate -o map.json[/cyan]
    """
    if _served(measure):
        return
    from placewright.layers.devicemap.device_map import device_map
    from placewright.layers.devicemap.files import write_problem

    cluster = _cluster(on)
    with console.meter(f"planning {Path(model).name or model}"):
        found = device_map(
            model,
            cluster,
            context=tokens(context, "--context"),
            users=users,
            prompt=0 if prompt is None else tokens(prompt, "--prompt"),
            dtype=dtype,
            objective=objective,
            memory_share=memory_share,
            measure=measure,
        )
    if problem is not None:
        console.kept(write_problem(found.problem, problem))
    if report is not None:
        console.kept(found.report(report))
    if export is None:
        console.answer(found.as_json, lambda: repr(found))
        return
    data = found.export(export)
    notes = data.pop("notes")
    for note in notes:
        console.note(note)
    console.answer(lambda: data, lambda: _shown(data))


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
    on: str | None = None,
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
    engine: Literal["local", "testbed", "torchrun", "ray"] = "local",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Have the workers time layers and links before planning."),
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="Plan again and go on where a worker has died."),
    ] = False,
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
    if _served(engine):
        return
    from placewright.layers.devicemap.text import generate_text

    cluster = _cluster(on)
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
            measure=measure,
            adapt=adapt,
            check=check,
        )
    console.answer(run.as_json, lambda: str(run))
    if run.equal is False:
        raise InputError(
            "the tokens are not those of one process",
            where=str(model),
            hint="report it with the model's config.json",
        )


def _cluster(on: str | None) -> Cluster:
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster

    return Cluster.detect() if on is None else load_cluster(on)


def _served(engine: str | None) -> bool:
    """Whether this process is a rank of torchrun that has served."""
    if engine != "torchrun":
        return False
    from placewright.runtime.engines.torchrun_agent import served_torchrun

    return served_torchrun(engine)


def _shown(data: dict[str, Any]) -> str:
    """A command line, or the data itself: both can be pasted."""
    command = data.get("command")
    return str(command) if command else json.dumps(data, indent=2)
