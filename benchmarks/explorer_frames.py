"""Frames a second of the graph explorer in headless Chromium, while it is moved.

    python benchmarks/explorer_frames.py 5000 50000

Makes a page of a graph with so many operators in layers of modules, and pans for 120 frames at four
zoom levels, with modules opened by zoom and all open. Needs Chromium and the package playwright.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from harness import Table, run
from placewright.report.explorer import Amount, Category, ExploredGraph, LayoutGraph, explorer
from placewright.report.page import html_page, section

PAN = """async (scale) => {
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const fire = (type, x) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, clientX: box.left + x, clientY: box.top + 300, bubbles: true}));
  canvas.setPointerCapture = () => {};
  canvas.focus();
  for (let k = 0; k < scale; k++)
    canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true}));
  await new Promise((done) => setTimeout(done, 300));
  fire("pointerdown", 600);
  const times = [];
  await new Promise((done) => {
    const frame = (now) => {
      times.push(now);
      fire("pointermove", 600 + 100 * Math.sin(times.length / 10));
      if (times.length <= 120) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
  });
  fire("pointerup", 600);
  return 1000 * (times.length - 1) / (times.at(-1) - times[0]);
}"""


def main(*operators: int) -> None:
    """Print a Markdown table."""
    table = Table("operators", "modules", "frames/s, panning, zoomed in 0, 3, 6, 9 times", left=2)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        for count in operators or (5000,):
            file = Path(folder, f"{count}.html")
            file.write_text(html_page("big", section("Graph", "", explorer(_graph(count)))))
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(f"file://{file}")
            page.wait_for_function("document.querySelector('.seen')?.textContent")
            for modules in ("by zoom", "open"):
                page.select_option("[data-choose=modules]", modules)
                found = ", ".join(f"{_frames(page, scale):.0f}" for scale in (0, 3, 6, 9))
                table.row(count, modules, found)
            page.close()
        browser.close()


def _frames(page: Any, scale: int) -> float:
    page.locator("canvas").focus()
    page.keyboard.press("0")
    page.wait_for_timeout(400)
    return float(page.evaluate(PAN, scale))


def _graph(count: int) -> ExploredGraph:
    """A chain with shortcuts, 50 operators a layer, four modules in each."""
    random, per = np.random.default_rng(0), 50
    pairs = [(i - 1, i) for i in range(1, count)]
    pairs += [(i - int(random.integers(2, 12)), i) for i in range(13, count, 3)]
    source, target = np.array(sorted(pairs)).T
    parts = ("attn", "norm", "mlp", "out")
    flow = LayoutGraph(
        tuple(f"operator_{i}" for i in range(count)),
        source,
        random.integers(1, 10**7, len(source)).astype(float),
        np.arange(len(source) + 1),
        target,
        np.zeros(len(source), bool),
        tuple(f"model.layers.{i // per}.{parts[i % per * 4 // per]}" for i in range(count)),
    )
    device = np.arange(count) * 4 // count
    times = Amount("time", "s", random.exponential(1e-4, count))
    devices = Category("device", ("a", "b", "c", "d"), device, devices=True)
    return ExploredGraph("big", flow, [devices], [times], [])


if __name__ == "__main__":
    run(main)
