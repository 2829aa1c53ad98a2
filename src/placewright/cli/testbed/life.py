"""placewright testbed up, down and status."""

from __future__ import annotations

from placewright.cli.console import Console
from placewright.cli.options import FormatOption, OutputOption, QuietOption, VerboseOption
from placewright.cli.testbed.found import ClusterArgument, MaybeCluster, find, name_of, show


def up(
    cluster: ClusterArgument,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Make a cluster real; what is up already is kept, what has died of it is revived.

    [bold]Example[/bold]

    [cyan]placewright testbed up cluster.yaml[/cyan]
    """
    from placewright.cli.sources import find_cluster
    from placewright.testbed.testbed import Testbed

    show([Testbed.up(find_cluster(cluster), keep=True)], Console(format, output, quiet, verbose))


def down(
    cluster: MaybeCluster = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Remove a testbed, its processes too, or what a broken-off `up` left; nothing up is fine.

    [bold]Example[/bold]

    [cyan]placewright testbed down cluster.yaml[/cyan]
    """
    from placewright.cluster.files import cluster_from_text
    from placewright.testbed.blueprint import id_of
    from placewright.testbed.requirements import require
    from placewright.testbed.teardown import end_all, sweep

    console = Console(format, output, quiet, verbose)
    require()
    ended = end_all(None if cluster is None else id_of(name_of(cluster)))
    sweep()
    names = [cluster_from_text(r.cluster, where=str(r.folder)).name for r in ended]
    console.show(lambda: {"down": names}, lambda: f"down: {', '.join(names) or 'nothing was up'}")
    console.keep(lambda: {"down": names})


def status(
    cluster: MaybeCluster = None,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """What is up, what its devices and links get now, and what has passed.

    [bold]Example[/bold]

    [cyan]placewright testbed status cluster.yaml -f json[/cyan]
    """
    from placewright.testbed.requirements import require
    from placewright.testbed.testbed import Testbed

    require()
    beds = list(Testbed.all()) if cluster is None else [find(cluster)]
    show(beds, Console(format, output, quiet, verbose))
