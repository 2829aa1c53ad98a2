"""placewright testbed selftest: asked against got."""

from __future__ import annotations

from dataclasses import asdict

import typer

from placewright.cli.console import Console
from placewright.cli.options import FormatOption, OutputOption, QuietOption, VerboseOption
from placewright.cli.testbed.found import ClusterArgument, find_or_make


def selftest(
    cluster: ClusterArgument,
    format: FormatOption = "table",
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Measure every link and quota: asked against got. Exit code 1 where one is off.

    A testbed that is not up is made for it.

    [bold]Example[/bold]

    [cyan]placewright testbed selftest cluster.yaml[/cyan]
    """
    from placewright.testbed.selftest import selftest as measure
    from placewright.testbed.text import findings_table

    console = Console(format, output, quiet, verbose)
    with find_or_make(cluster) as bed:
        findings = []
        for finding in measure(bed):
            console.detail(f"{finding.what} {finding.where}: {'ok' if finding.ok else 'off'}")
            findings.append(finding)
    data = [{**asdict(finding), "off": finding.off, "ok": finding.ok} for finding in findings]
    console.show(lambda: data, lambda: findings_table(findings))
    console.keep(lambda: data)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
