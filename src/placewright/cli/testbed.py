"""placewright testbed: a cluster made real on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli.console import Console, console_command

if TYPE_CHECKING:
    from placewright.testbed.testbed import Testbed

ClusterArgument = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", show_default=False, help="A cluster file, a preset, or what is up."
    ),
]
MaybeCluster = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", show_default=False, help="By default, all that are up."),
]


def _name_of(spec: str) -> str:
    """The name of the cluster that a file, a preset or a name means."""
    from placewright.cli.sources import find_cluster
    from placewright.testbed.blueprint import id_of
    from placewright.testbed.record import records

    named = any(record.id == id_of(spec) for record in records())
    return spec if named else find_cluster(spec).name


def _find(spec: str) -> Testbed:
    """The testbed that is up for it."""
    from placewright.testbed.testbed import Testbed

    return Testbed.find(_name_of(spec))


def _find_or_make(spec: str) -> Testbed:
    """The testbed that is up for it, for as long as we need it, or a new one."""
    from placewright.cli.sources import find_cluster
    from placewright.testbed.testbed import Testbed, require

    require()
    named = [bed.cluster for bed in Testbed.all() if bed.cluster.name == spec]
    return Testbed.up(named[0] if named else find_cluster(spec))


def _print(console: Console, beds: list[Testbed]) -> None:
    """Print the status of these testbeds."""
    from placewright.testbed.status import status, testbed_table

    found = [status(bed) for bed in beds]
    for note in (note for state in found for note in state.notes):
        console.note(f"note: {note}")
    data = {"testbeds": [asdict(state) for state in found]}
    console.answer(lambda: data, lambda: "\n\n".join(map(testbed_table, found)) or "nothing is up")


def up(
    console: Console,
    cluster: ClusterArgument,
) -> None:
    """Create the testbed of a cluster; keep what runs already, restart what has died.

    [bold]Example[/bold]

    [cyan]placewright testbed up cluster.yaml[/cyan]
    """
    from placewright.cli.sources import find_cluster
    from placewright.testbed.testbed import Testbed

    _print(console, [Testbed.up(find_cluster(cluster), keep=True)])


def down(
    console: Console,
    cluster: MaybeCluster = None,
) -> None:
    """Remove a testbed and its processes, or the rest of an interrupted `up`; none is fine too.

    [bold]Example[/bold]

    [cyan]placewright testbed down cluster.yaml[/cyan]
    """
    from placewright.cluster.cluster import Cluster
    from placewright.testbed.blueprint import id_of
    from placewright.testbed.record import end_all, sweep
    from placewright.testbed.testbed import require

    require()
    ended = end_all(None if cluster is None else id_of(_name_of(cluster)))
    sweep()
    names = [Cluster.from_text(r.cluster, where=str(r.folder)).name for r in ended]
    console.answer(lambda: {"down": names}, lambda: f"down: {', '.join(names) or 'nothing was up'}")


def status(
    console: Console,
    cluster: MaybeCluster = None,
) -> None:
    """Show running testbeds: devices, links, their present limits and traffic.

    [bold]Example[/bold]

    [cyan]placewright testbed status cluster.yaml -f json[/cyan]
    """
    from placewright.testbed.testbed import Testbed, require

    require()
    beds = list(Testbed.all()) if cluster is None else [_find(cluster)]
    _print(console, beds)


def change(
    console: Console,
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
) -> None:
    """Change a device or a link while jobs run.

    [bold]Examples[/bold]

    [cyan]placewright testbed set cluster.yaml --device board-b --speed 0.25[/cyan]

    [cyan]placewright testbed set cluster.yaml --link board-a:board-b --bandwidth 10Mbps[/cyan]

    [cyan]placewright testbed set cluster.yaml --link board-a:board-b --cut[/cyan]
    """
    from placewright.io.units import BANDWIDTH, BYTES, SECONDS

    bed = _find(cluster)
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
    _print(console, [bed])


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
        raise typer.BadParameter("name what to change: --device NAME or --link A:B")


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


def selftest(
    console: Console,
    cluster: ClusterArgument,
) -> None:
    """Measure every link and quota against its setting. Exit code 1 where one is off.

    A testbed that is not up is made for it.

    [bold]Example[/bold]

    [cyan]placewright testbed selftest cluster.yaml[/cyan]
    """
    from placewright.testbed.status import findings_table
    from placewright.testbed.status import selftest as measure

    with _find_or_make(cluster) as bed:
        findings = []
        for finding in measure(bed):
            console.detail(f"{finding.what} {finding.where}: {'ok' if finding.ok else 'off'}")
            findings.append(finding)
    data = [{**asdict(finding), "off": finding.off, "ok": finding.ok} for finding in findings]
    console.answer(lambda: data, lambda: findings_table(findings))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def inside(
    cluster: ClusterArgument,
    device: Annotated[str, typer.Argument(metavar="DEVICE", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", show_default=False)],
) -> None:
    """Run a command as a process of one device.

    [bold]Example[/bold]

    [cyan]placewright testbed exec cluster.yaml board-b -- python train.py[/cyan]
    """
    import os

    from placewright.errors import InputError

    _find(cluster).enter(device)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise InputError(f"cannot be started: {error.strerror}", where=command[0]) from None


app = typer.Typer(
    help="Emulate a cluster on this Linux machine, as root: network namespaces, shaped links, "
    "CPU and memory limits.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _name, _verb in {
    "up": up,
    "down": down,
    "status": status,
    "set": change,
    "selftest": selftest,
}.items():
    app.command(_name)(console_command(_verb))
app.command("exec", context_settings={"ignore_unknown_options": True})(inside)
