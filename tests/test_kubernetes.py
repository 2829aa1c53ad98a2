"""What kubernetes.yaml runs is there: verbs with their options, and the paths that it probes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from placewright.cli.main import app

ROOT = Path(__file__).parents[1]
RESOURCES = list(yaml.safe_load_all((ROOT / "kubernetes.yaml").read_text()))


def containers() -> Iterator[dict[str, Any]]:
    """Those of all deployments."""
    for each in RESOURCES:
        if each["kind"] == "Deployment":
            yield from each["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("container", [*containers()], ids=lambda each: each["name"])
def test_commands_have_their_options(container: dict[str, Any]) -> None:
    """And listen where the service finds them, for others than this machine."""
    words = container["command"]
    program, command = typer.main.get_command(app), None
    context = program.make_context(words[0], words[1:], resilient_parsing=True)
    rest = [*context._protected_args, *context.args]
    command = program
    while hasattr(command, "get_command"):
        name, *rest = rest
        command = command.get_command(context, name)
        assert command is not None
        context = command.make_context(name, [*rest], parent=context)
        rest = [*context._protected_args, *context.args]
    assert context.params["host"] == "0.0.0.0"
    assert container["ports"] == [{"containerPort": context.params["port"]}]
    probes = [value for key, value in container.items() if key.endswith("Probe")]
    assert {each["httpGet"]["port"] for each in probes} == {context.params["port"]}


def test_services_reach_the_containers() -> None:
    """By label and port; the claim is the volume's; probes ask paths that are answered."""
    ports = {p["containerPort"] for each in containers() for p in each["ports"]}
    kinds = {
        kind: [r for r in RESOURCES if r["kind"] == kind] for kind in ("Service", "Deployment")
    }
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in kinds["Deployment"]]
    assert [each["spec"]["selector"] for each in kinds["Service"]] == labels
    assert {p["port"] for each in kinds["Service"] for p in each["spec"]["ports"]} == ports
    asked = {
        probe["httpGet"]["path"]
        for each in containers()
        for key, probe in each.items()
        if key.endswith("Probe")
    }
    assert asked == {"/v2/health/ready", "/v2/health/live", "/api/v1/health"}
    assert (ROOT / "Containerfile").read_text().count("placewright")
