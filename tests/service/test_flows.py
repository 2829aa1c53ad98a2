"""Training from the page: strategies compared, a run followed step by step, its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from placewright.adapt.timeline import FOLLOWED, Kind, Timeline
from placewright.cli.console import ProgressLines, follow_run
from placewright.service.process import JobFolder
from placewright.web.client import Client
from tests.service.serving import Serving

MODEL = "tests.service.small_model:wide"
WAIT_MS, STEPS = 240_000, 100_000
"""More steps than are done by then: a run goes on until it is stopped."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that allows a small model."""
    made = Serving(tmp_path_factory.mktemp("flows"), "--models", MODEL)
    made.start()
    yield made
    made.end()


def test_a_run_writes_its_steps_and_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they happen, for the program that follows it; losses that are no numbers are null."""
    folder = JobFolder(tmp_path)
    monkeypatch.setattr(FOLLOWED, "handlers", [])
    monkeypatch.setattr(FOLLOWED, "level", FOLLOWED.level)
    follow_run(ProgressLines(str(folder.progress)))
    timeline = Timeline(plans=1)
    timeline.stepped(0.5, {"loss": 2.0})
    timeline.note(1, Kind.DRIFT, "b: forward passes", before_s=1.0, now_s=2.0)
    timeline.stepped(0.25, {"loss": float("nan")})
    assert folder.lines()[-3:] == [
        {"step": 1, "step_s": 0.5, "plan": 1, "loss": 2.0},
        {"event": "drift", "step": 1, "text": "b: forward passes", "before_s": 1.0, "now_s": 2.0},
        {"step": 2, "step_s": 0.25, "plan": 1, "loss": None},
    ]


def test_from_the_model_to_its_weights(serving: Serving, page: Any, tmp_path: Path) -> None:
    """Choose, compare, train with a worker that becomes slower, watch, stop, download."""
    page.goto(f"{serving.url}/train?on=edge-duo&model=zoo:rnnlm")
    page.select_option("#model", MODEL)
    page.select_option("#on", "edge-duo")
    page.check("#exact")
    page.get_by_role("button", name="Choose").click()
    page.get_by_role("button", name="Compare strategies").click()
    page.wait_for_selector("text=No plan can take less", timeout=WAIT_MS)
    assert {"pso", "dp", "exhaustive"} <= set(page.inner_text("table").split())
    page.select_option("#planner", index=1)
    page.fill("#steps", str(STEPS))
    page.fill("#slow", "board-a:10:8")
    page.get_by_role("button", name="Train", exact=True).click()
    page.wait_for_selector(
        "[data-state=running] [data-events] b:text-is('migrate')", timeout=WAIT_MS
    )
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("text=Download the weights", timeout=WAIT_MS)
    page.wait_for_selector("[data-state=interrupted] >> text=interrupted")
    assert "the plan" in page.inner_text("[aria-label='Predicted beside measured']")
    with page.expect_download() as found:
        page.get_by_role("link", name="Download the weights").click()
    found.value.save_as(tmp_path / "weights.safetensors")
    assert "0.weight" in load_file(tmp_path / "weights.safetensors")
    client = Client(serving.url)
    (run,) = client.ask("GET", "jobs?operation=layers.run")["jobs"]
    assert run["options"]["plan"].startswith("layers-compare-")
    steps = client.ask("GET", f"jobs/{run['id']}/steps")["steps"]
    page.wait_for_selector(f"[data-now=step]:text-is('{len(steps)}')")
    assert [each["step"] for each in steps] == list(range(1, len(steps) + 1))
    assert steps[-1]["loss"] < steps[0]["loss"]
    rest = client.ask("GET", f"jobs/{run['id']}/steps?after=4")["steps"]
    assert rest == steps[4:]
    page.goto(f"{serving.url}/jobs/{run['id']}")
    page.wait_for_selector("[data-events] li:has-text('migrate'):has-text('before, ')")
    assert page.locator("[data-line=step_s] .mark").get_attribute("d").startswith("M")


def test_from_nodes_with_samples_to_weights(serving: Serving, page: Any, tmp_path: Path) -> None:
    """Describe, compare, move and train with a node that becomes slower, download."""
    page.goto(f"{serving.url}/samples")
    page.fill("#of-name", "three nodes")
    page.get_by_role("button", name="Add a node").click()
    page.get_by_role("button", name="Remove this node").last.click()
    page.get_by_role("button", name="Store and choose").click()
    page.get_by_role("button", name="Compare plans").click()
    page.wait_for_selector("text=No plan can take less", timeout=WAIT_MS)
    assert {"ilp", "greedy", "none"} <= set(page.inner_text("[aria-label=Strategies]").split())
    flows = page.frame_locator("iframe.flows").locator("body")
    assert "cellar to server" in str(flows.inner_html())
    page.fill("#steps", "3")
    page.fill("#slow", "server:2:6")
    page.get_by_role("button", name="Move and train").click()
    page.wait_for_selector(
        "[data-state=running] [data-now=step]:not(:text-is('-'))", timeout=WAIT_MS
    )
    page.wait_for_selector("text=Download the weights", timeout=WAIT_MS)
    page.wait_for_selector("[data-events] b:text-is('drift')")
    assert page.locator("[aria-label=Epochs] tbody tr").count() == 3
    (job,) = Client(serving.url).ask("GET", "jobs?operation=samples.run")["jobs"]
    assert "epoch time" in serving.request("GET", f"/jobs/{job['id']}")[1].decode()
    with page.expect_download() as found:
        page.get_by_role("link", name="Download the weights").click()
    found.value.save_as(tmp_path / "weights.safetensors")
    assert load_file(tmp_path / "weights.safetensors")


def test_what_is_chosen_may_be_nothing(serving: Serving) -> None:
    """Of an address that names what there is not, the page offers what there is."""
    status, body = serving.request("GET", "/train?model=%3Cb%3E&on=none&batch=4")
    assert status == 200
    assert "<b>&" not in body.decode()
    assert serving.request("GET", "/train?batch=x")[0] == 422
