"""placewright devices: what is here."""

from __future__ import annotations

from placewright.cli.console import Console, write
from placewright.cli.options import (
    FormatOption,
    OnOption,
    OutputOption,
    QuietOption,
    VerboseOption,
)


def devices(
    on: OnOption = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show the devices and links of this machine, a cluster file or a preset.

    [bold]Examples[/bold]

    [cyan]placewright devices[/cyan]

    [cyan]placewright devices --on edge-duo -o my-cluster.yaml[/cyan]   a file to start from
    """
    from placewright.cli.sources import find_cluster
    from placewright.cluster.files import cluster_data, cluster_to_text
    from placewright.cluster.presets import preset_names

    console = Console(format, output, quiet, verbose)
    cluster = find_cluster(on)
    console.show(lambda: cluster_data(cluster), lambda: repr(cluster))
    if output is not None and output.suffix in (".yaml", ".yml"):
        console.kept(write(output, cluster_to_text(cluster)))
    else:
        console.keep(lambda: cluster_data(cluster))
    console.detail(f"presets: {', '.join(preset_names())}")
