"""placewright testbed set: a device or a link changes while jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.console import Console
from placewright.cli.options import FormatOption, OutputOption, QuietOption, VerboseOption
from placewright.cli.testbed.found import ClusterArgument, find, show

if TYPE_CHECKING:
    from placewright.testbed.testbed import Testbed


def change(
    cluster: ClusterArgument,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME")] = None,
    speed: Annotated[float | None, typer.Option("--speed", help="Up to 1.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE")] = None,
    on: Annotated[
        bool | None, typer.Option("--on/--off", help="Its power: processes die, links are silent.")
    ] = None,
    link: Annotated[str | None, typer.Option("--link", metavar="A:B")] = None,
    bandwidth: Annotated[str | None, typer.Option("--bandwidth", metavar="RATE")] = None,
    latency: Annotated[str | None, typer.Option("--latency", metavar="TIME")] = None,
    cut: Annotated[
        bool | None, typer.Option("--cut/--restore", help="Lose every packet; or no longer.")
    ] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from A to B.")] = False,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Change a device or a link while jobs run.

    [bold]Examples[/bold]

    [cyan]placewright testbed set cluster.yaml --device board-b --speed 0.25[/cyan]

    [cyan]placewright testbed set cluster.yaml --link board-a:board-b --bandwidth 10Mbps[/cyan]

    [cyan]placewright testbed set cluster.yaml --link board-a:board-b --cut[/cyan]
    """
    from placewright.io.units import BANDWIDTH, BYTES, SECONDS

    bed = find(cluster)
    _refuse_nothing(device, (speed, memory, on), link, (bandwidth, latency, cut))
    if device is not None:
        size = _quantity(memory, BYTES, "--memory")
        bed.set_device(device, speed=speed, memory_bytes=size)
        if on is not None:
            (bed.power_on if on else bed.power_off)(device)
    if link is not None:
        rate = _quantity(bandwidth, BANDWIDTH, "--bandwidth")
        delay_s = _quantity(latency, SECONDS, "--latency")
        ends = _ends(bed, link)
        bed.set_link(*ends, bandwidth=rate, latency_s=delay_s, cut=cut, both_ways=not one_way)
    show([bed], Console(format, output, quiet, verbose))


def _refuse_nothing(
    device: str | None, of_device: tuple[Any, ...], link: str | None, of_link: tuple[Any, ...]
) -> None:
    """A usage error where what to change, or how, is missing."""
    for what, name, values, ways in (
        ("--device", device, of_device, "--speed, --memory, --on or --off"),
        ("--link", link, of_link, "--bandwidth, --latency, --cut or --restore"),
    ):
        if any(value is not None for value in values) != (name is not None):
            raise typer.BadParameter(f"{what} and {ways} go together")
    if device is None and link is None:
        raise typer.BadParameter("say what to change: --device NAME or --link A:B")


def _quantity(text: str | None, quantity: Any, option: str) -> float | None:
    from placewright.io.units import parse

    return None if text is None else parse(text, quantity, where=option)


def _ends(bed: Testbed, link: str) -> tuple[str, str]:
    """The two devices of ``A:B``; names may have colons of their own."""
    known, parts = bed.cluster.device_names, link.split(":")
    splits = [(":".join(parts[:k]), ":".join(parts[k:])) for k in range(1, len(parts))]
    good = [pair for pair in splits if pair[0] in known and pair[1] in known]
    if not good and not splits:
        raise typer.BadParameter(f"a link is written A:B, got {link!r}")
    return (good or splits)[0]
