"""Clusters: checked with the line of an error, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewright.web.client import Client
from tests.service.serving import Serving

TWO = """\
name: two
devices:
  - {name: a, node: x, memory: 1GiB}
  - {name: b, node: y}
links:
  - {from: a, to: b, bandwidth: 1Gbps}
"""


def check(client: Client, text: str) -> dict[str, Any]:
    """What the service says of a cluster's YAML."""
    found: dict[str, Any] = client.ask(
        "POST", "clusters/check", json.dumps({"text": text}).encode()
    )
    return found


@pytest.mark.parametrize(
    ("was", "now", "line", "what"),
    [
        ("node: y", "nod: y", 4, "unknown key 'nod'"),
        ("memory: 1GiB", "memory: 1Gib/s", 3, "1Gib/s"),
        ("name: b", "name: a", 4, "used twice"),
        ("to: b", "to: c", 6, "unknown device 'c'"),
        ("  - {name: b", "  - {name: b}, {", 4, "YAML"),
    ],
)
def test_an_error_has_its_line(client: Client, was: str, now: str, line: int, what: str) -> None:
    """Of a key, a value, a name, and of what is no YAML."""
    found = check(client, TWO.replace(was, now))
    assert found["line"] == line, found
    assert what in json.dumps(found["error"])
    assert found["drawing"] == ""


def test_a_cluster_is_checked_and_not_stored(client: Client) -> None:
    """What is drawn is escaped."""
    before = client.ask("GET", "files")["files"]
    found = check(client, TWO.replace("name: a,", 'name: "<b>",').replace("from: a", 'from: "<b>"'))
    assert (found["devices"], found["links"], found["error"]) == (2, 2, None)
    assert "&lt;b&gt;" in found["drawing"]
    assert "<b>" not in found["drawing"]
    assert client.ask("GET", "files")["files"] == before


def test_pages_of_clusters(serving: Serving, client: Client, tmp_path: Path) -> None:
    """Of a preset, of a stored file, and of none."""
    (tmp_path / "two.yaml").write_text(TWO)
    name = client.upload(tmp_path / "two.yaml")
    for path, words in (
        ("/clusters", ("edge-duo", name)),
        (f"/clusters/{name}", ("125 MB/s", "two.yaml")),
        ("/clusters/mixed-8", ("server-pcie", "<svg", "/new/operators.plan?on=mixed-8")),
    ):
        status, body = serving.request("GET", path)
        assert status == 200
        assert [word for word in words if word not in body.decode()] == []
    assert serving.request("GET", "/clusters/none")[0] == 404
    assert serving.request("GET", "/clusters/..%2Fservice.sqlite")[0] == 404


def test_a_cluster_is_changed_in_the_page(serving: Serving, page: Any) -> None:
    """An error is marked at its line while one writes; what is right is stored and drawn."""
    page.goto(f"{serving.url}/clusters/edge-duo")
    page.wait_for_selector("text=A cluster of 2 devices and 2 links")
    text = page.input_value("#text")
    page.fill("#text", text.replace("speed: 0.5", "sped: 0.5"))
    page.wait_for_selector("text=did you mean 'speed'?")
    assert page.inner_text("#lines .wrong").strip() == "7"
    page.get_by_role("button", name="Line 7").click()
    page.fill("#text", text.replace("board-b", "board-z"))
    page.wait_for_selector("#drawing >> text=board-z")
    page.fill("#name", "once.yaml")
    page.get_by_role("button", name="Store").dblclick()  # it is stored once
    page.wait_for_selector("h1:text('once')")
    page.goto(f"{serving.url}/clusters")
    assert page.locator("td.who", has_text="once").count() == 1
    page.get_by_role("link", name="once.yaml").click()
    page.get_by_role("link", name="Plan a model on it").click()
    assert page.input_value("#option-on").startswith("once")
